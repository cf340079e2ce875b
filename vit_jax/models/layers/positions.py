# SPDX-License-Identifier: Apache-2.0
"""Position embeddings that are added to tokens, and the sequence of these.

Rotary and relative positions act inside the attention: `rotary.py`, `relative.py`.
"""

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.resample import Method, axis_weights

PositionKind = Literal[
    "learned", "learned2d", "sincos2d", "rotary2d", "relative", "none"
]
ADDED = ("learned", "learned2d", "sincos2d")

# Where positions are added: Table 8 of arXiv:2010.11929.
Injection = Literal["stem", "every_layer", "every_layer_shared"]

Grid = tuple[int, int]


class PositionTable(nn.Module):
    """Makes the rows that are added to the tokens.

    Tokens come in the order prefix, registers, patches in raster order. Registers have
    no position, and neither has a token of the prefix unless the table has a row for
    it; their rows are zero.

    Attributes:
      kind: "learned" is a table with a row for each patch (paper, Section 3.1);
        "learned2d" has a table for columns and one for rows, each of half the width,
        whose vectors are put side by side, columns first (Appendix D.4); "sincos2d" is
        computed.
      class_position: Whether a "learned" table has first rows for the prefix, as in the
        paper's code; big_vision adds positions to patches alone.
      copies: How many tables: one for each layer that has its own.
      grid: Rows and columns that a learned table is made for; None takes those of the
        image that initialises the model.
      resize: Method by which a learned table is resized for images of another grid;
        None refuses them.
      stddev: Of the first values of a table; None is 1 / sqrt(d), as in big_vision.
      param_dtype: Of the table.
    """

    kind: PositionKind = "learned"
    class_position: bool = True
    copies: int = 1
    grid: Grid | None = None
    resize: Method | None = None
    stddev: float | None = 0.02
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, grid: Grid, width: int, *, prefix: int = 0, registers: int = 0
    ) -> Float[Array, "l n d"]:
        """Returns the rows for all tokens, once or for each copy.

        Args:
          grid: Rows and columns of the patches of the image.
          width: Of the tokens, d.
          prefix: Tokens that come first.
          registers: Tokens that follow them.

        Raises:
          UserError: A grid that the table is not made for, or not known to be made for.
        """
        placed = prefix if self.kind == "learned" and self.class_position else 0
        if self.kind == "sincos2d":
            rows = jnp.asarray(sincos2d(*grid, width))[None]
        elif self.kind == "learned2d":
            rows = self._two_tables(grid, width)
        else:
            rows = self._one_table(grid, width, placed)
        zeros = jnp.zeros(
            (rows.shape[0], prefix - placed + registers, width), rows.dtype
        )
        return jnp.concatenate([rows[:, :placed], zeros, rows[:, placed:]], axis=1)

    def _one_table(self, grid: Grid, width: int, placed: int) -> Array:
        stored = self._stored_grid(grid, placed)
        table = self._table("pos_embedding", placed + math.prod(stored), width)
        if stored == grid:
            return table
        patches = table[:, placed:].reshape(-1, *stored, width)
        patches = self._resized(patches, 1, grid[0])
        patches = self._resized(patches, 2, grid[1])
        patches = patches.reshape(table.shape[0], -1, width)
        return jnp.concatenate([table[:, :placed], patches], axis=1)

    def _stored_grid(self, wanted: Grid, placed: int) -> Grid:
        """Returns the grid that the table is or shall be made for, or refuses."""
        made_for = self.grid or wanted
        side = math.isqrt(math.prod(wanted))
        if (
            self.grid is None
            and wanted != (side, side)
            and side**2 == math.prod(wanted)
        ):
            raise UserError(
                f"a grid of {wanted[0]}x{wanted[1]} patches has as many as one of "
                f"{side}x{side}, and a position table does not tell them apart; give "
                "the model the resolution that its table is made for"
            )
        if self.has_variable("params", "pos_embedding"):
            rows = self.get_variable("params", "pos_embedding").shape[1] - placed
            side = math.isqrt(rows)
            if rows != math.prod(made_for):
                if self.grid or side**2 != rows:
                    raise _refusal(f"{rows}", self.grid or wanted)
                made_for = (side, side)
        if made_for != wanted and self.resize is None:
            raise _refusal(f"a grid of {made_for[0]}x{made_for[1]}", wanted)
        return made_for

    def _two_tables(self, grid: Grid, width: int) -> Array:
        if width % 2:
            raise UserError(
                f"learned2d positions need an even width, not {width}; nearest: "
                f"{width + 1}"
            )
        made_for, tables = list(self.grid or grid), []
        names = "row_embedding", "column_embedding"
        for axis, name in enumerate(names):
            if self.has_variable("params", name):
                made_for[axis] = self.get_variable("params", name).shape[1]
        if tuple(made_for) != grid and self.resize is None:
            raise _refusal(f"a grid of {made_for[0]}x{made_for[1]}", grid)
        for axis, name in enumerate(names):
            table = self._table(name, made_for[axis], width // 2)
            tables.append(self._resized(table, 1, grid[axis]))
        shape = (self.copies, *grid, width // 2)
        rows = jnp.broadcast_to(tables[0][:, :, None], shape)
        columns = jnp.broadcast_to(tables[1][:, None], shape)
        both = jnp.concatenate([columns, rows], axis=-1)
        return both.reshape(self.copies, -1, width)

    def _table(self, name: str, rows: int, width: int) -> Array:
        stddev = width**-0.5 if self.stddev is None else self.stddev
        shape = (self.copies, rows, width)
        return self.param(name, nn.initializers.normal(stddev), shape, self.param_dtype)

    def _resized(self, table: Array, axis: int, cells: int) -> Array:
        if table.shape[axis] == cells or self.resize is None:
            return table
        weights = axis_weights(table.shape[axis], cells, self.resize)
        weights = jnp.asarray(weights, jnp.float32)
        wide = jnp.moveaxis(table.astype(jnp.float32), axis, -1)
        wide = jnp.matmul(wide, weights.T, precision=lax.Precision.HIGHEST)
        return jnp.moveaxis(wide, -1, axis)


def to_sequence(
    tokens: Float[Array, "b h w d"], *before: Float[Array, "1 _ d"] | None
) -> Float[Array, "b n d"]:
    """Puts tokens in raster order, after those that come before the patches."""
    b, h, w, d = tokens.shape
    parts = [
        jnp.broadcast_to(part.astype(tokens.dtype), (b, *part.shape[1:]))
        for part in before
        if part is not None
    ]
    return jnp.concatenate([*parts, tokens.reshape(b, h * w, d)], axis=1)


def sincos2d(height: int, width: int, d: int) -> Float[np.ndarray, "n d"]:
    """Returns fixed 2-D position embeddings of a grid, in raster order.

    As in big_vision (MoCo v3, arXiv:2104.02057, with both ends included): frequencies
    omega_k = 10000^(-k / (d/4 - 1)) for k = 0 ... d/4 - 1, and the channels are
    sin(x omega), cos(x omega), sin(y omega), cos(y omega).

    Args:
      height: Rows of the grid.
      width: Columns of the grid.
      d: Number of channels, a multiple of 4 and at least 8.

    Raises:
      UserError: Another number of channels.
    """
    if d % 4 or d < 8:
        raise UserError(
            f"sincos2d positions need a width that is a multiple of 4 and at least 8, "
            f"not {d}; nearest: {max(8, round(d / 4) * 4)}"
        )
    omega = 10_000.0 ** -(np.arange(d // 4) / (d // 4 - 1))
    y, x = np.mgrid[:height, :width].reshape(2, -1, 1)
    waves = [np.sin(x * omega), np.cos(x * omega), np.sin(y * omega), np.cos(y * omega)]
    return np.concatenate(waves, axis=1).astype(np.float32)


def _refusal(stored: str, wanted: Grid) -> UserError:
    return UserError(
        f"the position table is made for {stored} patches, but the image has "
        f"{wanted[0]}x{wanted[1]}; feed images of the size that the table is made for, "
        "resize the table when loading it, or give the model resize_positions, the "
        "method to resize it by when it runs"
    )

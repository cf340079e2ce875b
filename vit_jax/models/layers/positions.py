# SPDX-License-Identifier: Apache-2.0
"""Position embeddings, and the place of the class token before or after them."""

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.errors import UserError

PositionKind = Literal["learned", "sincos2d", "none"]


class AddPositions(nn.Module):
    """Flattens a grid of tokens, adds positions and puts a class token in front.

    Attributes:
      kind: "learned" is a table of one row a token (paper, Section 3.1), "sincos2d" is
        computed, "none" leaves order to the patches.
      class_position: Whether a learned table has a first row for the class token, as
        in the paper's code; big_vision adds positions to the grid alone.
      grid: Rows and columns that a learned table is made for; None takes those of the
        image that initialises the model. Only a given grid tells 2x8 from 4x4.
      stddev: Of the table's first values; None is 1 / sqrt(d), as in big_vision.
      dtype: Of the computation.
      param_dtype: Of the table.
    """

    kind: PositionKind = "learned"
    class_position: bool = True
    grid: tuple[int, int] | None = None
    stddev: float | None = 0.02
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, tokens: Float[Array, "b h w d"], cls: Float[Array, "1 1 d"] | None
    ) -> Float[Array, "b n d"]:
        """Returns the tokens in raster order, after the class token if there is one.

        Raises:
          UserError: A grid that the table is not made for.
        """
        b, h, w, d = tokens.shape
        x = tokens.reshape(b, h * w, d)
        prefix = None
        if cls is not None:
            prefix = jnp.broadcast_to(cls.astype(x.dtype), (b, 1, d))
        if prefix is not None and self.class_position:
            return self._add(jnp.concatenate([prefix, x], axis=1), (h, w), 1)
        x = self._add(x, (h, w), 0)
        return x if prefix is None else jnp.concatenate([prefix, x], axis=1)

    def _add(self, x: Array, grid: tuple[int, int], class_rows: int) -> Array:
        """Adds the table to tokens of which the first `class_rows` have no place."""
        if self.kind == "none":
            return x
        if self.kind == "sincos2d":
            # A class token has no coordinates; zeros leave it alone.
            table = jnp.pad(sincos2d(*grid, x.shape[-1]), ((class_rows, 0), (0, 0)))
            return x + table[None].astype(x.dtype)
        self._check_grid(grid, class_rows)
        stddev = x.shape[-1] ** -0.5 if self.stddev is None else self.stddev
        table = self.param(
            "pos_embedding",
            nn.initializers.normal(stddev),
            (1, *x.shape[1:]),
            self.param_dtype,
        )
        return x + table.astype(x.dtype)

    def _check_grid(self, wanted: tuple[int, int], class_rows: int) -> None:
        """Compares the grid of the image with that of the table, as far as known."""
        made_for = self.grid or wanted
        rows = math.prod(made_for)
        if self.has_variable("params", "pos_embedding"):
            rows = self.get_variable("params", "pos_embedding").shape[1] - class_rows
        if rows != math.prod(made_for):
            made_for = (math.isqrt(rows), math.isqrt(rows))
        if made_for != wanted:
            known = rows == math.prod(made_for)
            stored = f"a grid of {made_for[0]}x{made_for[1]}" if known else f"{rows}"
            raise UserError(
                f"the position table is made for {stored} patches, but the image has "
                f"{wanted[0]}x{wanted[1]}; feed images of the size that the table is "
                "made for, or resize the table when loading it"
            )


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

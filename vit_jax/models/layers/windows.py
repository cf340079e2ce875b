# SPDX-License-Identifier: Apache-2.0
"""Windows of a map of tokens, and who sees whom: Section 3.2 of arXiv:2103.14030."""

import dataclasses
import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

WindowKind = Literal["shifted", "fixed", "sliding"]
Pair = tuple[int, int]

# What the paper adds to the logit of a pair that must not attend; exp(-100) is lost in
# the rounding of float32.
MASKED = -100.0


@dataclasses.dataclass(frozen=True)
class Windows:
    """How a map of tokens is cut into g groups, of q queries and n keys each.

    "fixed" windows are tiles; the map is padded at the bottom and right where they do
    not fit, and nobody attends to the padding. "shifted" windows are the same tiles
    after the map is rolled by half a window (Figure 4): each then holds up to four
    regions that are not neighbours, and tokens attend within their region. There is no
    shift along an axis on which one window covers the map, as in the authors' code.

    "sliding" windows are centred on their query and moved inwards at the border, so
    that each query sees a whole window. The paper does not say what happens there. A
    group is then a row of the map: its keys are the rows that its windows reach.

    Attributes:
      grid: Rows and columns of the map.
      size: Rows and columns of a window.
      kind: Which windows.
      shifted: Whether this is a block that shifts, where the kind has any.
    """

    grid: Pair
    size: Pair
    kind: WindowKind = "shifted"
    shifted: bool = False

    @property
    def padded(self) -> Pair:
        """Rows and columns of the map after padding to whole windows."""
        (h, w), (rows, columns) = self.grid, self.size
        return math.ceil(h / rows) * rows, math.ceil(w / columns) * columns

    @property
    def shift(self) -> Pair:
        """By how much the map is rolled up and to the left."""
        if not self.shifted or self.kind != "shifted":
            return 0, 0
        rows, columns = (
            0 if side <= size else size // 2
            for side, size in zip(self.grid, self.size, strict=True)
        )
        return rows, columns

    @property
    def groups(self) -> int:
        """Number of groups of a map."""
        if self.kind == "sliding":
            return self.grid[0]
        return math.prod(self.padded) // math.prod(self.size)

    def split(self, x: Float[Array, "b h w d"]) -> Float[Array, "x n d"]:
        """Cuts maps into windows, all of a batch on one axis; no copy for "sliding"."""
        if self.kind == "sliding":
            return x.reshape(x.shape[0], -1, x.shape[-1])
        (h, w), (rows, columns) = self.padded, self.shift
        x = pad_bottom_right(x, (h, w))
        x = jnp.roll(x, (-rows, -columns), (1, 2)) if rows or columns else x
        return partition(x, self.size)

    def spread(
        self,
        query: Float[Array, "x t m e"],
        key: Float[Array, "x t m e"],
        value: Float[Array, "x t m e"],
    ) -> tuple[
        Float[Array, "y q m e"], Float[Array, "y n m e"], Float[Array, "y n m e"]
    ]:
        """Gives each group the queries, keys and values that meet in it."""
        if self.kind != "sliding":
            return query, key, value
        (h, w), (m, e) = self.grid, query.shape[-2:]
        rows = self._rows()

        def reached(x: Array) -> Array:
            x = x.reshape(-1, h, w, m, e)[:, rows]
            return x.reshape(-1, rows.shape[1] * w, m, e)

        return query.reshape(-1, w, m, e), reached(key), reached(value)

    def biased(
        self, logits: Float[Array, "x m q n"], table: Float[Array, "r m"] | None
    ) -> Float[Array, "b g m q n"]:
        """Adds relative positions and the mask, and separates groups from the batch.

        Args:
          logits: Products of queries and keys.
          table: A row for each offset, in the order of `index`; None adds no
            positions.
        """
        logits = logits.reshape(-1, self.groups, *logits.shape[1:])
        if table is not None:
            bias = table.astype(jnp.float32)[self.index()]  # (1 or g, q, n, m)
            logits = logits + jnp.moveaxis(bias, -1, 1)[None]
        seen = self.seen()
        if seen is not None:
            logits = logits + jnp.where(seen, 0.0, MASKED)[None, :, None]
        return logits

    def join(self, y: Float[Array, "x n d"]) -> Float[Array, "b h w d"]:
        """Puts the queries' results back on the map: the inverse of `split`."""
        h, w = self.grid
        if self.kind == "sliding":
            return y.reshape(-1, h, w, y.shape[-1])
        y = reverse(y, self.padded, self.size)
        y = jnp.roll(y, self.shift, (1, 2)) if any(self.shift) else y
        return y[:, :h, :w]

    def index(self) -> Int[Array, "g q n"]:
        """Returns the row of each pair in a table of offsets; g is 1 if all agree.

        The (2 rows - 1)(2 columns - 1) offsets of a window, query minus key, are
        numbered in raster order from the most negative one.
        """
        (h, w), (rows, columns) = self.grid, self.size
        if self.kind == "sliding":
            down, right = np.arange(h)[:, None] - self._rows(), _offsets(w)
            right = right.clip(1 - columns, columns - 1)  # those beyond are not seen
        else:
            down, right = _offsets(rows), _offsets(columns)
        # Added on the device: the sum is large, its parts are not.
        index = jnp.asarray(down + rows - 1)[:, None, :, None] * (2 * columns - 1)
        index = index + (right + columns - 1)[None, :, None, :]
        groups = h if self.kind == "sliding" else 1
        return index.reshape(groups, -1, down.shape[1] * right.shape[1])

    def seen(self) -> Bool[Array, "g q n"] | None:
        """Returns which queries attend to which keys; None if all of a group do."""
        if self.kind == "sliding":
            w, columns = self.grid[1], min(self.size[1], self.grid[1])
            first = _first(w, columns)[:, None]
            near = (np.arange(w) >= first) & (np.arange(w) < first + columns)
            return jnp.tile(near, (1, self._rows().shape[1]))[None]
        if not any(self.shift) and self.padded == self.grid:
            return None
        regions = jnp.asarray(self.regions(), jnp.float32)[None, ..., None]
        regions = partition(regions, self.size)[..., 0]
        return regions[:, :, None] == regions[:, None, :]

    def regions(self) -> Int[np.ndarray, "h w"]:
        """Numbers the regions of the rolled map; padding is -1."""
        (rows, real_rows), (columns, real_columns) = map(
            _axis_regions, self.grid, self.padded, self.size, self.shift
        )
        numbers = rows[:, None] * 3 + columns[None]
        return np.where(real_rows[:, None] & real_columns[None], numbers, -1)

    def _rows(self) -> Int[np.ndarray, "h s"]:
        """Rows that the sliding windows of each row of queries reach."""
        h, rows = self.grid[0], min(self.size[0], self.grid[0])
        return _first(h, rows)[:, None] + np.arange(rows)


def partition(x: Float[Array, "b h w d"], size: Pair) -> Float[Array, "x n d"]:
    """Cuts maps into tiles in raster order, all of a batch on one axis."""
    (b, h, w, d), (rows, columns) = x.shape, size
    x = x.reshape(b, h // rows, rows, w // columns, columns, d)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, rows * columns, d)


def reverse(
    tiles: Float[Array, "x n d"], grid: Pair, size: Pair
) -> Float[Array, "b h w d"]:
    """Puts tiles of `size` back on a map of `grid`: the inverse of `partition`."""
    (h, w), (rows, columns), d = grid, size, tiles.shape[-1]
    tiles = tiles.reshape(-1, h // rows, w // columns, rows, columns, d)
    return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(-1, h, w, d)


def pad_bottom_right(
    x: Float[Array | np.ndarray, "b h w d"], grid: Pair
) -> Float[Array, "b i j d"]:
    """Adds rows and columns of zeros up to `grid`."""
    rows, columns = grid[0] - x.shape[1], grid[1] - x.shape[2]
    if not rows and not columns:
        return jnp.asarray(x)
    return jnp.pad(x, ((0, 0), (0, rows), (0, columns), (0, 0)))


def log_coordinates(size: Pair, pretrained: Pair) -> Float[np.ndarray, "r 2"]:
    """Returns the log-spaced offsets of a window: Eq. 4 of arXiv:2111.09883.

    As in the authors' code: x = 8 offset / (M - 1), with M the pre-training window, and
    sign(x) log2(1 + |x|) / log2(8). The paper has no factors.

    Args:
      size: Rows and columns of the window.
      pretrained: Those of the window that the weights were trained with.
    """
    axes = []
    for side, trained in zip(size, pretrained, strict=True):
        offsets = 8 * np.arange(1 - side, side) / max(trained - 1, 1)
        axes.append(np.sign(offsets) * np.log2(1 + np.abs(offsets)) / 3)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    return grid.reshape(-1, 2).astype(np.float32)


def _axis_regions(
    side: int, padded: int, size: int, shift: int
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the parts of one axis after rolling, and says which places are real."""
    place = np.arange(padded)
    parts = np.zeros(padded, int)
    if shift:
        parts = 1 * (place >= padded - size) + (place >= padded - shift)
    return parts, np.roll(place < side, -shift)


def _offsets(side: int) -> np.ndarray:
    """Returns query minus key for all pairs of places on one axis."""
    return np.arange(side)[:, None] - np.arange(side)


def _first(side: int, size: int) -> np.ndarray:
    """First place of the window around each place, moved inwards at the ends."""
    return np.clip(np.arange(side) - size // 2, 0, side - size)

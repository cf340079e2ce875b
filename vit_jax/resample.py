# SPDX-License-Identifier: Apache-2.0
"""Resizing of position tables, relative-bias tables and patch kernels, in one place.

Each method resizes rows and columns apart, so it is one matrix for an axis. Methods
differ from one another by more than weights forgive: a checkpoint has the one of its
origin (`position_resize` in `models/presets.py`), and a table goes through one alone.
"""

import math
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from vit_jax.errors import UserError, unknown

# zoom: linear, the corners of both grids aligned (scipy.ndimage.zoom of order 1).
# bilinear: linear between the centres of cells (torch, tf.image).
# linear: the same, wider where the grid shrinks (jax.image; antialias).
# bicubic: cubic with a = -0.75, borders repeated (torch).
# bicubic-antialias: cubic with a = -0.5, wider where the grid shrinks (torch, Pillow).
# geometric: linear on points that lie farther apart with each step from the middle
#   (timm, for the odd sides of relative-bias tables).
Method = Literal[
    "zoom", "bilinear", "linear", "bicubic", "bicubic-antialias", "geometric"
]


def resize_grid(
    table: Float[np.ndarray, "h w d"], grid: tuple[int, int], method: str
) -> Float[np.ndarray, "r s d"]:
    """Resizes a table of vectors on a grid.

    Args:
      table: Vectors by row and column. Relative-bias tables, whose rows are offsets
        and whose vectors are heads, are resized so too.
      grid: Rows and columns of the result.
      method: One of `Method`.

    Returns:
      The table, computed in double precision, in its own dtype; the very same table
      where the grid is the same.

    Raises:
      UserError: An unknown method, or "geometric" on a side that is even.
    """
    if table.shape[:2] == grid:
        return table
    rows, columns = (
        axis_weights(old, new, method)
        for old, new in zip(table.shape[:2], grid, strict=True)
    )
    wide = table.astype(np.float64)
    resized = np.einsum("rh,sw,hwd->rsd", rows, columns, wide, optimize=True)
    return resized.astype(table.dtype)


def axis_weights(old: int, new: int, method: str) -> Float[np.ndarray, "new old"]:
    """Returns the matrix by which a method resizes one axis.

    Args:
      old: Cells of the axis.
      new: Cells that it shall have.
      method: One of `Method`.

    Raises:
      UserError: An unknown method, or "geometric" on a side that is even.
    """
    if method not in get_args(Method):
        raise unknown("resize method", method, get_args(Method))
    if old == new:
        return np.eye(old)
    cells = np.arange(old, dtype=np.float64)
    if method == "zoom":
        return _between(cells, np.linspace(0, old - 1, new))
    if method == "geometric":
        return _between(_geometric_points(old, new), np.arange(new) - new // 2)
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    if method == "bilinear":
        return _between(cells, centres)
    if method == "bicubic":
        padding = np.arange(-2, old + 2)
        taps = _cubic(centres[:, None] - padding, -0.75)
        return taps @ (padding.clip(0, old - 1)[:, None] == cells)
    distance = (centres[:, None] - cells) / max(old / new, 1)
    if method == "linear":
        weights = np.maximum(1 - np.abs(distance), 0)
    else:
        weights = _cubic(distance, -0.5)
    return weights / weights.sum(1, keepdims=True)


def resize_positions(
    table: Float[np.ndarray, "1 n d"],
    grid: tuple[int, int],
    method: str,
    *,
    prefix_tokens: int | None = None,
    stored_grid: tuple[int, int] | None = None,
) -> Float[np.ndarray, "1 m d"]:
    """Resizes a position table whose first rows may belong to the class token.

    Args:
      table: A row for each token.
      grid: Rows and columns of the patches that it shall serve.
      method: One of `Method`.
      prefix_tokens: See `split_class_rows`.
      stored_grid: Rows and columns of the patches that it serves; None is a square.

    Returns:
      The table with the first rows as they were, and the others resized.

    Raises:
      UserError: What `split_class_rows` and `resize_grid` refuse.
    """
    patches = None if stored_grid is None else math.prod(stored_grid)
    first, rows = split_class_rows(table[0], prefix_tokens, patches)
    side = math.isqrt(len(rows))
    h, w = stored_grid or (side, side)
    resized = resize_grid(rows.reshape(h, w, -1), grid, method)
    return np.concatenate([first, resized.reshape(-1, table.shape[-1])])[None]


def split_class_rows(
    table: Float[np.ndarray, "n d"],
    prefix_tokens: int | None = None,
    patches: int | None = None,
) -> tuple[Float[np.ndarray, "t d"], Float[np.ndarray, "m d"]]:
    """Splits a position table into rows of prefix tokens and rows of patches.

    The count tells: 196 rows are a grid of 14x14, 197 the same and a class token. No
    count is both a square and a square and one.

    Args:
      table: A row for each token.
      prefix_tokens: Tokens before the patches that have a row, such as 2 for a
        distilled DeiT; None is none or one, as the count says.
      patches: Number of patches, where their grid is known; None is a square.

    Raises:
      UserError: A count that fits neither.
    """
    count = len(table)
    allowed = (0, 1) if prefix_tokens is None else (prefix_tokens,)
    for first in allowed:
        rest = count - first
        if rest == patches or (patches is None and _is_square(rest)):
            return table[:first], table[first:]
    wanted = "a square" if patches is None else str(patches)
    raise UserError(
        f"a position table of {count} rows is not {wanted} plus "
        f"{' or '.join(map(str, allowed))}; give prefix_tokens, the number of tokens "
        "before the patches, or the grid that the table is for"
    )


def resize_patch_kernel(
    kernel: Float[np.ndarray, "p q c d"], size: tuple[int, int]
) -> Float[np.ndarray, "r s c d"]:
    """Resizes the kernel of a patch embedding to another size of patches.

    With B the matrix of the bilinear resize of a patch, the result is the pseudo-
    inverse of B^T times the kernel (Eq. 4 of arXiv:2212.08013): a larger patch that is
    a resized smaller one gives the same token.

    Args:
      kernel: Height, width, channels, features.
      size: Height and width of the new patches.

    Returns:
      The kernel, computed in double precision, in its own dtype; the very same kernel
      where the size is the same.
    """
    if kernel.shape[:2] == size:
        return kernel
    rows, columns = (
        np.linalg.pinv(axis_weights(old, new, "bilinear").T)
        for old, new in zip(kernel.shape[:2], size, strict=True)
    )
    wide = kernel.astype(np.float64)
    resized = np.einsum("rp,sq,pqcd->rscd", rows, columns, wide, optimize=True)
    return resized.astype(kernel.dtype)


def _between(
    points: Float[np.ndarray, " old"], targets: np.ndarray
) -> Float[np.ndarray, "new old"]:
    """Returns the weights of linear interpolation; outside, the nearest point."""
    columns = [np.interp(targets, points, unit) for unit in np.eye(len(points))]
    return np.stack(columns, axis=1)


def _geometric_points(old: int, new: int) -> Float[np.ndarray, " old"]:
    """Returns where the old cells of an axis lie on the new one, the middle at 0.

    Distances from cell to cell are 1, q, q^2, ... with q such that the last cell lies
    on the last new one, found by halving as in timm (and BEiT's code before it).
    """
    if old % 2 == 0 or new % 2 == 0:
        raise UserError(
            f"the geometric resize is for sides of 2 * window - 1, which are odd, not "
            f"for {old} to {new}; resize grids of positions by another method"
        )
    steps = np.arange(old // 2)
    low, high, q = 1.01, 1.5, 1.25
    while high - low > 1e-6:
        q = (low + high) / 2
        if np.sum(q**steps) > new // 2:
            high = q
        else:
            low = q
    right = np.cumsum(q**steps)
    return np.concatenate([-right[::-1], [0.0], right])


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Returns the cubic convolution kernel of Keys (1981) with parameter `a`."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _is_square(count: int) -> bool:
    return count > 0 and math.isqrt(count) ** 2 == count

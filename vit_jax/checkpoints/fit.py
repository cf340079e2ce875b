# SPDX-License-Identifier: Apache-2.0
"""Fitting one array of a checkpoint to the shape that a model has for it.

Position tables, tables of relative positions and kernels of patch embeddings can be
resized; scale and bias of a group norm may have singleton axes. Nothing else fits.
"""

import math
import re
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from vit_jax.checkpoints.class_rows import TABLE, Grid, layout
from vit_jax.errors import UserError
from vit_jax.resample import resize_grid, resize_patch_kernel

Shape = tuple[int, ...]


class Fitted(NamedTuple):
    """An array that has the shape of the model, and how it came to it."""

    array: np.ndarray
    action: Literal["taken", "resized"]
    detail: str


def fit(
    name: str,
    array: np.ndarray,
    shape: Shape,
    method: str,
    grids: tuple[Grid | None, Grid | None] = (None, None),
) -> Fitted | None:
    """Fits an array to a shape.

    Args:
      name: Its name in a model.
      array: What the checkpoint has.
      shape: What the model has.
      method: How tables are resized, one of `vit_jax.resample.Method`; "none" refuses.
      grids: Rows and columns of patches that the position tables of checkpoint and
        model are for; None is a square.

    Returns:
      The array, the very same one where nothing is to be done; None where the shapes
      differ and nothing makes them equal.

    Raises:
      UserError: A table that would have to be resized, and may or can not.
    """
    if name == TABLE:
        return _positions(array, shape, method, grids)
    if array.shape == shape:
        return Fitted(array, "taken", "")
    for pattern, change in _CHANGES:
        if re.fullmatch(pattern, name) and array.ndim:
            return change(array, shape, _Method(method, name))
    return None


class _Method(NamedTuple):
    """How a table is resized, and which, for the error text."""

    method: str
    name: str

    def resize(self, table: np.ndarray, grid: Grid) -> tuple[np.ndarray, str]:
        """Resizes a table `(h, w, d)`, in double precision."""
        size = f"{_size(table.shape)} -> {_size(grid)}"
        if self.method == "none":
            raise UserError(
                f"{self.name} would have to be resized, {size}, and weights of this "
                "origin are not; keep the size of images and windows, or choose a "
                "preset that tells a method"
            )
        wide = table.astype(np.float64)
        return resize_grid(wide, grid, self.method), f"{size}, {self.method}"


def _positions(
    array: np.ndarray,
    shape: Shape,
    method: str,
    grids: tuple[Grid | None, Grid | None],
) -> Fitted | None:
    if (array.shape[0], array.shape[2:]) != (shape[0], shape[2:]):
        return None
    old, new = layout(array.shape[1], grids[0]), layout(shape[1], grids[1])
    # Grids are compared, not counts: 2x8 patches are as many as 4x4.
    if old is None or new is None or old == new:
        return Fitted(array, "taken", "") if array.shape == shape else None
    if old[0] != new[0]:
        return None
    tables, detail = [], ""
    for copy in array:
        rows = copy[old[0] :].reshape(*old[1], -1)
        resized, detail = _Method(method, TABLE).resize(rows, new[1])
        patches = resized.reshape(-1, array.shape[2])
        tables.append(np.concatenate([copy[: old[0]].astype(np.float64), patches]))
    return Fitted(np.stack(tables), "resized", detail)


def _axis(array: np.ndarray, shape: Shape, method: _Method) -> Fitted | None:
    """Resizes tables of rows alone or columns alone, `(copies, n, d)`."""
    if (array.shape[0], array.shape[2:]) != (shape[0], shape[2:]):
        return None
    pairs = [method.resize(copy[:, None], (shape[1], 1)) for copy in array]
    return Fitted(np.stack([table[:, 0] for table, _ in pairs]), "resized", pairs[0][1])


def _map(array: np.ndarray, shape: Shape, method: _Method) -> Fitted | None:
    """Resizes a table that has rows and columns as axes, `(1, h, w, d)`."""
    if array.shape[3:] != shape[3:]:
        return None
    resized, detail = method.resize(array[0], (shape[1], shape[2]))
    return Fitted(resized[None], "resized", detail)


def _offsets(array: np.ndarray, shape: Shape, method: _Method) -> Fitted | None:
    """Resizes a table of offsets in a square window, `((2s - 1)^2, m)`."""
    old, new = math.isqrt(array.shape[0]), math.isqrt(shape[0])
    if (old**2, new**2) != (array.shape[0], shape[0]) or array.shape[1:] != shape[1:]:
        return None
    resized, detail = method.resize(array.reshape(old, old, -1), (new, new))
    return Fitted(resized.reshape(shape), "resized", detail)


def _kernel(array: np.ndarray, shape: Shape, method: _Method) -> Fitted | None:
    """Resizes the kernel of a patch embedding, `(p, p, c, d)`."""
    del method  # all origins of such a resize have the same
    if array.shape[2:] != shape[2:]:
        return None
    resized = resize_patch_kernel(array.astype(np.float64), (shape[0], shape[1]))
    detail = f"{_size(array.shape)} -> {_size(shape)}, pseudo-inverse"
    return Fitted(resized, "resized", detail)


def _group_norm(array: np.ndarray, shape: Shape, method: _Method) -> Fitted | None:
    """Drops or adds the singleton axes that some files have, `(1, 1, 1, c)`."""
    del method
    channels = (array.size,)
    if {array.shape, shape} != {channels, (1, 1, 1, *channels)}:
        return None
    return Fitted(array.reshape(shape), "taken", f"{array.shape} -> {shape}")


_CHANGES: tuple[
    tuple[str, Callable[[np.ndarray, Shape, _Method], Fitted | None]], ...
] = (
    (r"Transformer/posembed_input/(row|column)_embedding", _axis),
    (r"absolute_pos_embed", _map),
    (r".*/relative_position_bias_table", _offsets),
    (r"(embedding|stem|patch_embed/proj)/kernel", _kernel),
    (r"(.*/)?(gn|norm)[^/]*/(scale|bias)", _group_norm),
)


def _size(shape: Shape) -> str:
    return f"{shape[0]}x{shape[1]}"

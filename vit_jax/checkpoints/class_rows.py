# SPDX-License-Identifier: Apache-2.0
"""Rows of a position table that belong to the class token, on one side only.

The paper's code adds the table after the class token, which has a row; big_vision adds
it before, to patches alone. One turns into the other exactly: a row that is always
added to a token is part of that token.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.errors import UserError

Grid = tuple[int, int]

TABLE = "Transformer/posembed_input/pos_embedding"
# Tokens that may have a row, in the order of the rows.
_TOKENS = ("cls", "dist")


def settle(
    loaded: Mapping[str, np.ndarray],
    target: Mapping[str, Any],
    loaded_grid: Grid | None,
    target_grid: Grid | None,
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Gives the loaded table as many first rows as the target's has.

    Args:
      loaded: Arrays of a checkpoint by name.
      target: Arrays, or their shapes, of a model by name.
      loaded_grid: Rows and columns that the loaded table is for; None is a square.
      target_grid: The same of the target's.

    Returns:
      The loaded arrays, and what was done, by name of the array.

    Raises:
      UserError: Tables whose rows fit no grid, or that are not alike in what has a row.
    """
    if TABLE not in loaded or TABLE not in target:
        return dict(loaded), {}
    table = loaded[TABLE]
    old = layout(table.shape[1], loaded_grid)
    new = layout(target[TABLE].shape[1], target_grid)
    if old is None or new is None:
        if table.shape == tuple(target[TABLE].shape):
            return dict(loaded), {}
        count = table.shape[1] if old is None else target[TABLE].shape[1]
        raise UserError(
            f"{TABLE} with {count} rows is for no square of patches, with or without "
            "rows for tokens before them; tell the grid that it is for"
        )
    tokens = [name for name in _TOKENS if name in loaded]
    changed, notes = _change(table, old[0], new[0], loaded, tokens)
    if changed is None:
        raise UserError(
            f"{TABLE} of the checkpoint has rows for {old[0]} tokens before the "
            f"patches, that of the model for {new[0]}, and the checkpoint has the "
            f"tokens: {', '.join(tokens) or 'none'}; choose pool, distillation and "
            "class_position of the model as in the checkpoint"
        )
    return {**loaded, **changed}, notes


def layout(count: int, grid: Grid | None) -> tuple[int, Grid] | None:
    """Returns how many rows of a table come before those of patches, and their grid.

    No count is two of these: a square, a square and one, a square and two.

    Args:
      count: Rows of the table.
      grid: Rows and columns of the patches, where known.

    Returns:
      The number and the grid; None where the grid is not known and not a square.

    Raises:
      UserError: A grid that does not go with the count.
    """
    if grid is not None:
        first = count - math.prod(grid)
        if 0 <= first <= len(_TOKENS):
            return first, grid
        raise UserError(
            f"{TABLE} has {count} rows, but a grid of {grid[0]}x{grid[1]} patches "
            f"needs {math.prod(grid)}, and at most {len(_TOKENS)} for tokens before "
            "them; the images that go with it have another size"
        )
    for first in range(min(count, len(_TOKENS) + 1)):
        side = math.isqrt(count - first)
        if side**2 == count - first:
            return first, (side, side)
    return None


def _change(
    table: np.ndarray,
    has: int,
    wanted: int,
    loaded: Mapping[str, np.ndarray],
    tokens: list[str],
) -> tuple[dict[str, np.ndarray] | None, dict[str, str]]:
    """Returns the arrays that change and what becomes of them; None if impossible."""
    if has == wanted:
        return {}, {}
    owners = " and ".join(tokens)
    if has == 0 and wanted == len(tokens):
        zeros = np.zeros((table.shape[0], wanted, table.shape[2]), table.dtype)
        with_rows = np.concatenate([zeros, table], axis=1)
        return {TABLE: with_rows}, {TABLE: f"with a zero row for {owners}"}
    if wanted == 0 and not tokens:
        note = f"without {has} first rows, which no token has"
        return {TABLE: table[:, has:]}, {TABLE: note}
    # Tables of every layer are added again and again: those rows are not the token's.
    if wanted == 0 and has == len(tokens) and table.shape[0] == 1:
        changed = {TABLE: table[:, has:]}
        notes = {TABLE: f"without the row of {owners}"}
        for row, name in enumerate(tokens):
            # Half precision would round the sum where a model's float32 does not.
            wide = np.result_type(table.dtype, np.float32)
            changed[name] = loaded[name].astype(wide) + table[:, row : row + 1]
            notes[name] = "plus its row of the position table"
        return changed, notes
    return None, {}

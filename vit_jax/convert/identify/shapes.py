# SPDX-License-Identifier: Apache-2.0
"""Shapes of arrays by name, and how to read sizes from them."""

from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
Fields = dict[str, Any]
# Rows and columns, or height and width.
Pair = tuple[int, int]


def shape(shapes: Shapes, name: str, axes: int) -> Shape:
    """Returns the shape of an array that must be there and have so many axes.

    Raises:
      UserError: It is not there, or has another number of axes.
    """
    if name not in shapes:
        raise UserError(f"there is no array {name!r}: the checkpoint is incomplete")
    found = shapes[name]
    if len(found) != axes:
        raise UserError(
            f"{name} has the shape {found}, but {axes} axes are expected; this is "
            "another kind of model"
        )
    return found


def count_names(shapes: Shapes, template: str, first: int = 0) -> int:
    """Returns how many names there are, counted from the first without a gap."""
    count = 0
    while template.format(count + first) in shapes:
        count += 1
    return count


def one_or_pair(size: Any) -> int | Pair:
    """Returns one number for a square."""
    return size[0] if size[0] == size[1] else (size[0], size[1])

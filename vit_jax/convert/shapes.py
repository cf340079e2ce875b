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


def shape(shapes: Shapes, name: str) -> Shape:
    """Returns the shape of an array that must be there.

    Raises:
      UserError: It is not.
    """
    if name not in shapes:
        raise UserError(f"there is no array {name!r}: the checkpoint is incomplete")
    return shapes[name]


def count_names(shapes: Shapes, template: str, first: int = 0) -> int:
    """Returns how many names there are, counted from the first without a gap."""
    count = 0
    while template.format(count + first) in shapes:
        count += 1
    return count


def one_or_pair(size: Any) -> int | Pair:
    """Returns one number for a square."""
    return size[0] if size[0] == size[1] else (size[0], size[1])

# SPDX-License-Identifier: Apache-2.0
"""What the shapes of Swin tell of its fields, of either version.

A table of relative positions tells the window of V1. Nothing tells that of V2, whose
positions are computed: it is what the caller or the row says.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.convert.identify.shapes import (
    Fields,
    Pair,
    Shapes,
    count_names,
    one_or_pair,
    shape,
)
from vit_jax.models.layers.patches import pair
from vit_jax.models.layers.pyramid import Pyramid

SWIN_BLOCK = "layers_0/blocks_0"
TABLE = "relative_position_bias_table"


def swin(
    shapes: Shapes, known: Mapping[str, Any], size: Pair | None
) -> tuple[Fields, Pair | None]:
    """Returns the fields of a Swin; see `sizes.describe`."""
    del size
    fields = _stages(shapes)
    fields["relative_positions"] = f"{SWIN_BLOCK}/attn/{TABLE}" in shapes
    fields["absolute_positions"] = "absolute_pos_embed" in shapes
    if fields["absolute_positions"]:
        grid, patch = (
            shape(shapes, "absolute_pos_embed", 4)[1:3],
            pair(fields["patch_size"]),
        )
        known = {**known, "resolution": (grid[0] * patch[0], grid[1] * patch[1])}
    offsets = [
        shapes.get(f"layers_{i}/blocks_0/attn/{TABLE}", (None,))[0]
        for i in range(len(fields["depths"]))
    ]
    return fields | _windows(fields, offsets, known), None


def swin_v2(
    shapes: Shapes, known: Mapping[str, Any], size: Pair | None
) -> tuple[Fields, Pair | None]:
    """Returns the fields of a Swin V2; see `sizes.describe`."""
    del size
    fields = _stages(shapes)
    norms = [
        int(match[1]) + 1
        for name in shapes
        if (match := re.fullmatch(r"layers_\d+/blocks_(\d+)/norm3/scale", name))
    ]
    every = known.get("extra_norm_every")
    if norms or (every and every <= max(fields["depths"])):
        every = min(norms, default=None)
    fields["extra_norm_every"] = every
    return fields | _windows(fields, [None] * len(fields["depths"]), known), None


def _stages(shapes: Shapes) -> Fields:
    patch = shape(shapes, "patch_embed/proj/kernel", 4)
    depths, heads = [], []
    while depth := count_names(shapes, f"layers_{len(depths)}/blocks_{{}}/norm1/scale"):
        qkv = shape(shapes, f"layers_{len(depths)}/blocks_0/attn/qkv/kernel", 4)
        depths.append(depth)
        heads.append(qkv[2])
    width, hidden = shape(shapes, f"{SWIN_BLOCK}/mlp/fc1/kernel", 2)
    return {
        "width": patch[-1],
        "depths": tuple(depths),
        "num_heads": tuple(heads),
        "patch_size": one_or_pair(patch),
        "mlp_ratio": hidden // width,
    }


def _windows(
    fields: Fields, offsets: Sequence[int | None], known: Mapping[str, Any]
) -> Fields:
    """Returns a window and a resolution that give each stage the table it has.

    A stage whose map is smaller than the window has one of the size of its map. So
    where the resolution that is known does not go with the tables, the first stage
    with a smaller one tells the resolution; without such a stage it is the one at
    which a map is one window.

    Args:
      fields: What is found already.
      offsets: Rows of the table of each stage; None where there is none.
      known: Fields that the caller, the preset and the row say.
    """
    patch = pair(fields["patch_size"])
    tiled = known.get("window_kind") != "sliding"

    def fits(window: Any, resolution: Any) -> bool:
        if window is None or resolution is None:
            return False
        size = pair(resolution)
        pyramid = Pyramid(size, patch, pair(window), len(offsets), tiled)
        for (rows, columns), told in zip(pyramid.windows, offsets, strict=True):
            if told not in (None, (2 * rows - 1) * (2 * columns - 1)):
                return False
        return bool(known.get("pad")) or all(
            axis.divides(side, axis.windows)
            for axis, side in zip(pyramid.axes, size, strict=True)
        )

    window, resolution = known.get("window_size"), known.get("resolution")
    sides = [None if told is None else (math.isqrt(told) + 1) // 2 for told in offsets]
    square = window if sides[0] is None else sides[0]
    tries = [(window, resolution), (square, resolution)]
    cells = [side * 2**i for i, side in enumerate(sides) if side not in (None, square)]
    if isinstance(square, int):
        cells += [square * 2**i for i in reversed(range(len(sides)))]
        tries += [(square, (n * patch[0], n * patch[1])) for n in cells]
    for window, resolution in tries:
        if fits(window, resolution):
            resolution = one_or_pair(pair(resolution))
            return {"window_size": window, "resolution": resolution}
    return {}

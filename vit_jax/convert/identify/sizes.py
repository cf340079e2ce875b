# SPDX-License-Identifier: Apache-2.0
"""What the names and shapes of our arrays tell of the fields of their model.

One function a family. Each gets what else is known (defaults, the row, the preset, what
the caller says) for the fields that shapes do not tell, and returns its fields and, if
the shapes tell it, the size of the images.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.convert.identify.shapes import (
    Fields,
    Pair,
    Shapes,
    count_names,
    one_or_pair,
    shape,
)
from vit_jax.convert.identify.swin_sizes import SWIN_BLOCK, swin, swin_v2
from vit_jax.errors import UserError

BLOCK = "Transformer/encoderblock_0"
ATTENTION = f"{BLOCK}/MultiHeadDotProductAttention_0"
TABLE = "Transformer/posembed_input"
# A norm after the pooling, which timm's models with a mean have.
POOL_NORM = "pool_norm/scale"


def family_of(shapes: Shapes) -> str:
    """Returns the key of `vit_jax.models.FAMILIES` that names belong to.

    Raises:
      UserError: They belong to none.
    """
    if any(re.match(r"(.*/)?encoderblock/", name) for name in shapes):
        raise UserError(
            "the blocks of these parameters are stacked, encoderblock/...; take them "
            "apart first, with vit_jax.models.stacking.unstack_blocks"
        )
    for family, sign in SIGNS.items():
        if sign in shapes:
            return family
    seen = ", ".join(sorted({name.split("/")[0] for name in shapes})[:8])
    raise UserError(
        f"these parameters are of no model of the zoo: they begin with {seen}, and "
        f"none is {' or '.join(SIGNS.values())}"
    )


# An array that each family has and those after it in the list may have, too.
SIGNS: Mapping[str, str] = {
    "swin-v2": f"{SWIN_BLOCK}/attn/logit_scale",
    "swin": "patch_embed/proj/kernel",
    "mixer": "MixerBlock_0/token_mixing/Dense_0/kernel",
    "bit": "root_block/conv_root/kernel",
    "hybrid": "conv_root/kernel",
    "axial-vit": f"{BLOCK}/row/LayerNorm_0/scale",
    "vit": "embedding/kernel",
}


def describe(
    family: str, shapes: Shapes, known: Mapping[str, Any], size: Pair | None
) -> tuple[Fields, Pair | None]:
    """Returns the fields of a model that its shapes tell, and the size of its images.

    Args:
      family: Key of `vit_jax.models.FAMILIES`.
      shapes: Shape of each array, by slash-joined name.
      known: Fields to take where shapes leave a choice.
      size: Height and width of the images where they are known.

    Returns:
      Fields, and height and width; None where shapes do not tell and none are known.

    Raises:
      UserError: An array that every model of the family has is missing, or the
        positions are for no square grid and the size is not known.
    """
    return _FAMILIES[family](shapes, known, size)


def channels(family: str, shapes: Shapes) -> int:
    """Returns the number of channels of the images."""
    first = {
        "swin-v2": SIGNS["swin"],
        "mixer": "stem/kernel",
        "axial-vit": SIGNS["vit"],
    }
    return shape(shapes, first.get(family, SIGNS[family]), 4)[2]


def _vit(
    shapes: Shapes, known: Mapping[str, Any], size: Pair | None
) -> tuple[Fields, Pair | None]:
    patch = shape(shapes, "embedding/kernel", 4)[:2]
    fields, size = _encoder(shapes, known, (patch[0], patch[1]), size)
    wide = shape(shapes, f"{BLOCK}/MlpBlock_0/Dense_0/kernel", 2)[1]
    scaled = f"{BLOCK}/LayerScale_0/scale" in shapes
    fields |= {
        "patch_size": one_or_pair(patch),
        "distillation": "dist" in shapes,
        "num_registers": shapes["registers"][1] if "registers" in shapes else 0,
        "mlp": "swiglu" if wide == 2 * fields["mlp_dim"] else "mlp",
        "layer_scale": (known.get("layer_scale") or 1e-5) if scaled else None,
        "qk_norm": f"{ATTENTION}/query_ln/scale" in shapes,
        "pool_norm": "after" if POOL_NORM in shapes else "before",
        "class_token": (
            True if "cls" in shapes and "cls" not in fields["pool"] else None
        ),
        "position_injection": _injection(shapes, known, fields["depth"]),
    }
    return fields, size


def _axial(
    shapes: Shapes, known: Mapping[str, Any], size: Pair | None
) -> tuple[Fields, Pair | None]:
    patch = shape(shapes, SIGNS["vit"], 4)[:2]
    row = f"{BLOCK}/row"
    query = shape(shapes, f"{row}/MultiHeadDotProductAttention_0/query/kernel", 3)
    positions, grid = _positions(shapes, known, (patch[0], patch[1]), size)
    if grid is not None:
        size = (grid[0] * patch[0], grid[1] * patch[1])
    fields: Fields = {
        "patch_size": one_or_pair(patch),
        "width": query[0],
        "depth": count_names(
            shapes, "Transformer/encoderblock_{}/row/LayerNorm_0/scale"
        ),
        "num_heads": query[1],
        "mlp_dim": shape(shapes, f"{row}/MlpBlock_0/Dense_1/kernel", 2)[0],
        "positions": positions["positions"],
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
    }
    return fields, size


def _hybrid(
    shapes: Shapes, known: Mapping[str, Any], size: Pair | None
) -> tuple[Fields, Pair | None]:
    stages = _stages(shapes, "unit{}/conv1/kernel")
    patch = shape(shapes, "embedding/kernel", 4)[:2]
    maps = 4 * 2 ** max(len(stages) - 1, 0)
    stride = (maps * patch[0], maps * patch[1])
    fields, size = _encoder(shapes, known, stride, size)
    width = shape(shapes, "conv_root/kernel", 4)[-1]
    fields |= {
        "stages": stages,
        "patch_size": one_or_pair(patch),
        "width_factor": width // 64,
    }
    return fields, size


def _encoder(
    shapes: Shapes, known: Mapping[str, Any], stride: Pair, size: Pair | None
) -> tuple[Fields, Pair | None]:
    width, heads, _ = shape(shapes, f"{ATTENTION}/query/kernel", 3)
    pool = known.get("pool")
    seen = shapes.get("pre_logits/kernel") or shapes.get("head/kernel")
    if "MAPHead_0/probe" in shapes:
        pool = "map"
    elif "cls" in shapes and (seen[0] == 2 * width if seen else pool == "cls_mean"):
        pool = "cls_mean"
    elif "cls" in shapes and POOL_NORM not in shapes and not known.get("class_token"):
        pool = "cls"
    elif pool not in ("mean", "none"):
        pool = "mean"
    fields: Fields = {
        "width": width,
        "depth": count_names(shapes, "Transformer/encoderblock_{}/LayerNorm_0/scale"),
        "num_heads": heads,
        "mlp_dim": shape(shapes, f"{BLOCK}/MlpBlock_0/Dense_1/kernel", 2)[0],
        "pool": pool,
        "representation_size": shapes.get("pre_logits/bias", (None,))[0],
    }
    positions, grid = _positions(shapes, known, stride, size)
    if grid is not None:
        size = (grid[0] * stride[0], grid[1] * stride[1])
    return fields | positions, size


def _positions(
    shapes: Shapes, known: Mapping[str, Any], stride: Pair, size: Pair | None
) -> tuple[Fields, Pair | None]:
    """Returns kind of positions and their grid, if there is an array of them."""
    grid = None if size is None else (size[0] // stride[0], size[1] // stride[1])
    if f"{TABLE}/pos_embedding" in shapes:
        table = shape(shapes, f"{TABLE}/pos_embedding", 3)
        prefix = sum(name in shapes for name in ("cls", "dist"))
        first, grid = class_rows(table[1], prefix, grid)
        rows = bool(first) if prefix else known.get("class_position", True)
        return {"positions": "learned", "class_position": rows}, grid
    if f"{TABLE}/row_embedding" in shapes:
        table = shape(shapes, f"{TABLE}/row_embedding", 3)
        columns = shape(shapes, f"{TABLE}/column_embedding", 3)[1]
        return {"positions": "learned2d"}, (table[1], columns)
    if offsets := shapes.get(f"{ATTENTION}/relative/embedding"):
        _, grid = class_rows((offsets[0] + 1) // 2, 0, grid)
        return {"positions": "relative"}, grid
    kind = known.get("positions")
    without = ("sincos2d", "rotary2d", "none")
    return {"positions": kind if kind in without else "sincos2d"}, None


def class_rows(rows: int, prefix: int, grid: Pair | None) -> tuple[int, Pair]:
    """Tells how many rows of a position table belong to tokens before the patches.

    Without a grid only a square decides: 196 is one, 197 is one and a class row, and
    no count is both.

    Args:
      rows: Of the table.
      prefix: Tokens before the patches that may have rows; they all do or none does.
      grid: Rows and columns of the patches where they are known.

    Returns:
      Their number, and the grid.

    Raises:
      UserError: A count that fits neither.
    """
    for first in dict.fromkeys((0, prefix)):
        side = math.isqrt(max(rows - first, 0))
        found = (side, side) if grid is None else grid
        if rows - first == math.prod(found) > 0:
            return first, found
    wanted = "a square" if grid is None else f"{grid[0]}x{grid[1]}"
    more = f" plus {prefix}" if prefix else ""
    raise UserError(
        f"positions for {rows} tokens are neither {wanted}{' nor that' * bool(prefix)}"
        f"{more}; give the height and width of the images that they are made for"
    )


def _injection(shapes: Shapes, known: Mapping[str, Any], depth: int) -> str:
    kind = known.get("position_injection", "stem")
    copies = 1
    for name in ("pos_embedding", "row_embedding"):
        copies = shapes.get(f"{TABLE}/{name}", (copies,))[0]
    if copies == depth > 1:
        return "every_layer"
    return kind if copies == depth or kind != "every_layer" else "stem"


def _bit(
    shapes: Shapes, known: Mapping[str, Any], size: Pair | None
) -> tuple[Fields, Pair | None]:
    del known
    width = shape(shapes, "root_block/conv_root/kernel", 4)[-1]
    stages = _stages(shapes, "unit{:02d}/conv1/kernel")
    return {"stages": stages, "width_factor": width // 64}, size


def _mixer(
    shapes: Shapes, known: Mapping[str, Any], size: Pair | None
) -> tuple[Fields, Pair | None]:
    del known
    patch = shape(shapes, "stem/kernel", 4)[:2]
    tokens, token_mlp_dim = shape(shapes, "MixerBlock_0/token_mixing/Dense_0/kernel", 2)
    grid = None if size is None else (size[0] // patch[0], size[1] // patch[1])
    _, grid = class_rows(tokens, 0, grid)
    fields = {
        "patch_size": one_or_pair(patch),
        "width": shape(shapes, "stem/bias", 1)[0],
        "depth": count_names(shapes, "MixerBlock_{}/LayerNorm_0/scale"),
        "token_mlp_dim": token_mlp_dim,
        "mlp_dim": shape(shapes, "MixerBlock_0/channel_mixing/Dense_0/bias", 1)[0],
    }
    return fields, (grid[0] * patch[0], grid[1] * patch[1])


def _stages(shapes: Shapes, unit: str) -> tuple[int, ...]:
    stages = []
    while units := count_names(shapes, f"block{len(stages) + 1}/{unit}", first=1):
        stages.append(units)
    return tuple(stages)


_FAMILIES = {
    "vit": _vit,
    "hybrid": _hybrid,
    "bit": _bit,
    "axial-vit": _axial,
    "mixer": _mixer,
    "swin": swin,
    "swin-v2": swin_v2,
}

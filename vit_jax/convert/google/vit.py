# SPDX-License-Identifier: Apache-2.0
"""Transformers in Google's names: the layout of big_vision, and what has no name.

Ours are the names of google-research/vision_transformer. big_vision has the position
table at the top and adds it before the class token is there, so that the table has no
row for it (`class_position=False`); older files of it have earlier forms.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import stacking

TABLE = "Transformer/posembed_input/pos_embedding"
_TABLES_OF_BIG_VISION = ("pos_embedding", "Transformer/pos_embedding")
_SCANNED = "Transformer/encoderblock/"
_MAP_HEAD = ("probe", "MultiHeadDotProductAttention_0", "LayerNorm_0", "MlpBlock_0")


def is_big_vision(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether arrays are laid out as big_vision has them.

    It alone has computed positions, so no table at all.
    """
    return (
        TABLE not in arrays
        or "probe" in arrays
        or any(name.startswith(_SCANNED) for name in arrays)
    )


def from_big_vision(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames the arrays of big_vision, of whatever age, into ours.

    A table with a row for the class token loses it; the row is added to the class
    token, which is what the sum of the two was. Both forms are the same function.

    Args:
      arrays: By slash-joined name, without a root.
    """
    if any(name.startswith(_SCANNED) for name in arrays):
        logging.info("took the stacked blocks apart")
        arrays = trees.flatten(stacking.unstack_blocks(trees.unflatten(arrays)))
    result = {}
    for name, array in arrays.items():
        if name in _TABLES_OF_BIG_VISION:
            name = TABLE
        elif "probe" in arrays and name.split("/")[0] in _MAP_HEAD:
            name = f"MAPHead_0/{name}"
        result[name] = array
    rows = result[TABLE].shape[1] if TABLE in result else 0
    if rows > 1 and math.isqrt(rows - 1) ** 2 == rows - 1:
        _fold_class_row(result)
    return result


def _fold_class_row(params: dict[str, np.ndarray]) -> None:
    table = params[TABLE]
    row, params[TABLE] = table[:, :1], np.ascontiguousarray(table[:, 1:])
    if "cls" not in params:
        logging.info("left out the first row of the position table: no class token")
        return
    logging.info("added the first row of the position table to the class token")
    # A sum of two halves is no half: it is kept as a single.
    wide = np.result_type(params["cls"].dtype, row.dtype, np.float32)
    params["cls"] = params["cls"].astype(wide) + row.astype(wide)


def to_big_vision(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames our arrays of a model with `class_position=False`."""
    names = {TABLE: _TABLES_OF_BIG_VISION[0]}
    return {names.get(name, name): array for name, array in params.items()}


def fold_layer_scale(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Multiplies the last layer of each branch by the factors of its LayerScale.

    The factors act on the channels of a linear layer's result, so kernel and bias take
    them up exactly. What is left is a model without LayerScale.

    Args:
      params: By slash-joined name.
    """
    layers = {
        "LayerScale_0/scale": "MultiHeadDotProductAttention_0/out",
        "LayerScale_1/scale": "MlpBlock_0/Dense_1",
    }
    scales = [name for name in params if name.endswith(tuple(layers))]
    if not scales:
        return dict(params)
    logging.info(
        "folded LayerScale into the weights, which Google's names have no place for: "
        "what is read from this file has no LayerScale"
    )
    result = {name: array for name, array in params.items() if name not in scales}
    for name in scales:
        block, kind, _ = name.rsplit("/", 2)
        layer = f"{block}/{layers[f'{kind}/scale']}"
        scale = params[name].astype(np.float64)
        for part in (f"{layer}/kernel", f"{layer}/bias"):
            array = result[part]
            result[part] = (array.astype(np.float64) * scale).astype(array.dtype)
    return result


def refuse_what_has_no_name(model: Any, image_shape: tuple[int, int, int]) -> None:
    """Checks that Google's names can hold a ViT or hybrid.

    Args:
      model: The module.
      image_shape: Of the images that it is made for.

    Raises:
      UserError: It has a part without a name, or positions of a grid that the number
        of rows does not tell.
    """
    has = {
        "num_registers": getattr(model, "num_registers", 0),
        "distillation": getattr(model, "distillation", False),
        "qk_norm": getattr(model, "qk_norm", False),
        "mlp": getattr(model, "mlp", "mlp"),
        "positions": model.positions,
        "position_injection": getattr(model, "position_injection", "stem"),
        "pool": model.pool,
    }
    allowed: dict[str, tuple[Any, ...]] = {
        "num_registers": (0,),
        "distillation": (False,),
        "qk_norm": (False,),
        "mlp": ("mlp",),
        "positions": ("learned", "sincos2d"),
        "position_injection": ("stem",),
        "pool": ("cls", "mean", "map"),
    }
    for field, value in has.items():
        if value not in allowed[field]:
            raise UserError(
                f"{field}={value!r} has no place in Google's names; write the model in "
                "our own form, or train one without it"
            )
    if image_shape[0] != image_shape[1]:
        raise UserError(
            f"the model is made for images of {image_shape[0]}x{image_shape[1]}, and a "
            "file in Google's names can only be for square ones; resize the positions "
            "to a square grid first, or write the model in our own form"
        )

# SPDX-License-Identifier: Apache-2.0
"""Our weights in the names of timm, and what a file of them says of itself.

timm's files hold neither the architecture nor the form of the activation, so both are
in the metadata and in `notes`, which the converter prints. Our own description is in
the metadata too, so that reading back gives what was written.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert.rules import to_theirs
from vit_jax.convert.timm.names import Code, gets_scales, timm_call
from vit_jax.convert.timm.tables import TIMM
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog
from vit_jax.models.layers.patches import patch_grid
from vit_jax.models.layers.positions import sincos2d
from vit_jax.models.swin import Swin

# Key of our description in the metadata; not that of our own files.
DESCRIPTION = "vit_jax_description"
TABLE = "Transformer/posembed_input/pos_embedding"


def tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Returns the weights as timm's model has them, see `timm_call`.

    Raises:
      UserError: The model has something that timm's has not.
    """
    family = catalog.find(checkpoint.model["name"]).family
    model: Any = build_model(**checkpoint.model)
    flat: dict[str, np.ndarray] = trees.flatten(checkpoint.params)
    if family == "axial-vit":
        raise UserError(
            f"timm has no {checkpoint.model['name']}; convert to native instead"
        )
    refuse(model, flat)
    table = family
    if family == "hybrid" and not model.stages:
        table = "hybrid-root"
    if family == "vit":
        flat = _with_table(flat, model, checkpoint.image_shape)
        if model.class_position and model.positions == "learned":
            flat = _with_registers(flat)
        if gets_scales(checkpoint):
            flat |= _scales_of_one(flat, model)
    heads = getattr(model, "num_heads", None)
    named = to_theirs(TIMM[table], flat, heads, f"{checkpoint.model['name']} for timm")
    if getattr(model, "positions", None) == "rotary2d":
        named = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", k): x for k, x in named.items()}
    return named


def metadata(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns what a safetensors file of these tensors says of itself.

    Our description, and timm's architecture with its arguments in JSON.
    """
    call = timm_call(checkpoint)
    said = {
        key: value
        for key, value in call.arguments.items()
        if key != "num_classes" and not isinstance(value, Code)
    }
    entries = {"format": "pt", DESCRIPTION: json.dumps(checkpoint.description())}
    if call.name is not None:
        entries |= {"architecture": call.name, "model_args": json.dumps(said)}
    return entries


def notes(checkpoint: Checkpoint, path: str) -> list[str]:
    """Returns lines for the log: how timm opens the file, and what it does otherwise.

    Args:
      checkpoint: The weights.
      path: The file.
    """
    call = timm_call(checkpoint)
    verb = f"open with {call.text(path)}"
    if call.name is None:
        verb = (
            f"timm has no name for {checkpoint.model['name']}; build {call.text()} and "
            f"load {path} into it with load_state_dict"
        )
    lines = [verb]
    if "act_layer" in call.arguments:
        lines.append(
            f"these weights were trained with another form of GELU than timm's default;"
            f" without act_layer={call.arguments['act_layer']!r} logits differ by about"
            " 1e-3"
        )
    model: Any = build_model(**checkpoint.model)
    if hasattr(model, "conv_eps"):
        own = (model.conv_eps, model.conv_eps_form, getattr(model, "pool_padding", ""))
        usual = (1e-8, "var", "zero" if own[2] else "")
        if own != usual or getattr(model, "group_norm_eps", 1e-5) != 1e-5:
            lines.append(
                "timm standardises kernels and groups with other epsilons than these "
                "weights were trained with, and has no argument for them; logits differ"
                " a little, which timm accepts for such weights, too"
            )
    return lines


def refuse(
    model: Any, flat: Mapping[str, np.ndarray], *, absolute_positions: bool = False
) -> None:
    """Checks that a model of timm, or of the authors of Swin, can be this one.

    Args:
      model: The module.
      flat: Its parameters.
      absolute_positions: Whether there may be absolute positions in Swin.

    Raises:
      UserError: It cannot, with the reason.
    """
    if "pre_logits/kernel" in flat:
        raise UserError(
            "the head sits on pre_logits, a dense layer with tanh, which timm has not; "
            "it cannot be folded into the head, because tanh is in between. Fine-tune "
            "with representation_size=None, which drops it, or keep Google's form"
        )
    for field, values in _NOT_THERE.items():
        value = getattr(model, field, None)
        if field == "absolute_positions" and absolute_positions:
            continue
        if value in values and value is not None:
            raise UserError(
                f"the form that is written has no {field}={value!r}; convert to native "
                "instead, which keeps everything"
            )
    if getattr(model, "extra_norm_every", None) is not None:
        raise UserError(
            "the form that is written has no norms on the main branch "
            "(extra_norm_every); convert to native instead, which keeps everything"
        )
    if isinstance(model, Swin) and model.gelu != "erf":
        raise UserError(
            "timm's and the authors' Swin have gelu='erf' and no argument for it, but "
            f"these weights are for {model.gelu!r}; convert to native instead"
        )


_NOT_THERE: Mapping[str, tuple[Any, ...]] = {
    "pool": ("cls_mean",),
    "positions": ("learned2d", "relative"),
    "position_injection": ("every_layer", "every_layer_shared"),
    "window_kind": ("fixed", "sliding"),
    "relative_positions": (False,),
    "absolute_positions": (True,),
}


def _with_table(
    flat: dict[str, np.ndarray], model: Any, image_shape: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """Adds the rows of fixed positions, which timm keeps like learned ones."""
    if model.positions != "sincos2d":
        return flat
    grid = patch_grid(image_shape[:2], model.patch_size)
    return {**flat, TABLE: sincos2d(*grid, model.width)[None]}


def _with_registers(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gives registers rows of zeros where class and distillation token have rows."""
    table, first = flat[TABLE], count_prefix(flat)
    if "registers" not in flat or not first:
        return flat
    zeros = np.zeros_like(flat["registers"])
    rows = np.concatenate([table[:, :first], zeros, table[:, first:]], axis=1)
    return {**flat, TABLE: rows}


def count_prefix(flat: Mapping[str, np.ndarray]) -> int:
    """Returns how many tokens may have rows in the position table."""
    return sum(name in flat for name in ("cls", "dist"))


def _scales_of_one(flat: Mapping[str, np.ndarray], model: Any) -> dict[str, np.ndarray]:
    """Factors that change nothing, which the layout of DINOv2 has."""
    like = flat["Transformer/encoderblock_0/LayerNorm_0/scale"]
    return {
        f"Transformer/encoderblock_{i}/LayerScale_{j}/scale": np.ones_like(like)
        for i in range(model.depth)
        for j in (0, 1)
    }

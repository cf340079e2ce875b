# SPDX-License-Identifier: Apache-2.0
"""State dicts of timm, read and written.

Reading takes sizes from the tensors. What they do not tell (heads, the pooling, windows
of Swin V2) is said by our own description in the file, by timm's config.json, or by the
row of the catalogue with these sizes. Names: `timm_tables.py`; the call that opens what
is written: `timm_names.py`.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import swin_buffers, timm_config
from vit_jax.convert.identify import identify
from vit_jax.convert.rules import Heads, Rule, to_ours, to_theirs
from vit_jax.convert.timm_names import Code, timm_call
from vit_jax.convert.timm_tables import TIMM
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog
from vit_jax.models.layers.patches import pair, patch_grid
from vit_jax.models.layers.positions import sincos2d
from vit_jax.models.swin import Swin

# Key of our description in the metadata of a file.
DESCRIPTION = "vit_jax"
_TABLE = "Transformer/posembed_input/pos_embedding"
# A tensor that every model of a family has, the more particular first.
_SIGNS: Mapping[str, str] = {
    "swin-v2": "layers.0.blocks.0.attn.logit_scale",
    "swin": "layers.0.blocks.0.attn.qkv.weight",
    "mixer": "blocks.0.mlp_tokens.fc1.weight",
    "bit": "stages.0.blocks.0.norm1.weight",
    "hybrid": "patch_embed.backbone.stem.conv.weight",
    "hybrid-root": "patch_embed.backbone.conv.weight",
    "vit": "blocks.0.attn.qkv.weight",
}
_FIRST = {
    "mixer": "stem.proj.weight",
    "bit": "stem.conv.weight",
}
_SCALES = re.compile(r"(blocks\.\d+)\.gamma_([12])")


def matches(tensors: Mapping[str, np.ndarray]) -> bool:
    """Says whether names are those of a family of timm that we have."""
    return _table_of(tensors) is not None


def read(
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    preset: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Makes a checkpoint of a state dict.

    Args:
      tensors: By name, without prefixes of wrappers.
      metadata: Of the file; with our description, nothing else is asked.
      preset: Key of `presets.PRESETS`; None takes that of timm for the family.
      config: The config.json of a directory of timm: its `architecture`, `model_args`
        and `pretrained_cfg` tell heads, pooling and preprocessing.

    Raises:
      UserError: Tensors of another kind of model, or a preset that contradicts the
        description.
    """
    table = _table_of(tensors)
    if table is None:
        raise UserError(
            "these tensors are of no timm model that we have; known are ViT, DeiT, "
            "hybrids, BiT, Mixer, Swin and SwinV2"
        )
    params = swin_buffers.without_buffers(tensors)
    params.pop("mask_token", None)  # of the pre-training of DINOv2
    params = {_SCALES.sub(r"\1.ls\2.gamma", name): x for name, x in params.items()}
    if DESCRIPTION in (metadata or {}):
        description = json.loads(metadata[DESCRIPTION])
        return described(TIMM[table], params, description, preset)

    told = timm_config.parse(config, metadata)
    fields = timm_config.fields_of(told, table, tensors)
    size = timm_config.fitting_size(told, table, params)
    if table.startswith("swin"):
        patch = tensors["patch_embed.proj.weight"].shape[-1]
        fields |= swin_buffers.told_by_buffers(tensors, patch)
        size = fields.get("resolution", size)
    elif fields.get("pool") == "cls":
        # After the class token is taken, a norm of all tokens is one of that token.
        params = {re.sub(r"^fc_norm\.", "norm.", k): x for k, x in params.items()}
    size = None if size is None else pair(size)
    heads = _heads(table, params, fields.pop("num_heads", None))
    flat = to_ours(TIMM[table], params, heads, f"timm {table}")
    flat = _split_registers(flat, size)
    numerics, fields = timm_config.numerics(table, params, fields, preset, size)
    model, image_shape = identify(
        flat,
        preset=numerics,
        image_shape=None if size is None else (*size, 3),
        fields=fields,
    )
    imagenet = bool({"blocks.0.ls1.gamma", "dist_token"} & set(params))
    return Checkpoint(
        params=trees.unflatten(flat),
        model=model,
        image_shape=image_shape,
        preprocessing=timm_config.preprocessing(told, numerics, image_shape, imagenet),
        class_names=told.class_names,
    )


def tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Returns the weights as timm's model has them, see `timm_call`.

    Raises:
      UserError: The model has something that timm's has not.
    """
    family = catalog.find(checkpoint.model["name"]).family
    model: Any = build_model(**checkpoint.model)
    flat: dict[str, np.ndarray] = trees.flatten(checkpoint.params)
    refuse(model, flat)
    table = family
    if family == "hybrid" and not model.stages:
        table = "hybrid-root"
    if family == "vit":
        flat = _with_table(flat, model, checkpoint.image_shape)
        if model.class_position and model.positions == "learned":
            flat = _with_registers(flat)
        if checkpoint.model.get("preset") == "dinov2" and model.layer_scale is None:
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
    call = timm_call(with_written_scales(checkpoint))
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
    call = timm_call(with_written_scales(checkpoint))
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


def with_written_scales(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint with the LayerScale that `tensors` gives it, if any."""
    model: Any = checkpoint.model
    plain = getattr(build_model(**model), "layer_scale", 0.0) is None
    if model.get("preset") != "dinov2" or not plain:
        return checkpoint
    return Checkpoint(
        checkpoint.params, {**model, "layer_scale": 1e-5}, checkpoint.image_shape
    )


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
    "positions": ("learned2d", "relative"),
    "position_injection": ("every_layer", "every_layer_shared"),
    "window_kind": ("fixed", "sliding"),
    "relative_positions": (False,),
    "absolute_positions": (True,),
}


def _table_of(tensors: Mapping[str, np.ndarray]) -> str | None:
    for table, sign in _SIGNS.items():
        first = _FIRST.get(table, "patch_embed.proj.weight")
        if sign in tensors and first in tensors:
            return table
    return None


def _heads(table: str, params: Mapping[str, np.ndarray], told: Any) -> Heads:
    """Returns the heads of attention, which packed projections do not tell."""
    if table in ("mixer", "bit"):
        return None
    if table.startswith("swin"):
        return swin_heads(table, params)
    width = params["blocks.0.attn.proj.weight"].shape[0]
    if "blocks.0.attn.q_norm.weight" in params:
        return width // params["blocks.0.attn.q_norm.weight"].shape[0]
    if told is not None:
        return told
    depth = 0
    while f"blocks.{depth}.norm1.weight" in params:
        depth += 1
    own = (width, depth, params["blocks.0.mlp.fc2.weight"].shape[1])
    for size in catalog.VIT_SIZES.values():
        if own == (size["width"], size["depth"], size["mlp_dim"]):
            return size["num_heads"]
    if width % 64:
        raise UserError(
            f"the number of heads of a ViT of width {width} is not in its tensors; put "
            "timm's config.json with num_heads in model_args beside the file"
        )
    logging.info("heads of the ViT of width %d: %d, of width 64", width, width // 64)
    return width // 64


def swin_heads(table: str, params: Mapping[str, np.ndarray]) -> list[int]:
    """Returns the heads of each stage; `table` is "swin" or "swin-v2".

    Raises:
      UserError: The array that tells them is missing.
    """
    heads = []
    while f"layers.{len(heads)}.blocks.0.attn.qkv.weight" in params:
        attention = f"layers.{len(heads)}.blocks.0.attn"
        if table == "swin-v2":
            heads.append(params[f"{attention}.logit_scale"].shape[0])
        elif (bias := f"{attention}.relative_position_bias_table") in params:
            heads.append(params[bias].shape[1])
        else:
            raise UserError(
                f"the file has no {bias}, which tells the number of heads; it is "
                "incomplete"
            )
    return heads


def described(
    rules: Sequence[Rule],
    params: Mapping[str, np.ndarray],
    description: Mapping[str, Any],
    preset: str | None,
) -> Checkpoint:
    """Reads a file that we wrote.

    Args:
      rules: The table of its names.
      params: The tensors, in these names.
      description: Of the checkpoint, from the metadata.
      preset: What the user says.

    Raises:
      UserError: A preset that contradicts the description, or tensors of another model.
    """
    origin = "the file's metadata"
    checkpoint = Checkpoint.from_description(description, {}, origin)
    written = checkpoint.model.get("preset")
    if preset not in (None, written):
        raise UserError(
            f"the file says that its weights are run as {written!r}, not {preset!r}; "
            "leave the preset out"
        )
    model: Any = build_model(**checkpoint.model)
    heads = getattr(model, "num_heads", None)
    flat = to_ours(rules, params, heads, f"{checkpoint.model['name']} in the file")
    flat = _split_registers(flat, checkpoint.image_shape[:2])
    if getattr(model, "positions", "learned") == "sincos2d":
        flat.pop(_TABLE, None)
    if getattr(model, "layer_scale", None) is None:
        scales = {k: x for k, x in flat.items() if "/LayerScale_" in k}
        if all(np.all(x == 1) for x in scales.values()):
            flat = {k: x for k, x in flat.items() if k not in scales}
    told = {k: v for k, v in checkpoint.model.items() if k not in _NO_FIELDS}
    shape = checkpoint.image_shape
    identify(flat, preset=written, image_shape=shape, fields=told)
    # JSON has made lists of tuples.
    told = {k: tuple(v) if isinstance(v, list) else v for k, v in checkpoint.model.items()}
    return dataclasses.replace(checkpoint, params=trees.unflatten(flat), model=told)


_NO_FIELDS = ("name", "num_classes", "preset")


def _with_table(
    flat: dict[str, np.ndarray], model: Any, image_shape: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """Adds the rows of fixed positions, which timm keeps like learned ones."""
    if model.positions != "sincos2d":
        return flat
    grid = patch_grid(image_shape[:2], model.patch_size)
    return {**flat, _TABLE: sincos2d(*grid, model.width)[None]}


def _with_registers(flat: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gives registers rows of zeros where class and distillation token have rows."""
    table, first = flat[_TABLE], _prefix(flat)
    if "registers" not in flat or not first:
        return flat
    zeros = np.zeros_like(flat["registers"])
    rows = np.concatenate([table[:, :first], zeros, table[:, first:]], axis=1)
    return {**flat, _TABLE: rows}


def _split_registers(
    flat: dict[str, np.ndarray], size: tuple[int, int] | None
) -> dict[str, np.ndarray]:
    """Takes the rows of registers off the position table, where it has such.

    Our registers have no position: the rows are added to the registers themselves,
    which is what timm computes, too.
    """
    if "registers" not in flat or _TABLE not in flat:
        return flat
    table, first, count = flat[_TABLE], _prefix(flat), flat["registers"].shape[1]
    patches = table.shape[1] - first - count
    if size is not None:
        patch = flat["embedding/kernel"].shape[:2]
        fits = patches == (size[0] // patch[0]) * (size[1] // patch[1])
    else:
        fits = not _square(table.shape[1]) and _square(patches)
    if not fits:
        return flat
    rows = table[:, first : first + count]
    rest = np.concatenate([table[:, :first], table[:, first + count :]], axis=1)
    flat = {**flat, _TABLE: rest}
    if np.any(rows):
        logging.info("positions of %d registers are added to the registers", count)
        flat["registers"] = flat["registers"] + rows
    return flat


def _prefix(flat: Mapping[str, np.ndarray]) -> int:
    return sum(name in flat for name in ("cls", "dist"))


def _square(number: int) -> bool:
    return number > 0 and math.isqrt(number) ** 2 == number


def _scales_of_one(flat: Mapping[str, np.ndarray], model: Any) -> dict[str, np.ndarray]:
    """Factors that change nothing, which the layout of DINOv2 has."""
    like = flat["Transformer/encoderblock_0/LayerNorm_0/scale"]
    return {
        f"Transformer/encoderblock_{i}/LayerScale_{j}/scale": np.ones_like(like)
        for i in range(model.depth)
        for j in (0, 1)
    }

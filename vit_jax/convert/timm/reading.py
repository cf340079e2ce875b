# SPDX-License-Identifier: Apache-2.0
"""State dicts of timm, read; `writing.py` writes them.

Reading takes sizes from the tensors. What they do not tell (heads, the pooling, windows
of Swin V2) is said by our own description in the file, by timm's config.json, or by the
row of the catalogue with these sizes. Names: `tables.py`.
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
from vit_jax.convert.identify import identify, parameter_shapes
from vit_jax.convert.rules import Rule, to_ours
from vit_jax.convert.timm import config as timm_config, images, swin_buffers
from vit_jax.convert.timm.heads import heads_of
from vit_jax.convert.timm.tables import TIMM
from vit_jax.convert.timm.writing import (
    DESCRIPTION,
    TABLE,
    count_prefix,
)
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.models.layers.patches import pair

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
    metadata = metadata or {}
    if DESCRIPTION in metadata:
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
    heads = heads_of(table, params, fields.pop("num_heads", None))
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
        preprocessing=images.preprocessing(told, numerics, image_shape, imagenet),
        class_names=told.class_names,
    )


def _table_of(tensors: Mapping[str, np.ndarray]) -> str | None:
    for table, sign in _SIGNS.items():
        first = _FIRST.get(table, "patch_embed.proj.weight")
        if sign in tensors and first in tensors:
            return table
    return None


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
        flat.pop(TABLE, None)
    if getattr(model, "layer_scale", None) is None:
        scales = {k: x for k, x in flat.items() if "/LayerScale_" in k}
        if all(np.all(x == 1) for x in scales.values()):
            flat = {k: x for k, x in flat.items() if k not in scales}
    _check(flat, model, checkpoint.image_shape)
    # JSON has made lists of tuples.
    told = {
        k: tuple(v) if isinstance(v, list) else v for k, v in checkpoint.model.items()
    }
    return dataclasses.replace(checkpoint, params=trees.unflatten(flat), model=told)


def _check(
    flat: Mapping[str, np.ndarray], model: Any, image_shape: tuple[int, int, int]
) -> None:
    """Checks that a model has these parameters and no others.

    Raises:
      UserError: It has not.
    """
    if getattr(model, "scan", False):
        model = model.clone(scan=False)  # blocks are stacked in training only
    wanted = parameter_shapes(model, image_shape)
    names = [*wanted, *(name for name in flat if name not in wanted)]
    differing = [
        name
        for name in names
        if name not in flat or wanted.get(name) != flat[name].shape
    ]
    if differing:
        shown = ", ".join(differing[:4]) + (", ..." if len(differing) > 4 else "")
        raise UserError(
            f"the tensors are not those of the model that the file describes: {shown} "
            "differ; was the file changed after it was written? Without its metadata "
            "it is read by its tensors alone"
        )


def _split_registers(
    flat: dict[str, np.ndarray], size: tuple[int, int] | None
) -> dict[str, np.ndarray]:
    """Takes the rows of registers off the position table, where it has such.

    Our registers have no position: the rows are added to the registers themselves,
    which is what timm computes, too.
    """
    if "registers" not in flat or TABLE not in flat:
        return flat
    table, first, count = flat[TABLE], count_prefix(flat), flat["registers"].shape[1]
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
    flat = {**flat, TABLE: rest}
    if np.any(rows):
        logging.info("positions of %d registers are added to the registers", count)
        flat["registers"] = flat["registers"] + rows
    return flat


def _square(number: int) -> bool:
    return number > 0 and math.isqrt(number) ** 2 == number

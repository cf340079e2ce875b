# SPDX-License-Identifier: Apache-2.0
"""State dicts of microsoft/Swin-Transformer, V1 and V2, read and written.

They differ from timm's in the place of patch merging, which is at the end of a stage,
in the name of the head, and in buffers, which tell windows and resolution and are not
written: the authors' code makes them again.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import timm
from vit_jax.convert.identify import identify
from vit_jax.convert.rules import to_ours, to_theirs
from vit_jax.convert.timm import swin_buffers, writing
from vit_jax.convert.timm.heads import swin_heads
from vit_jax.convert.timm.tables import OFFICIAL_SWIN
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, presets


def matches(tensors: Mapping[str, np.ndarray]) -> bool:
    """Says whether names are the authors', by the place of merging or the head.

    A file of timm without a head has no `head.fc` either, so the head decides only
    where there is a single stage.
    """
    if "layers.0.blocks.0.attn.qkv.weight" not in tensors:
        return False
    if "layers.0.downsample.reduction.weight" in tensors:
        return True
    merging = any(".downsample." in name for name in tensors)
    return not merging and "head.weight" in tensors


def read(
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    preset: str | None = None,
) -> Checkpoint:
    """Makes a checkpoint of a state dict of the authors' code.

    Args:
      tensors: By name, without prefixes of wrappers.
      metadata: Of the file; with our description, nothing else is asked.
      preset: Key of `presets.PRESETS`; None takes that of the version and the size.

    Raises:
      UserError: Tensors of another kind of model, or a preset that contradicts the
        description.
    """
    version = "swin-v2" if _is_v2(tensors) else "swin"
    table, params = OFFICIAL_SWIN[version], swin_buffers.without_buffers(tensors)
    metadata = metadata or {}
    if writing.DESCRIPTION in metadata:
        description = json.loads(metadata[writing.DESCRIPTION])
        return timm.described(table, params, description, preset)
    heads = swin_heads(version, params)
    flat = to_ours(table, params, heads, f"official {version}")
    patch = tensors["patch_embed.proj.weight"].shape[-1]
    fields = swin_buffers.told_by_buffers(tensors, patch)
    model, image_shape = identify(
        flat, preset=preset or _PRESETS[version], fields=fields
    )
    if preset is None and image_shape[0] >= 384:
        model["preset"] = f"{_PRESETS[version]}-384"
    numerics = presets.find(model["preset"])
    return Checkpoint(
        params=trees.unflatten(flat),
        model=model,
        image_shape=image_shape,
        preprocessing=numerics.evaluation_ops(image_shape[0]),
    )


def tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Returns the parameters in the authors' names.

    Raises:
      UserError: The model has something that theirs has not.
    """
    family = catalog.find(checkpoint.model["name"]).family
    if family not in OFFICIAL_SWIN:
        raise UserError(
            f"{checkpoint.model['name']} is no Swin, and the form of "
            "microsoft/Swin-Transformer is for Swin alone; convert to timm instead"
        )
    model: Any = build_model(**checkpoint.model)
    flat = trees.flatten(checkpoint.params)
    writing.refuse(model, flat, absolute_positions=True)
    what = f"{checkpoint.model['name']} for official Swin"
    return to_theirs(OFFICIAL_SWIN[family], flat, model.num_heads, what)


def metadata(checkpoint: Checkpoint) -> dict[str, str]:
    """Returns our description, for the metadata of a safetensors file."""
    return {
        "format": "pt",
        writing.DESCRIPTION: json.dumps(checkpoint.description()),
    }


_PRESETS = {"swin": "swin-v1", "swin-v2": "swin-v2"}


def _is_v2(tensors: Mapping[str, np.ndarray]) -> bool:
    return "layers.0.blocks.0.attn.logit_scale" in tensors

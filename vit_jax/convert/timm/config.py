# SPDX-License-Identifier: Apache-2.0
"""What is known of timm's weights beside the tensors: config.json and the presets.

timm's directories for a hub have a config.json with `architecture`, `model_args` (what
was given to `create_model`) and `pretrained_cfg` (how images are prepared).
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.convert.identify.shapes import Pair
from vit_jax.convert.timm.architectures import ARCHITECTURES
from vit_jax.errors import UserError
from vit_jax.models.layers.patches import pair

_POOLS = {"token": "cls", "avg": "mean", "map": "map", "": "none"}
_GELUS = {"gelu": "erf", "gelu_tanh": "tanh"}
_PRESETS = {
    "vit": "timm-vit",
    "hybrid": "timm-hybrid",
    "hybrid-root": "timm-hybrid",
    "bit": "timm-bit",
    "mixer": "timm-mixer",
    "swin": "timm-swin-v1",
    "swin-v2": "timm-swin-v2",
}


@dataclasses.dataclass(frozen=True)
class Told:
    """What config.json and metadata say.

    Attributes:
      fields: Of our model.
      sizes: Height and width of the images, the likeliest first.
      images: timm's `pretrained_cfg`, or what of it is there.
      class_names: Name of each logit; None if unknown.
    """

    fields: Mapping[str, Any]
    sizes: Sequence[Pair]
    images: Mapping[str, Any]
    class_names: tuple[str, ...] | None


def parse(config: Mapping[str, Any] | None, metadata: Mapping[str, str] | None) -> Told:
    """Reads a config.json of timm, or the same entries in a file's metadata.

    Raises:
      UserError: A pooling that we do not have.
    """
    found, metadata = dict(config or {}), metadata or {}
    for key in ("architecture", "model_args"):
        if key not in found and key in metadata:
            text = metadata[key]
            found[key] = json.loads(text) if key == "model_args" else text
    images = found.get("pretrained_cfg", found)
    arguments = dict(found.get("model_args") or {})
    architecture = str(found.get("architecture", "")).split(".")[0]
    known = ARCHITECTURES.get(architecture)

    fields: dict[str, Any] = {}
    sizes: list[Any] = [arguments.get("img_size"), images.get("input_size", ())[1:]]
    if known is not None:
        sizes.append(known.side)
        told = ("pool", "positions", "gelu", "num_heads", "window_size")
        told += ("pretrained_window_size",)
        fields = {key: known.fields[key] for key in told if key in known.fields}
        if known.fields.get("positions") == "learned":
            del fields["positions"]
    pool = arguments.get("global_pool", found.get("global_pool"))
    if pool is not None:
        fields["pool"] = pool
    fields |= _arguments(arguments)
    pairs = [
        pair(size if isinstance(size, int) else tuple(size)) for size in sizes if size
    ]
    return Told(fields, pairs, images, _class_names(found))


def _arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    fields = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in arguments.items()
        if key in ("num_heads", "window_size")
    }
    if arguments.get("pos_embed") in ("", "none"):
        fields["positions"] = "none"
    if arguments.get("act_layer") in _GELUS:
        fields["gelu"] = _GELUS[arguments["act_layer"]]
    if any(sides := tuple(arguments.get("pretrained_window_sizes", ()))):
        fields["pretrained_window_size"] = sides
    return fields


def _class_names(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    images = config.get("pretrained_cfg", {})
    names = config.get("label_names") or images.get("label_names")
    texts = config.get("label_descriptions") or images.get("label_descriptions")
    if not names:
        return None
    if isinstance(texts, Mapping):
        return tuple(str(texts.get(name, name)) for name in names)
    return tuple(map(str, names))


def fields_of(
    told: Told, table: str, params: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Returns the fields that are for a family, in the words of `identify`.

    Raises:
      UserError: A pooling that we do not have.
    """
    fields = dict(told.fields)
    vit = table in ("vit", "hybrid", "hybrid-root")
    pool = fields.pop("pool", None)
    if vit and pool is not None:
        if pool not in (*_POOLS, *_POOLS.values()):
            raise UserError(
                f"config.json says global_pool {pool!r}, which we do not have; we have "
                f"{', '.join(repr(name) for name in _POOLS)}"
            )
        fields["pool"] = _POOLS.get(pool, pool)
        if "cls_token" in params and fields["pool"] != "cls":
            fields["class_token"] = True
    if not vit:
        fields.pop("positions", None)
    elif "pos_embed" not in params and "positions" not in fields:
        # timm's rotary models have the older names of LayerScale.
        rotary = "blocks.0.gamma_1" in params
        fields["positions"] = "rotary2d" if rotary else "none"
    return fields


def fitting_size(
    told: Told, table: str, params: Mapping[str, np.ndarray]
) -> Pair | None:
    """Returns the first size of images whose patches fit the positions, if any."""
    if table not in ("vit", "mixer") or "pos_embed" not in params:
        return next(iter(told.sizes), None) if table not in ("mixer",) else None
    rows = params["pos_embed"].shape[1]
    patch = params["patch_embed.proj.weight"].shape[2:]
    tokens = [params[k].shape[1] for k in _TOKENS if k in params]
    for size in told.sizes:
        patches = (size[0] // patch[0]) * (size[1] // patch[1])
        if rows in (patches, patches + sum(tokens)):
            return size
    return None


_TOKENS = ("cls_token", "dist_token", "reg_token")


def numerics(
    table: str,
    params: Mapping[str, np.ndarray],
    fields: Mapping[str, Any],
    preset: str | None,
    size: Pair | None,
) -> tuple[str, dict[str, Any]]:
    """Chooses the preset, and the activation where it is not that of the preset.

    timm computes SigLIP with erf, which was trained with tanh, except in sizes that
    came with SigLIP 2.

    Args:
      table: Of `tables.TIMM`.
      params: timm's tensors.
      fields: What is known of the model.
      preset: What the user wants; then the activation is that of the preset, too.
      size: Height and width of the images where they are known.

    Returns:
      The preset, and the fields.
    """
    fields = dict(fields)
    if preset is not None:
        fields.pop("gelu", None)
        return preset, fields
    preset = _PRESETS[table]
    if table != "vit":
        return preset, fields
    patch = params["patch_embed.proj.weight"].shape[2]
    tower = "attn_pool.latent" in params
    if tower and not {"cls_token", "reg_token"} & set(params):
        preset = "siglip"
        fields.setdefault("gelu", _siglip_gelu(params, patch, size))
    elif "blocks.0.ls1.gamma" in params and patch == 14:
        preset = "dinov2"
    return preset, fields


def _siglip_gelu(
    params: Mapping[str, np.ndarray], patch: int, size: Pair | None
) -> str:
    width, rows = params["patch_embed.proj.weight"].shape[0], None
    if "pos_embed" in params:
        rows = params["pos_embed"].shape[1]
    side = size[0] if size else patch * math.isqrt(rows or 0)
    for each in ARCHITECTURES.values():
        own = (each.fields.get("patch_size"), each.fields.get("width"), each.side)
        if each.fields.get("pool") == "map" and own == (patch, width, side):
            return each.fields["gelu"]
    return "erf"

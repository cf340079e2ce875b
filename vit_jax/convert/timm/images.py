# SPDX-License-Identifier: Apache-2.0
"""How timm prepares images, as an op string."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.convert.timm.config import Told
from vit_jax.models import presets

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_IMAGENET_OP = 'normalize("imagenet")'


def preprocessing(
    told: Told, preset: str, image_shape: tuple[int, int, int], imagenet: bool
) -> str:
    """Returns the op string of `pretrained_cfg`, or else that of the preset.

    Args:
      told: With `pretrained_cfg`, or without.
      preset: Key of `presets.PRESETS`.
      image_shape: Of the model.
      imagenet: Whether the weights are of a recipe that has ImageNet's statistics.
    """
    images, (height, width) = told.images, image_shape[:2]
    if "mean" not in images and height == width:
        found = presets.find(preset)
        if width >= 384:  # timm's models of that size see the whole image
            found = dataclasses.replace(found, crop_fraction=1.0)
        ops = found.evaluation_ops(width)
        return ops.replace("value_range(-1, 1)", _IMAGENET_OP) if imagenet else ops
    method = images.get("interpolation", "bicubic")
    method = method if method in ("bilinear", "bicubic") else "bicubic"
    how = f'method="{method}", antialias=True'
    crop = float(images.get("crop_pct") or 1.0)
    larger = math.floor(height / crop), math.floor(width / crop)
    if height != width or images.get("crop_mode") == "squash":
        resize = f"resize(({larger[0]}, {larger[1]}), {how})"
    else:
        resize = f"resize_small({larger[0]}, {how})"
    size = f"{height}" if height == width else f"({height}, {width})"
    statistics = _statistics(images, imagenet)
    return f"decode|{resize}|central_crop({size})|{statistics}"


def _statistics(images: Mapping[str, Any], imagenet: bool) -> str:
    usual = _IMAGENET if imagenet else (_HALF, _HALF)
    mean = tuple(images.get("mean", usual[0]))
    std = tuple(images.get("std", usual[1]))
    if (mean, std) == (_HALF, _HALF):
        return "value_range(-1, 1)"
    if (mean, std) == _IMAGENET:
        return _IMAGENET_OP
    return f"normalize({mean}, {std})"

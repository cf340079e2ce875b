# SPDX-License-Identifier: Apache-2.0
"""preprocessor_config.json of transformers, to and from our op strings."""

import re
from collections.abc import Mapping
from typing import Any

from vit_jax.data.ops.arguments import LABEL_OPS, STATISTICS
from vit_jax.errors import UserError, unknown
from vit_jax.registry import Call, parse_pipeline

_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
# Numbers of PIL. Where the library resizes it widens kernels when shrinking.
_METHODS = {0: "nearest", 2: "bilinear", 3: "bicubic"}

_COMMON = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": _HALF[0],
    "image_std": _HALF[1],
    "size": {"height": 224, "width": 224},
    "crop_size": {"height": 224, "width": 224},
}
_CROPPING = {
    "resample": 3,
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "image_mean": STATISTICS["clip"][0],
    "image_std": STATISTICS["clip"][1],
}
# What each class takes for what the file leaves out.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ViT": {**_COMMON, "resample": 2},
    "DeiT": {
        **_COMMON,
        "resample": 3,
        "size": {"height": 256, "width": 256},
        "do_center_crop": True,
    },
    "Siglip": {**_COMMON, "resample": 3},
    "Bit": {**_COMMON, **_CROPPING},
    "CLIP": {**_COMMON, **_CROPPING},
    "ViTHybrid": {**_COMMON, **_CROPPING},
}
# Classes for which a single number is the shorter side.
_SHORTER = ("Bit", "CLIP", "Siglip", "ViTHybrid")
_USUAL = {
    "deit": "DeiT",
    "dinov2": "Bit",
    "dinov2_with_registers": "Bit",
    "siglip": "Siglip",
    "siglip_vision_model": "Siglip",
    "bit": "Bit",
    "vit-hybrid": "ViTHybrid",
}


def evaluation_ops(
    processor: Mapping[str, Any], kind: str, origin: str
) -> tuple[str, tuple[int, int] | None]:
    """Returns the op string of a preprocessor_config.json.

    Args:
      processor: Its content.
      kind: The `model_type` of the model beside it.
      origin: Its name, for errors.

    Returns:
      The ops, and height and width of the images that they make; None where these
      depend on the picture.

    Raises:
      UserError: A class or an option that the ops cannot follow.
    """
    name = processor.get("image_processor_type") or processor.get(
        "feature_extractor_type"
    )
    name = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", str(name or ""))
    name = name or _USUAL.get(kind, "ViT")
    if name not in _DEFAULTS:
        error = unknown(f"image processor in {origin}:", name, _DEFAULTS)
        raise UserError(f"{error}; without the file the preset's ops are taken")
    given = {key: value for key, value in processor.items() if value is not None}
    options = {**_DEFAULTS[name], **given}
    ops, size = ["decode"], None
    if options["do_resize"]:
        op, size = _resize(options, name in _SHORTER, origin)
        ops.append(op)
    if options["do_center_crop"]:
        size = _sides(options["crop_size"], origin)
        ops.append(f"central_crop({_shown(size)})")
    ops.append(_normalization(options))
    return "|".join(ops), size


def _resize(
    options: Mapping[str, Any], shorter: bool, origin: str
) -> tuple[str, tuple[int, int] | None]:
    if options["resample"] not in _METHODS:
        raise UserError(
            f"resample {options['resample']} in {origin} has no op; known are 0 "
            "(nearest), 2 (bilinear) and 3 (bicubic)"
        )
    how = f'method="{_METHODS[options["resample"]]}", antialias=True'
    size = options["size"]
    if isinstance(size, int) and shorter:
        size = {"shortest_edge": size}
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        return f"resize_small({size['shortest_edge']}, {how})", None
    sides = _sides(size, origin)
    return f"resize({_shown(sides)}, {how})", sides


def _sides(size: Any, origin: str) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and set(size) == {"height", "width"}:
        return size["height"], size["width"]
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return size[0], size[1]
    raise UserError(
        f"size {size} in {origin} has no op; known are height and width, or "
        "shortest_edge"
    )


def _shown(size: tuple[int, int]) -> str:
    return str(size[0] if size[0] == size[1] else size)


def _normalization(options: Mapping[str, Any]) -> str:
    """Returns the op for (x * factor - mean) / std, of which parts may be off."""
    factor = 255 * options["rescale_factor"] if options["do_rescale"] else 255
    factor = 1 if abs(factor - 1) < 1e-9 else factor
    mean, std = (0.0,) * 3, (1.0,) * 3
    if options["do_normalize"]:
        mean, std = _three(options["image_mean"]), _three(options["image_std"])
    mean = tuple(value / factor for value in mean)
    std = tuple(value / factor for value in std)
    if (mean, std) == _HALF:
        return "value_range(-1, 1)"
    for name, statistics in STATISTICS.items():
        if (mean, std) == statistics:
            return f'normalize("{name}")'
    return f"normalize({mean}, {std})"


def _three(value: Any) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (float(value),) * 3


def processor_of(ops: str) -> dict[str, Any]:
    """Returns the content of a preprocessor_config.json that does what ops do.

    Raises:
      UserError: Ops that no processor of transformers does alike.
    """
    calls = [c for c in parse_pipeline(ops) if c.name not in LABEL_OPS]
    found: dict[str, Any] = {**_DEFAULTS["ViT"], "do_resize": False}
    found["do_convert_rgb"] = True
    del found["crop_size"]
    order = ["decode", "resize", "central_crop", "normalize"]
    for call in calls:
        place = {"resize_small": "resize", "value_range": "normalize"}.get(
            call.name, call.name
        )
        if place not in order:
            raise UserError(f"{call.where}: transformers has no such op at this place")
        order = order[order.index(place) + 1 :]
        found |= _WRITERS[call.name](call)
    if "normalize" in order:
        raise UserError(f"{ops!r} does not normalise levels")
    name = "BitImageProcessor" if found["do_center_crop"] else "ViTImageProcessor"
    return found | {"image_processor_type": name}


def _written_resize(call: Call) -> dict[str, Any]:
    small = call.name == "resize_small"
    options = {"method": "area" if small else "bilinear", "antialias": False}
    options |= _arguments(call, "size", "method", "antialias")
    numbers = {method: number for number, method in _METHODS.items()}
    method = options["method"]
    if method not in numbers or not (options["antialias"] or method == "nearest"):
        how = method if options["antialias"] else f"{method} without antialias"
        raise UserError(
            f"{call.where}: transformers does not resize by {how}, only by bilinear or "
            "bicubic with antialias"
        )
    size = options["size"]
    sides = dict(zip(("height", "width"), _sides(size, call.where), strict=True))
    return {
        "do_resize": True,
        "resample": numbers[method],
        "size": {"shortest_edge": size} if small else sides,
    }


def _written_crop(call: Call) -> dict[str, Any]:
    height, width = _sides(_arguments(call, "size")["size"], call.where)
    return {"do_center_crop": True, "crop_size": {"height": height, "width": width}}


def _written_range(call: Call) -> dict[str, Any]:
    options = {"vmin": -1, "vmax": 1, "in_min": 0, "in_max": 255, "clip": False}
    options |= _arguments(call, *options)
    if options["in_min"] != 0 or options["in_max"] != 255:
        raise UserError(f"{call.where}: transformers takes levels of 0 to 255 only")
    # Levels are within the range already, so clipping changes nothing.
    span = options["vmax"] - options["vmin"]
    return {"image_mean": [-options["vmin"] / span] * 3, "image_std": [1 / span] * 3}


def _written_normalize(call: Call) -> dict[str, Any]:
    options = {"mean": "imagenet", "std": None} | _arguments(call, "mean", "std")
    mean, std = options["mean"], options["std"]
    std = mean if std is None else std
    mean = STATISTICS[mean][0] if isinstance(mean, str) else mean
    std = STATISTICS[std][1] if isinstance(std, str) else std
    return {"image_mean": list(mean), "image_std": list(std)}


def _arguments(call: Call, *names: str) -> dict[str, Any]:
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


_WRITERS = {
    "decode": lambda call: {},
    "resize": _written_resize,
    "resize_small": _written_resize,
    "central_crop": _written_crop,
    "value_range": _written_range,
    "normalize": _written_normalize,
}

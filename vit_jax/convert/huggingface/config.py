# SPDX-License-Identifier: Apache-2.0
"""config.json of transformers: what it tells of a model, and what it must tell."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.convert.identify.shapes import Pair, one_or_pair
from vit_jax.errors import UserError, unknown
from vit_jax.models.layers.pyramid import Pyramid

_GELU = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
}

# What the library takes for what a file leaves out.
_TRANSFORMER = {
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "qkv_bias": True,
    "pooler_act": "tanh",
}
_SIGLIP = {
    **_TRANSFORMER,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
    "vision_use_head": True,
}
_SWIN = {
    "num_heads": (3, 6, 12, 24),
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "image_size": 224,
    "window_size": 7,
    "qkv_bias": True,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "vit": _TRANSFORMER,
    "vit-hybrid": {**_TRANSFORMER, "image_size": 384},
    "deit": _TRANSFORMER,
    "dinov2": {**_TRANSFORMER, "layer_norm_eps": 1e-6},
    "dinov2_with_registers": {**_TRANSFORMER, "layer_norm_eps": 1e-6},
    "siglip": _SIGLIP,
    "siglip_vision_model": _SIGLIP,
    "swin": _SWIN,
    "swinv2": {
        **_SWIN,
        "pretrained_window_sizes": (0, 0, 0, 0),
        "use_absolute_embeddings": False,
    },
    "bit": {
        "hidden_act": "relu",
        "layer_type": "preactivation",
        "global_padding": None,
        "embedding_dynamic_padding": False,
        "num_groups": 32,
        "depths": (3, 4, 6, 3),
        "output_stride": 32,
    },
}
# Values other than these make another model than ours. Embedding and merging norms of
# Swin have 1e-5 whatever the file says.
_ONLY: Mapping[str, Mapping[str, Any]] = {
    "swin": {"layer_norm_eps": 1e-5, "qkv_bias": True},
    "swinv2": {
        "layer_norm_eps": 1e-5,
        "qkv_bias": True,
        "use_absolute_embeddings": False,
    },
    "bit": {
        "hidden_act": "relu",
        "layer_type": "preactivation",
        "global_padding": None,
        "embedding_dynamic_padding": False,
        "num_groups": 32,
    },
}


# Our losses and the names of theirs.
LOSSES = {
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
    "mse": "regression",
}


@dataclasses.dataclass(frozen=True)
class Told:
    """What a config.json tells.

    Attributes:
      heads: Heads of attention, or of each stage's; None where there are none.
      fields: Fields of the model.
      size: Height and width of the images; None where any will do.
      class_names: By class; None where they are numbers only.
      loss: As in `Checkpoint`.
    """

    heads: int | tuple[int, ...] | None
    fields: dict[str, Any]
    size: Pair | None
    class_names: tuple[str, ...] | None
    loss: str


def read_config(kind: str, config: Mapping[str, Any], origin: str) -> Told:
    """Returns what the config.json of a `model_type` tells.

    Raises:
      UserError: A value that makes another model than ours.
    """
    part = (config.get("vision_config") or {}) if kind == "siglip" else config
    options = {**_DEFAULTS[kind], **part}
    for key, value in _ONLY.get(kind, {"qkv_bias": True, "pooler_act": "tanh"}).items():
        if options.get(key, value) != value:
            raise UserError(
                f"{key} is {options[key]!r} in {origin}, but only {value!r} is known "
                "here; this is another kind of model"
            )
    fields: dict[str, Any] = {}
    if kind == "bit":
        if options["output_stride"] < 2 ** (len(options["depths"]) + 1):
            raise UserError(
                f"output_stride is {options['output_stride']} in {origin}: dilated "
                "convolutions are not known here"
            )
    else:
        fields |= {
            "norm_eps": options["layer_norm_eps"],
            "gelu": _gelu(options["hidden_act"], origin),
        }
    heads = options.get("num_attention_heads")
    if kind in ("swin", "swinv2"):
        heads = tuple(options["num_heads"])
        fields |= _windows(kind, options, len(heads))
    if not options.get("vision_use_head", True):
        fields["pool"] = "mean"
    size = options.get("image_size")
    return Told(
        heads,
        fields,
        None if size is None else both(size),
        _class_names(config.get("id2label")),
        {theirs: ours for ours, theirs in LOSSES.items()}.get(
            config.get("problem_type") or "", "softmax"
        ),
    )


def _gelu(activation: str, origin: str) -> str:
    if activation not in _GELU:
        raise unknown(f"hidden_act in {origin}:", str(activation), _GELU)
    return _GELU[activation]


def _windows(kind: str, options: Mapping[str, Any], stages: int) -> dict[str, Any]:
    fields = {
        "window_size": options["window_size"],
        "resolution": one_or_pair(both(options["image_size"])),
    }
    if kind == "swinv2":
        sizes = tuple(options["pretrained_window_sizes"])[:stages]
        if any(sizes):
            sides = ("image_size", "window_size")
            image, window = (both(options[key]) for key in sides)
            own = Pyramid(image, both(options.get("patch_size", 4)), window, stages)
            fields["pretrained_window_size"] = tuple(
                before or now[0] for before, now in zip(sizes, own.windows, strict=True)
            )
    return fields


def _class_names(labels: Mapping[str, str] | None) -> tuple[str, ...] | None:
    names = [str(labels[key]) for key in sorted(labels, key=int)] if labels else []
    if all(name == f"LABEL_{i}" for i, name in enumerate(names)):
        return None
    return tuple(names)


def both(size: Any) -> Pair:
    """Returns rows and columns of a size that may be one number."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])

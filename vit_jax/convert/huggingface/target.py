# SPDX-License-Identifier: Apache-2.0
"""What transformers can hold of our models."""

from collections.abc import Mapping, Sequence
from typing import Any

from flax import linen as nn

from vit_jax.convert.huggingface.config import both
from vit_jax.errors import UserError
from vit_jax.models.layers.pyramid import Pyramid

# Values of fields that a layout has; where a field is not listed, any will do.
_EVERY_VIT = {
    "positions": ("learned",),
    "position_injection": ("stem",),
    "qk_norm": (False,),
    "pool_norm": ("before",),
}
_PLAIN = {**_EVERY_VIT, "mlp": ("mlp",), "layer_scale": (None,)}
_HOLDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "vit": {**_PLAIN, "class_position": (True,), "pool": ("cls",)},
    "deit": {
        **_PLAIN,
        "class_position": (True,),
        "representation_size": (None,),
        "num_registers": (0,),
    },
    "dinov2": {**_EVERY_VIT, "class_position": (True,), "representation_size": (None,)},
    "siglip": {
        **_PLAIN,
        "class_position": (False,),
        "class_token": (None, False),
        "representation_size": (None,),
    },
    "swin": {
        "relative_positions": (True,),
        "window_kind": ("shifted",),
        "norm_eps": (1e-5,),
    },
    "swinv2": {
        "extra_norm_every": (None,),
        "window_kind": ("shifted",),
        "norm_eps": (1e-5,),
    },
    "bit": {
        "conv_eps": (1e-8,),
        "conv_eps_form": ("var",),
        "norm_eps": (1e-5,),
        "pool_padding": ("zero",),
    },
}
_SAME_TABLE = {"dinov2_with_registers": "dinov2", "siglip_vision_model": "siglip"}
_NO_LAYOUT = {
    "hybrid": "transformers 5 has no hybrid of ResNet and ViT",
    "mixer": "transformers has no MLP-Mixer",
    "axial-vit": "transformers has no Axial-ViT",
}
_REMEDY = "write another form, such as timm's or our own"
# What to do where another field or preset would do.
_REMEDIES = {
    "bit": "load the checkpoint with preset='hf-bit' if it shall run as transformers "
    "runs BiT",
    "representation_size": "its classifiers sit on the trunk; write the trunk alone, "
    "with num_classes=0, or another form",
    "pool": "train the head with pool='cls_mean', write the trunk alone, with "
    "num_classes=0, or another form",
}


def layout_for(family: str, model: nn.Module, preset: str) -> str:
    """Returns the `model_type` that can hold a model.

    Args:
      family: Key of `vit_jax.models.FAMILIES`.
      model: The model.
      preset: Its preset; a trunk of "dinov2" becomes that of transformers' DINOv2
        even if its factors of LayerScale are folded.

    Raises:
      UserError: None can, with the first field that it cannot.
    """
    if family in _NO_LAYOUT:
        raise UserError(f"{_NO_LAYOUT[family]}; {_REMEDY}")
    kinds = {"swin": "swin", "swin-v2": "swinv2", "bit": "bit"}
    kind = kinds.get(family) or _vit_layout(model, preset)
    holds = dict(_HOLDS[_SAME_TABLE.get(kind, kind)])
    fields: Any = model
    if kind.startswith("dinov2"):
        holds["pool"] = ("cls_mean",) if fields.num_classes else ("cls", "cls_mean")
    if kind == "vit" and fields.num_classes:
        holds["representation_size"] = (None,)
    for name, allowed in holds.items():
        if (value := getattr(fields, name)) not in allowed:
            shown = " or ".join(map(repr, allowed))
            raise UserError(
                f"transformers' {kind} has no {name}={value!r}, only {shown}; "
                f"{_REMEDIES.get(name) or _REMEDIES.get(kind, _REMEDY)}"
            )
    return kind


def _vit_layout(model: Any, preset: str) -> str:
    if model.distillation:
        return "deit"
    if model.num_registers:
        return "dinov2_with_registers"
    folded = preset == "dinov2" and not model.num_classes
    scaled = model.layer_scale is not None or model.mlp == "swiglu"
    if model.pool == "cls_mean" or scaled or (folded and model.pool == "cls"):
        return "dinov2"
    if model.pool == "mean":
        return "siglip" if model.num_classes else "siglip_vision_model"
    if model.pool == "map":
        if model.num_classes:
            raise UserError(
                "transformers has no classifier on the attention pooling of SigLIP; "
                "train the head with pool='mean', write the trunk alone, with "
                "num_classes=0, or another form"
            )
        return "siglip_vision_model"
    return "vit"


def check_sizes(kind: str, model: nn.Module, image: Sequence[int]) -> None:
    """Checks that the sizes of a model are among those of a layout.

    Raises:
      UserError: They are not.
    """
    fields: Any = model
    sizes = {"image": image_size(fields, image)}
    sizes |= {"patch": getattr(fields, "patch_size", 1)}
    sizes |= {"window": getattr(fields, "window_size", 1)}
    for what, size in sizes.items():
        if kind not in ("vit", "deit", "bit") and both(size)[0] != both(size)[1]:
            raise UserError(
                f"transformers' {kind} has square sizes only, but the {what} is "
                f"{both(size)[0]} x {both(size)[1]}; {_REMEDY}"
            )
    if kind.startswith("dinov2") and mlp_ratio(fields) is None:
        raise UserError(
            f"transformers' {kind} has an MLP of a whole multiple of the width, but "
            f"mlp_dim is {fields.mlp_dim} for width {fields.width}; {_REMEDY}"
        )
    if kind in ("swin", "swinv2"):
        size, window = both(sizes["image"]), both(fields.window_size)
        stages = len(fields.depths)
        pyramid = Pyramid(size, both(fields.patch_size), window, stages)
        pyramid.check(size)  # theirs attends to padding
        if kind == "swin" and set(pyramid.windows) != {window}:
            raise UserError(
                f"transformers' swin has windows of {window[0]} in every stage, but "
                f"these shrink to {pyramid.windows[-1][0]}; {_REMEDY}"
            )


def mlp_ratio(fields: Any) -> int | None:
    """Returns the whole `mlp_ratio` that gives DINOv2 an MLP's width; None if none."""
    for ratio in range(1, 33):
        hidden = fields.width * ratio
        if fields.mlp == "swiglu":
            # Two thirds, rounded up to a multiple of 8, as the library has it.
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == fields.mlp_dim:
            return ratio
    return None


def image_size(fields: Any, image: Sequence[int]) -> Any:
    """Returns the size of images that a model is made for."""
    resolution = getattr(fields, "resolution", None)
    return tuple(image[:2]) if resolution is None else resolution

# SPDX-License-Identifier: Apache-2.0
"""Names of timm, each as fields of our models.

Those of timm 1.0 whose weights have a place in a model of ours. Of ViT there are more
(`vit_*_gap_*`, ...), which differ from one of these in arguments alone.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.models import catalog

# What timm gives a ViT that is not asked for anything.
PLAIN_VIT: Mapping[str, Any] = {
    "pool": "cls",
    "pool_norm": "before",
    "class_token": None,
    "class_position": True,
    "distillation": False,
    "num_registers": 0,
    "layer_scale": None,
    "qk_norm": False,
    "mlp": "mlp",
    "positions": "learned",
    "gelu": "erf",
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A name of timm.

    Attributes:
      name: For `timm.create_model`.
      family: Key of `vit_jax.models.FAMILIES`.
      side: Of the images, in pixels.
      fields: Of our model.
    """

    name: str
    family: str
    side: int
    fields: Mapping[str, Any]


# Stem of a name, which the side of the images ends; row; sides.
_NAMES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("vit_tiny_patch16", "ViT-Ti/16", (224, 384)),
    ("vit_small_patch8", "ViT-S/8", (224,)),
    ("vit_small_patch16", "ViT-S/16", (224, 384)),
    ("vit_small_patch32", "ViT-S/32", (224, 384)),
    ("vit_base_patch8", "ViT-B/8", (224,)),
    ("vit_base_patch16", "ViT-B/16", (224, 384)),
    ("vit_base_patch32", "ViT-B/32", (224, 384)),
    ("vit_large_patch14", "ViT-L/14", (224,)),
    ("vit_large_patch16", "ViT-L/16", (224, 384)),
    ("vit_large_patch32", "ViT-L/32", (224, 384)),
    ("vit_huge_patch14", "ViT-H/14", (224,)),
    ("vit_giant_patch14", "ViT-g/14", (224,)),
    ("vit_gigantic_patch14", "ViT-G/14", (224,)),
    ("vit_tiny_r_s16_p8", "R+ViT-Ti/16", (224, 384)),
    ("vit_small_r26_s32", "R26+ViT-S/32", (224, 384)),
    ("vit_base_r26_s32", "R26+ViT-B/32", (224,)),
    ("vit_base_r50_s16", "R50+ViT-B/16", (224, 384)),
    ("vit_large_r50_s32", "R50+ViT-L/32", (224, 384)),
)


def _architectures() -> Iterator[Architecture]:
    for name, row, sides in _NAMES:
        for side in sides:
            yield _architecture(f"{name}_{side}", row, side)
    for size in ("s16", "s32", "b16", "b32", "l16", "l32"):
        row = f"Mixer-{size[0].upper()}/{size[1:]}"
        yield _architecture(f"mixer_{size}_224", row, 224)
    for size, side in (
        ("50x1", 224),
        ("50x3", 448),
        ("101x1", 448),
        ("101x3", 448),
        ("152x2", 224),
        ("152x4", 480),
    ):
        yield _architecture(f"resnetv2_{size}_bit", f"BiT-R{size}", side)
    yield from _deits()
    yield from _later_vits()
    yield from _swins()


def _deits() -> Iterator[Architecture]:
    for name, row, sides in (
        ("tiny", "ViT-Ti/16", (224,)),
        ("small", "ViT-S/16", (224,)),
        ("base", "ViT-B/16", (224, 384)),
    ):
        for side in sides:
            full = f"deit_{name}_distilled_patch16_{side}"
            yield _architecture(full, row, side, distillation=True)
    for name, row, sides in (
        ("small_patch16", "ViT-S/16", (224, 384)),
        ("medium_patch16", "ViT-M/16", (224,)),
        ("base_patch16", "ViT-B/16", (224, 384)),
        ("large_patch16", "ViT-L/16", (224, 384)),
        ("huge_patch14", "ViT-H/14", (224,)),
    ):
        for side in sides:
            yield _architecture(
                f"deit3_{name}_{side}",
                row,
                side,
                layer_scale=1e-6,
                class_position=False,
            )


def _later_vits() -> Iterator[Architecture]:
    scaled = {"side": 518, "layer_scale": 1e-5}
    giant = {"mlp": "swiglu", "mlp_dim": 4096, "num_heads": 24}
    for name, size, more in (
        ("small", "S", {}),
        ("base", "B", {}),
        ("large", "L", {}),
        ("giant", "g-opt", giant),
    ):
        row, stem = f"ViT-{size}/14", f"vit_{name}_patch14"
        yield _architecture(f"{stem}_dinov2", row, **scaled, **more)
        yield _architecture(
            f"{stem}_reg4_dinov2",
            row,
            **scaled,
            **more,
            num_registers=4,
            class_position=False,
        )
    for name, size in (("small", "S"), ("base", "B"), ("large", "L")):
        yield _architecture(
            f"vit_{name}_patch16_rope_224",
            f"ViT-{size}/16",
            224,
            positions="rotary2d",
            layer_scale=1e-5,
        )
    for name, row, sides in (
        ("base_patch16", "ViT-B/16", (224, 256, 384, 512)),
        ("large_patch16", "ViT-L/16", (256, 384, 512)),
        ("so400m_patch14", "ViT-So400m/14", (224, 378, 384)),
        ("base_patch32", "ViT-B/32", (256,)),
        ("so400m_patch16", "ViT-So400m/16", (256, 384, 512)),
        ("giantopt_patch16", "ViT-g-opt/16", (256, 384)),
    ):
        # Sizes that only SigLIP 2 has run with the activation that it was trained with.
        second = name in ("base_patch32", "so400m_patch16", "giantopt_patch16")
        for side in sides:
            tanh = second or (name, side) == ("large_patch16", 512)
            yield _architecture(
                f"vit_{name}_siglip_{side}",
                row,
                side,
                pool="map",
                gelu="tanh" if tanh else "erf",
            )


def _swins() -> Iterator[Architecture]:
    names = {"T": "tiny", "S": "small", "B": "base", "L": "large"}
    for row in catalog.VARIANTS:
        version, size, *rest = [*row.name.split("-"), ""]
        if version not in ("Swin", "SwinV2") or size not in names or "c24" in rest:
            continue
        stem = {"Swin": f"swin_{names[size]}_patch4", "SwinV2": f"swinv2_{names[size]}"}
        window, side = f"{row.fields['window_size']}", f"{row.resolution}"
        if "pretrained_window_size" in row.fields:
            window, side = f"12to{window}", f"192to{side}"
        name = f"{stem[version]}_window{window}_{side}"
        yield _architecture(name, row.name, row.resolution)


def _architecture(name: str, row: str, side: int, **fields: Any) -> Architecture:
    variant = catalog.find(row)
    base = PLAIN_VIT if variant.family == "vit" else {}
    if variant.family in ("hybrid", "bit"):
        base = {"width_factor": 1}
    if variant.family in ("swin", "swin-v2"):
        base = {"patch_size": 4, "mlp_ratio": 4}
    merged = {**base, **variant.fields, **fields}
    return Architecture(name, variant.family, side, merged)


ARCHITECTURES: Mapping[str, Architecture] = {
    each.name: each for each in _architectures()
}

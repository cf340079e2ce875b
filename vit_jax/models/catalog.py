# SPDX-License-Identifier: Apache-2.0
"""The zoo as a table: name, family, sizes, parameter count, preset, paper tables.

Any patch size goes with a ViT, Axial-ViT or Mixer size ("ViT-B/20"); the rows are the
models whose count is published or that papers and other code have. Nothing here is
computed but the lookup.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import unknown

# Table 1 of arXiv:2010.11929 (B, L, H), Table 2 of arXiv:2106.04560 (g, G) and the
# configs of big_vision.
VIT_SIZES: Mapping[str, Mapping[str, int]] = {
    "mu": {"width": 32, "depth": 1, "mlp_dim": 128, "num_heads": 2},
    "Ti": {"width": 192, "depth": 12, "mlp_dim": 768, "num_heads": 3},
    "S": {"width": 384, "depth": 12, "mlp_dim": 1536, "num_heads": 6},
    "M": {"width": 512, "depth": 12, "mlp_dim": 2048, "num_heads": 8},
    "B": {"width": 768, "depth": 12, "mlp_dim": 3072, "num_heads": 12},
    "L": {"width": 1024, "depth": 24, "mlp_dim": 4096, "num_heads": 16},
    "So400m": {"width": 1152, "depth": 27, "mlp_dim": 4304, "num_heads": 16},
    "H": {"width": 1280, "depth": 32, "mlp_dim": 5120, "num_heads": 16},
    "g": {"width": 1408, "depth": 40, "mlp_dim": 6144, "num_heads": 16},
    "g-opt": {"width": 1536, "depth": 40, "mlp_dim": 6144, "num_heads": 16},
    "G": {"width": 1664, "depth": 48, "mlp_dim": 8192, "num_heads": 16},
    "G-opt": {"width": 1536, "depth": 48, "mlp_dim": 8192, "num_heads": 16},
    "e": {"width": 1792, "depth": 56, "mlp_dim": 15360, "num_heads": 16},
}

# Units of the stages of a ResNet, by its depth (arXiv:1512.03385, arXiv:1912.11370).
RESNET_STAGES: Mapping[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}

# Table 1 of arXiv:2105.01601.
MIXER_SIZES: Mapping[str, Mapping[str, int]] = {
    "S": {"width": 512, "depth": 8, "token_mlp_dim": 256, "mlp_dim": 2048},
    "B": {"width": 768, "depth": 12, "token_mlp_dim": 384, "mlp_dim": 3072},
    "L": {"width": 1024, "depth": 24, "token_mlp_dim": 512, "mlp_dim": 4096},
    "H": {"width": 1280, "depth": 32, "token_mlp_dim": 640, "mlp_dim": 5120},
}

# Section 3.3 of arXiv:2103.14030; H and G are from arXiv:2111.09883, with heads that
# are 32 wide like those of the others.
SWIN_SIZES: Mapping[str, Mapping[str, Any]] = {
    "T": {"width": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24)},
    "S": {"width": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "B": {"width": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
    "L": {"width": 192, "depths": (2, 2, 18, 2), "num_heads": (6, 12, 24, 48)},
    "H": {"width": 352, "depths": (2, 2, 18, 2), "num_heads": (11, 22, 44, 88)},
    "G": {"width": 512, "depths": (2, 2, 42, 4), "num_heads": (16, 32, 64, 128)},
}

GOOGLE = "google-research/vision_transformer, models_test.py"
TIMM = "timm 1.0.31, same sizes"
DERIVED = "derived from the sizes"


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the zoo.

    Attributes:
      name: As users write it.
      family: Key of `vit_jax.models.FAMILIES`.
      fields: Fields of the family that the name fixes.
      parameters: Their number for 1000 classes at `resolution`, with class token and
        without representation layer; None for a patch size that has no row.
      source: Where that number is published.
      tables: Tables of arXiv:2010.11929 with results of this model.
      preset: Key of `presets.PRESETS` that is used unless another is asked for.
      resolution: Side of the images, in pixels, that the model is usually made for.
    """

    name: str
    family: str
    fields: Mapping[str, Any]
    parameters: int | None = None
    source: str = DERIVED
    tables: tuple[int, ...] = ()
    preset: str = "google-vit"
    resolution: int = 224


def _vit(
    size: str,
    patch_size: int,
    parameters: int | None = None,
    source: str = DERIVED,
    tables: tuple[int, ...] = (),
) -> Variant:
    fields = {**VIT_SIZES[size], "patch_size": patch_size}
    name = f"ViT-{size}/{patch_size}"
    return Variant(name, "vit", fields, parameters, source, tables)


def _axial(size: str, patch_size: int, parameters: int | None = None) -> Variant:
    fields = {**VIT_SIZES[size], "patch_size": patch_size}
    name = f"Axial-ViT-{size}/{patch_size}"
    return Variant(name, "axial-vit", fields, parameters, preset="axial-vit")


def _hybrid(
    resnet: str,
    stages: tuple[int, ...],
    vit: str,
    parameters: int,
    source: str = DERIVED,
    tables: tuple[int, ...] = (),
    patch_size: int = 1,
) -> Variant:
    size, _ = vit.split("/")
    fields = {**VIT_SIZES[size], "stages": stages, "patch_size": patch_size}
    name = f"{resnet}+ViT-{vit}"
    return Variant(
        name, "hybrid", fields, parameters, source, tables, preset="google-hybrid"
    )


def _bit(
    depth: int, width_factor: int, parameters: int, tables: tuple[int, ...] = ()
) -> Variant:
    fields = {"stages": RESNET_STAGES[depth], "width_factor": width_factor}
    name = f"BiT-R{depth}x{width_factor}"
    return Variant(name, "bit", fields, parameters, TIMM, tables, preset="bit")


def _mixer(
    size: str, patch_size: int, parameters: int | None = None, source: str = DERIVED
) -> Variant:
    fields = {**MIXER_SIZES[size], "patch_size": patch_size}
    name = f"Mixer-{size}/{patch_size}"
    return Variant(name, "mixer", fields, parameters, source, preset="mixer")


def _swin(
    name: str,
    window_size: int,
    resolution: int,
    parameters: int,
    other: Mapping[str, Any] | None = None,
    source: str = TIMM,
) -> Variant:
    """Makes a row of either version; `name` is such as "Swin-B-w12-384"."""
    family, size = name.split("-")[:2]
    fields = {**SWIN_SIZES[size], **(other or {})}
    fields |= {"window_size": window_size, "resolution": resolution}
    family = {"Swin": "swin", "SwinV2": "swin-v2"}[family]
    preset = {"swin": "swin-v1"}.get(family, family)
    if resolution == 384:
        preset += "-384"
    return Variant(name, family, fields, parameters, source, (), preset, resolution)


# Heads of width 24 instead of 32.
_C24 = {"num_heads": (4, 8, 16, 32)}
# Windows of each stage in the pre-training at 192 pixels, where all transfers start.
_TRANSFER = {"pretrained_window_size": (12, 12, 12, 6)}
_EXTRA_NORM = {"extra_norm_every": 6}

VARIANTS: tuple[Variant, ...] = (
    _vit("mu", 16, 76_712),
    _vit("Ti", 16, 5_717_416, GOOGLE),
    _vit("S", 8, 22_055_272, TIMM),
    _vit("S", 14, 22_004_584),
    _vit("S", 16, 22_050_664, GOOGLE),
    _vit("S", 32, 22_878_952, GOOGLE),
    _vit("M", 16, 38_837_736),
    _vit("M", 32, 39_942_120),
    _vit("B", 8, 86_576_872, GOOGLE),
    _vit("B", 14, 86_475_496),
    _vit("B", 16, 86_567_656, GOOGLE, (5, 6, 8)),
    _vit("B", 32, 88_224_232, GOOGLE, (5, 6)),
    _vit("L", 14, 304_203_752, TIMM),
    _vit("L", 16, 304_326_632, GOOGLE, (2, 5, 6, 9)),
    _vit("L", 32, 306_535_400, GOOGLE, (5, 6)),
    _vit("So400m", 14, 413_597_656),
    _vit("H", 14, 632_045_800, GOOGLE, (2, 5, 6, 9)),
    _vit("g", 14, 1_012_611_432, TIMM),
    _vit("g-opt", 14, 1_136_101_864),
    _vit("G", 14, 1_844_440_680, TIMM),
    _vit("G-opt", 14, 1_664_842_216),
    _vit("e", 14, 3_807_214_312),
    # Each block attends and has an MLP twice, along rows and along columns.
    _axial("B", 16, 171_620_584),
    _axial("B", 32, 173_277_160),
    # The stem alone: its stride of 4, times a patch of 8, is 32 and not 16.
    _hybrid("R", (), "Ti/16", 6_337_704, GOOGLE, patch_size=8),
    _hybrid("R26", RESNET_STAGES[26], "S/32", 36_431_912, GOOGLE),
    _hybrid("R26", RESNET_STAGES[26], "B/32", 101_383_976, GOOGLE),
    # Form (ii) of the paper: the units of stage 4 put into stage 3.
    _hybrid("R50", (3, 4, 9), "B/16", 98_659_112, GOOGLE, (6,)),
    _hybrid("R50", RESNET_STAGES[50], "B/32", 110_945_832, tables=(6,)),
    _hybrid("R50", (3, 4, 9), "L/16", 316_483_624, tables=(6,)),
    _hybrid("R50", RESNET_STAGES[50], "L/32", 328_994_856, GOOGLE, (6,)),
    _bit(50, 1, 25_549_352, (6, 7)),
    _bit(50, 2, 97_988_712, (6,)),
    _bit(50, 3, 217_319_080),
    _bit(101, 1, 44_541_480, (6,)),
    _bit(101, 3, 387_934_888),
    _bit(152, 1, 60_185_128, (6,)),
    _bit(152, 2, 236_335_208, (6, 7)),
    _bit(152, 4, 936_533_224, (2,)),
    _bit(200, 3, 568_633_000, (6,)),
    _mixer("S", 16, 18_528_264, TIMM),
    _mixer("S", 32, 19_104_624, TIMM),
    _mixer("B", 16, 59_880_472, GOOGLE),
    _mixer("B", 32, 60_293_428, GOOGLE),
    _mixer("L", 16, 208_196_168, GOOGLE),
    _mixer("L", 32, 206_939_264, TIMM),
    _mixer("H", 14, 432_350_952),
    _swin("Swin-T", 7, 224, 28_288_354),
    _swin("Swin-T-c24", 8, 256, 28_306_432, _C24, DERIVED),
    _swin("Swin-S", 7, 224, 49_606_258),
    _swin("Swin-B", 7, 224, 87_768_224),
    _swin("Swin-B-w12-384", 12, 384, 87_903_584),
    _swin("Swin-L", 7, 224, 196_532_476),
    _swin("Swin-L-w12-384", 12, 384, 196_735_516),
    _swin("SwinV2-T", 8, 256, 28_347_154),
    _swin("SwinV2-T-w16", 16, 256, 28_347_154),
    _swin("SwinV2-S", 8, 256, 49_728_418),
    _swin("SwinV2-S-w16", 16, 256, 49_728_418),
    _swin("SwinV2-B", 8, 256, 87_918_816),
    _swin("SwinV2-B-w16", 16, 256, 87_918_816),
    _swin("SwinV2-B-w12-192", 12, 192, 87_918_816),
    _swin("SwinV2-B-w12to16", 16, 256, 87_918_816, _TRANSFER),
    _swin("SwinV2-B-w12to24-384", 24, 384, 87_918_816, _TRANSFER),
    _swin("SwinV2-L-w12-192", 12, 192, 196_739_932),
    _swin("SwinV2-L-w12to16", 16, 256, 196_739_932, _TRANSFER),
    _swin("SwinV2-L-w12to24-384", 24, 384, 196_739_932, _TRANSFER),
    # Published as 658 M and 3.0 B.
    _swin("SwinV2-H", 12, 192, 658_036_370, _EXTRA_NORM, DERIVED),
    _swin("SwinV2-G", 12, 192, 3_001_940_680, _EXTRA_NORM, DERIVED),
)

_BY_NAME = {variant.name: variant for variant in VARIANTS}


def find(name: str) -> Variant:
    """Returns the row of a model name, or makes one for another patch size.

    Raises:
      UserError: A name that is none.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    match = re.fullmatch(r"(Axial-ViT|ViT|Mixer)-([\w-]+)/([1-9]\d*)", name)
    if match:
        family, size, patch_size = match[1], match[2], int(match[3])
        if family == "ViT" and size in VIT_SIZES:
            return _vit(size, patch_size)
        if family == "Axial-ViT" and size in VIT_SIZES:
            return _axial(size, patch_size)
        if family == "Mixer" and size in MIXER_SIZES:
            return _mixer(size, patch_size)
    raise unknown("model", name, _BY_NAME)

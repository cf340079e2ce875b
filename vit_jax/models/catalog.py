# SPDX-License-Identifier: Apache-2.0
"""The zoo as a table: name, family, sizes, parameter count, preset, paper tables.

Any patch size goes with a ViT size ("ViT-B/20"); the rows are the models whose count
is published or that other code offers. Nothing here is computed but the lookup.
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
)

_BY_NAME = {variant.name: variant for variant in VARIANTS}


def find(name: str) -> Variant:
    """Returns the row of a model name, or makes one for another patch size.

    Raises:
      UserError: A name that is none.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    match = re.fullmatch(r"ViT-([\w-]+)/([1-9]\d*)", name)
    if match and match[1] in VIT_SIZES:
        return _vit(match[1], int(match[2]))
    raise unknown("model", name, _BY_NAME)

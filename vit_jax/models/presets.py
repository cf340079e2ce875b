# SPDX-License-Identifier: Apache-2.0
"""Numerics and preprocessing of each family of checkpoints, as a table.

Weights mean what they mean only with the epsilon, the activation, the place of the
positions and the pixel range that they were trained with.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import unknown

Rgb = tuple[float, float, float]

HALF: tuple[Rgb, Rgb] = ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
IMAGENET: tuple[Rgb, Rgb] = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


# Swin, in the authors' code and in its ports.
SWIN: Mapping[str, Any] = {"norm_eps": 1e-5, "gelu": "erf"}
SMALL_CROP = (
    'decode|resize_small({larger}, method="bicubic", antialias=True)'
    '|central_crop({size})|normalize("imagenet")'
)
SQUARE = 'decode|resize({size}, method="bicubic", antialias=True)|normalize("imagenet")'


@dataclasses.dataclass(frozen=True)
class Preset:
    """How the checkpoints of one origin are run.

    Attributes:
      family: Key of `vit_jax.models.FAMILIES` that the fields belong to.
      fields: Fields of the model.
      pixels: Mean and standard deviation on 0...255 that the input is normalised with.
      ops: Evaluation preprocessing; `{size}` is the side of the model's images and
        `{larger}` that side divided by `crop_fraction`.
      crop_fraction: Side of the crop relative to the resized image.
      position_resize: How the origin resizes a position table to another grid:
        "zoom" (SciPy, order 1: linear with corners aligned), "linear" (JAX, half-pixel,
        antialias), "bicubic" (torch, half-pixel, a = -0.75), "bicubic-antialias"
        (torch, half-pixel, a = -0.5), "geometric" (linear on a grid that grows
        geometrically from the middle) or "none" (there is no table, or it is not
        resized).
    """

    family: str
    fields: Mapping[str, Any]
    pixels: tuple[Rgb, Rgb]
    ops: str
    position_resize: str
    crop_fraction: float = 1.0

    def evaluation_ops(self, size: int) -> str:
        """Returns the op string for images of side `size`."""
        return self.ops.format(size=size, larger=int(size / self.crop_fraction))


PRESETS: Mapping[str, Preset] = {
    # Files of the paper and of AugReg (arXiv:2106.10270).
    "google-vit": Preset(
        family="vit",
        fields={"norm_eps": 1e-6, "gelu": "tanh", "class_position": True},
        pixels=HALF,
        ops="decode|resize({size})|value_range(-1, 1)",
        position_resize="zoom",
    ),
    "big-vision-vit": Preset(
        family="vit",
        fields={
            "norm_eps": 1e-6,
            "gelu": "tanh",
            "class_position": False,
            "position_stddev": None,
        },
        pixels=HALF,
        ops="decode|resize_small({larger})|central_crop({size})|value_range(-1, 1)",
        position_resize="zoom",
        crop_fraction=0.875,
    ),
    # SigLIP and SigLIP 2 (arXiv:2303.15343): attention pooling, no class token.
    "siglip": Preset(
        family="vit",
        fields={
            "norm_eps": 1e-6,
            "gelu": "tanh",
            "class_position": False,
            "position_stddev": None,
            "pool": "map",
        },
        pixels=HALF,
        ops="decode|resize({size})|value_range(-1, 1)",
        position_resize="zoom",
    ),
    # DeiT III rewritten for big_vision: first layer folded to -1...1.
    "deit3-bv": Preset(
        family="vit",
        fields={"norm_eps": 1e-6, "gelu": "tanh", "class_position": False},
        pixels=HALF,
        ops="decode|resize_small({larger})|central_crop({size})|value_range(-1, 1)",
        position_resize="zoom",
        crop_fraction=0.875,
    ),
    # FlexiViT (arXiv:2212.08013), made for images of 240 pixels.
    "flexivit": Preset(
        family="vit",
        fields={
            "norm_eps": 1e-6,
            "gelu": "tanh",
            "class_position": False,
            "pool": "mean",
        },
        pixels=HALF,
        ops="decode|resize({size})|value_range(-1, 1)",
        position_resize="linear",
    ),
    # Weights of timm, which also runs Google's with erf.
    "timm-vit": Preset(
        family="vit",
        fields={"norm_eps": 1e-6, "gelu": "erf", "class_position": True},
        pixels=HALF,
        ops=(
            'decode|resize_small({larger}, method="bicubic", antialias=True)'
            "|central_crop({size})|value_range(-1, 1)"
        ),
        position_resize="bicubic-antialias",
        crop_fraction=0.9,
    ),
    # Weights trained with ImageNet statistics, LayerScale folded into the kernels.
    "dinov2": Preset(
        family="vit",
        fields={"norm_eps": 1e-6, "gelu": "erf", "class_position": True},
        pixels=IMAGENET,
        ops=(
            'decode|resize_small({larger}, method="bicubic", antialias=True)'
            '|central_crop({size})|normalize("imagenet")'
        ),
        position_resize="bicubic",
        crop_fraction=0.875,
    ),
    # The epsilon is the default of transformers; a config.json may say otherwise.
    "hf-vit": Preset(
        family="vit",
        fields={"norm_eps": 1e-12, "gelu": "erf", "class_position": True},
        pixels=HALF,
        ops="decode|resize({size}, antialias=True)|value_range(-1, 1)",
        position_resize="bicubic",
    ),
    # The paper tells nothing about it that is not ViT's.
    "axial-vit": Preset(
        family="axial-vit",
        fields={"norm_eps": 1e-6, "gelu": "tanh"},
        pixels=HALF,
        ops="decode|resize({size})|value_range(-1, 1)",
        position_resize="zoom",
    ),
    # Hybrids of the paper and of AugReg.
    "google-hybrid": Preset(
        family="hybrid",
        fields={
            "norm_eps": 1e-6,
            "gelu": "tanh",
            "class_position": True,
            "conv_eps": 1e-5,
            "conv_eps_form": "std",
            "group_norm_eps": 1e-6,
        },
        pixels=HALF,
        ops="decode|resize({size})|value_range(-1, 1)",
        position_resize="zoom",
    ),
    "timm-hybrid": Preset(
        family="hybrid",
        fields={
            "norm_eps": 1e-6,
            "gelu": "erf",
            "class_position": True,
            "conv_eps": 1e-8,
            "conv_eps_form": "var",
            "group_norm_eps": 1e-5,
        },
        pixels=HALF,
        ops=(
            'decode|resize_small({larger}, method="bicubic", antialias=True)'
            "|central_crop({size})|value_range(-1, 1)"
        ),
        position_resize="bicubic-antialias",
        crop_fraction=0.9,
    ),
    # The release of Big Transfer (arXiv:1912.11370).
    "bit": Preset(
        family="bit",
        fields={
            "conv_eps": 1e-10,
            "conv_eps_form": "var",
            "norm_eps": 1e-5,
            "pool_padding": "zero",
        },
        pixels=HALF,
        ops="decode|resize({size})|value_range(-1, 1)",
        position_resize="none",
    ),
    "bit-big-vision": Preset(
        family="bit",
        fields={
            "conv_eps": 1e-10,
            "conv_eps_form": "var",
            "norm_eps": 1e-5,
            "pool_padding": "-inf",
        },
        pixels=HALF,
        ops="decode|resize_small({larger})|central_crop({size})|value_range(-1, 1)",
        position_resize="none",
        crop_fraction=0.875,
    ),
    "timm-bit": Preset(
        family="bit",
        fields={
            "conv_eps": 1e-8,
            "conv_eps_form": "var",
            "norm_eps": 1e-5,
            "pool_padding": "zero",
        },
        pixels=HALF,
        ops=(
            'decode|resize_small({larger}, method="bilinear", antialias=True)'
            "|central_crop({size})|value_range(-1, 1)"
        ),
        position_resize="none",
        crop_fraction=0.875,
    ),
    # The pixels are those of training; the processor file of a checkpoint may differ.
    "hf-bit": Preset(
        family="bit",
        fields={
            "conv_eps": 1e-8,
            "conv_eps_form": "var",
            "norm_eps": 1e-5,
            "pool_padding": "zero",
        },
        pixels=HALF,
        ops=(
            'decode|resize_small({larger}, method="bicubic", antialias=True)'
            "|central_crop({size})|value_range(-1, 1)"
        ),
        position_resize="none",
    ),
    # Files of MLP-Mixer (arXiv:2105.01601).
    "mixer": Preset(
        family="mixer",
        fields={"norm_eps": 1e-6, "gelu": "tanh"},
        pixels=HALF,
        ops="decode|resize({size})|value_range(-1, 1)",
        position_resize="none",
    ),
    "timm-mixer": Preset(
        family="mixer",
        fields={"norm_eps": 1e-6, "gelu": "erf"},
        pixels=HALF,
        ops=(
            'decode|resize_small({larger}, method="bicubic", antialias=True)'
            "|central_crop({size})|value_range(-1, 1)"
        ),
        position_resize="none",
        crop_fraction=0.875,
    ),
    # Files of microsoft/Swin-Transformer. Models for 384 pixels see the whole image.
    "swin-v1": Preset(
        family="swin",
        fields=SWIN,
        pixels=IMAGENET,
        ops=SMALL_CROP,
        position_resize="bicubic",
        crop_fraction=0.875,
    ),
    "swin-v1-384": Preset(
        family="swin",
        fields=SWIN,
        pixels=IMAGENET,
        ops=SQUARE,
        position_resize="bicubic",
    ),
    "timm-swin-v1": Preset(
        family="swin",
        fields=SWIN,
        pixels=IMAGENET,
        ops=SMALL_CROP,
        position_resize="geometric",
        crop_fraction=0.9,
    ),
    # The processor file of a checkpoint may say otherwise.
    "hf-swin-v1": Preset(
        family="swin",
        fields=SWIN,
        pixels=IMAGENET,
        ops=SQUARE,
        position_resize="none",
    ),
    "swin-v2": Preset(
        family="swin-v2",
        fields=SWIN,
        pixels=IMAGENET,
        ops=SMALL_CROP,
        position_resize="none",
        crop_fraction=0.875,
    ),
    "swin-v2-384": Preset(
        family="swin-v2",
        fields=SWIN,
        pixels=IMAGENET,
        ops=SQUARE,
        position_resize="none",
    ),
    "timm-swin-v2": Preset(
        family="swin-v2",
        fields=SWIN,
        pixels=IMAGENET,
        ops=SMALL_CROP,
        position_resize="none",
        crop_fraction=0.9,
    ),
    "hf-swin-v2": Preset(
        family="swin-v2",
        fields=SWIN,
        pixels=IMAGENET,
        ops=SQUARE,
        position_resize="none",
    ),
}


def find(name: str) -> Preset:
    """Returns the preset of a name.

    Raises:
      UserError: A name that is none.
    """
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]

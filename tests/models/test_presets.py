# SPDX-License-Identifier: Apache-2.0
import dataclasses

import numpy as np
import pytest

from vit_jax.data import pixels
from vit_jax.errors import UserError
from vit_jax.models import FAMILIES, presets


@pytest.mark.parametrize(
    ("name", "norm_eps", "gelu", "class_position", "position_resize"),
    [
        ("google-vit", 1e-6, "tanh", True, "zoom"),
        ("big-vision-vit", 1e-6, "tanh", False, "zoom"),
        ("siglip", 1e-6, "tanh", False, "zoom"),
        ("deit3-bv", 1e-6, "tanh", False, "zoom"),
        ("flexivit", 1e-6, "tanh", False, "linear"),
        ("timm-vit", 1e-6, "erf", True, "bicubic-antialias"),
        ("dinov2", 1e-6, "erf", True, "bicubic"),
        ("hf-vit", 1e-12, "erf", True, "bicubic"),
    ],
)
def test_numerics_are_those_of_the_origin(
    name, norm_eps, gelu, class_position, position_resize
):
    preset = presets.find(name)
    assert preset.fields["norm_eps"] == norm_eps
    assert preset.fields["gelu"] == gelu
    assert preset.fields["class_position"] == class_position
    assert preset.position_resize == position_resize


@pytest.mark.parametrize("name", presets.PRESETS)
def test_fields_of_a_preset_are_fields_of_its_family(name):
    preset = presets.find(name)
    known = {field.name for field in dataclasses.fields(FAMILIES[preset.family])}
    assert set(preset.fields) <= known


def white_and_black(name, side=32):
    ops = presets.find(name).evaluation_ops(side)
    images = [np.full((40, 50, 3), level, np.uint8) for level in (255, 0)]
    results = [pixels.preprocess(image, ops) for image in images]
    assert {result.shape for result in results} == {(side, side, 3)}
    return [result[0, 0] for result in results]


# DINOv2 and Swin were trained with the statistics of ImageNet, all others with 127.5.
IMAGENET = {name for name in presets.PRESETS if "swin" in name or name == "dinov2"}


@pytest.mark.parametrize("name", sorted(set(presets.PRESETS) - IMAGENET))
def test_white_and_black_are_one_and_minus_one(name):
    white, black = white_and_black(name)
    np.testing.assert_allclose(white, [1, 1, 1], atol=1e-6)
    np.testing.assert_allclose(black, [-1, -1, -1], atol=1e-6)


@pytest.mark.parametrize("name", sorted(IMAGENET))
def test_white_and_black_of_imagenet_statistics_are_the_literal_values(name):
    white, black = white_and_black(name)
    np.testing.assert_allclose(white, [2.249, 2.429, 2.640], atol=1e-3)
    np.testing.assert_allclose(black, [-2.118, -2.036, -1.804], atol=1e-3)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_pixel_statistics_say_what_the_ops_do(name):
    mean, std = presets.find(name).pixels
    white, black = white_and_black(name)
    np.testing.assert_allclose(white, (255 - np.asarray(mean)) / std, atol=1e-5)
    np.testing.assert_allclose(black, -np.asarray(mean) / std, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "side", "op"),
    [
        ("google-vit", 384, "|resize(384)|"),
        ("big-vision-vit", 224, "|resize_small(256)|central_crop(224)|"),
        ("timm-vit", 224, "|resize_small(248, "),
        ("dinov2", 224, "|resize_small(256, "),
        ("swin-v1", 224, "|resize_small(256, "),
        ("swin-v2", 256, "|resize_small(292, "),
        ("swin-v2-384", 384, '|resize(384, method="bicubic", antialias=True)|'),
        ("timm-swin-v1", 224, "|resize_small(248, "),
    ],
)
def test_evaluation_resizes_as_the_origin_does(name, side, op):
    assert op in presets.find(name).evaluation_ops(side)


@pytest.mark.parametrize("name", [n for n in presets.PRESETS if "swin" in n])
def test_numerics_of_swin_are_those_of_the_authors(name):
    preset = presets.find(name)
    assert preset.fields == {"norm_eps": 1e-5, "gelu": "erf"}
    assert preset.family == ("swin" if "v1" in name else "swin-v2")


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("swin-v1", "bicubic"),
        ("timm-swin-v1", "geometric"),
        ("hf-swin-v1", "none"),
        ("swin-v2", "none"),
    ],
)
def test_tables_of_swin_are_resized_as_the_origin_does(name, method):
    assert presets.find(name).position_resize == method


def test_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="unknown preset 'dino'; did you mean 'dinov2'"):
        presets.find("dino")

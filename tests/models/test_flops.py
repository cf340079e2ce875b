# SPDX-License-Identifier: Apache-2.0
"""Counted operations against lowered programs, and against the paper's costs."""

import collections
import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, flops, list_models, published


def traced(model, size):
    image = jax.ShapeDtypeStruct((1, *size, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def logits(params, image):
        return model.apply({"params": params}, image)[0]

    return jax.jit(logits).trace(params, image)


def shape(text):
    return [int(side) for side in text.split("x")[:-1]]


def product_operations(line):
    """Multiply-adds of a line of StableHLO: outputs times terms of each output."""
    if not re.search(r"stablehlo\.(dot_general|convolution)\b", line):
        return 0
    types = re.search(r": \(tensor<(.*?)>, tensor<(.*?)>\) -> tensor<(.*?)>", line)
    left, right, result = (shape(text) for text in types.groups())
    if "convolution" in line:
        kernel = re.search(r"x\[(.*?)\]->", line)[1].split(", ")
        terms = math.prod(right) // right[kernel.index("o")]
    else:
        contracted = re.search(r"contracting_dims = \[(.*?)\] x", line)[1]
        terms = math.prod(left[int(axis)] for axis in contracted.split(", "))
    return math.prod(result) * terms


def program_multiply_adds(text):
    """Multiply-adds of the products and convolutions of a StableHLO module."""
    own, calls, name = collections.Counter(), collections.defaultdict(list), None
    for line in text.splitlines():
        if started := re.search(r"func\.func \w+ @([\w.]+)\(", line):
            name = started[1]
        own[name] += product_operations(line)
        calls[name] += re.findall(r"\bcall @([\w.]+)\(", line)

    @functools.cache
    def total(name):
        return own[name] + sum(map(total, calls[name]))

    return total("main")


SMALL = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 48}
SWIN = {"width": 16, "depths": (2, 2), "num_heads": (2, 4)}


# Lowered for a TPU: a CPU takes row means as products with ones, which no formula has.
@pytest.mark.parametrize(
    ("name", "size", "overrides"),
    [
        ("ViT-B/16", (224, 224), {}),
        ("ViT-S/32", (384, 320), {}),
        ("ViT-B/16", (32, 64), {**SMALL, "pool": "map", "representation_size": 24}),
        ("ViT-B/16", (32, 64), {**SMALL, "pool": "none", "representation_size": 24}),
        ("ViT-B/16", (32, 64), {**SMALL, "pool": "mean", "num_classes": 0}),
        ("ViT-B/16", (32, 64), {**SMALL, "pool": "map", "num_registers": 3}),
        ("ViT-B/16", (32, 64), {**SMALL, "pool": "cls_mean", "num_registers": 3}),
        ("ViT-B/16", (32, 64), {**SMALL, "distillation": True, "num_registers": 3}),
        ("ViT-B/16", (32, 64), {**SMALL, "mlp": "swiglu", "positions": "relative"}),
        ("Axial-ViT-B/16", (224, 224), {"depth": 1}),
        ("Axial-ViT-B/16", (32, 64), {**SMALL, "representation_size": 24}),
        ("R+ViT-Ti/16", (224, 224), {"depth": 1}),
        ("R26+ViT-S/32", (160, 96), {"depth": 1}),
        ("R50+ViT-B/16", (224, 224), {"depth": 1}),
        ("BiT-R50x1", (224, 224), {}),
        ("BiT-R50x3", (101, 57), {}),
        ("Mixer-B/16", (224, 224), {}),
        ("Mixer-S/32", (96, 64), {"num_classes": 0}),
        ("Swin-T", (224, 224), {}),
        ("Swin-T", (50, 36), {**SWIN, "pad": True}),
        ("Swin-T", (32, 64), {**SWIN, "window_kind": "sliding", "window_size": 3}),
        ("SwinV2-T", (256, 256), {}),
    ],
)
def test_multiply_adds_are_those_of_the_lowered_program(name, size, overrides):
    model = build_model(name, **{"num_classes": 1000, **overrides})
    text = traced(model, size).lower(lowering_platforms=("tpu",)).as_text()
    assert flops.multiply_adds(model, size) == program_multiply_adds(text)


def test_operations_of_a_program_are_counted_by_hand():
    @jax.jit
    def twice(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def program(x, kernel, weights):
        y = twice(x, kernel) + twice(x + 1, kernel)
        return jnp.einsum("bhwc,bcd->bhwd", y, weights)

    args = [jnp.zeros(s) for s in ((2, 6, 5, 3), (3, 2, 3, 4), (2, 4, 7))]
    convolution = (2 * 4 * 4 * 4) * (3 * 2 * 3)
    product = (2 * 4 * 4 * 7) * 4
    text = jax.jit(program).lower(*args).as_text()
    assert program_multiply_adds(text) == 2 * convolution + product


# What XLA adds are norms, softmax, activations and sums, a few per cent; what it leaves
# out are the products with the padding at the border of a map.
@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("ViT-B/16", 0.03),
        ("R26+ViT-S/32", 0.03),
        ("BiT-R50x1", 0.03),
        ("Mixer-B/16", 0.03),
        ("Swin-T", 0.12),
        ("SwinV2-T", 0.12),
    ],
)
def test_costs_are_nearly_those_of_xla(name, tolerance):
    side = catalog.find(name).resolution
    model = build_model(name, num_classes=1000)
    analysis = traced(model, (side, side)).lower().cost_analysis()
    counted = 2 * flops.multiply_adds(model, side)
    assert analysis["flops"] == pytest.approx(counted, rel=tolerance)


# The README of Swin's code counts a multiply-add as one operation, and norms too.
@pytest.mark.parametrize(
    ("name", "side", "giga"),
    [
        ("Swin-T", 224, 4.5),
        ("Swin-S", 224, 8.7),
        ("Swin-B", 224, 15.4),
        ("Swin-B-w12-384", 384, 47.1),
        ("Swin-L", 224, 34.5),
        ("Swin-L-w12-384", 384, 103.9),
    ],
)
def test_multiply_adds_are_the_published_ones(name, side, giga):
    model = build_model(name, num_classes=1000)
    assert flops.multiply_adds(model, side) / 1e9 == pytest.approx(giga, rel=0.02)


def relative_difference(row, **kwargs):
    model = build_model(row.model, num_classes=18_000)
    images = row.epochs * flops.JFT_IMAGES
    return flops.exaflops(model, images, **kwargs) / row.exaflops - 1


@pytest.mark.parametrize("row", published.JFT_COSTS, ids=lambda row: f"{row}")
def test_exaflops_of_the_paper_are_reproduced(row):
    if catalog.find(row.model).family == "bit":
        # The paper's ResNets cost what they would with the stride on the first 1x1.
        assert abs(relative_difference(row)) < 0.055
        assert abs(relative_difference(row, resnet_stride="1x1")) < 0.03
    else:
        assert abs(relative_difference(row)) < 0.03


def test_table_6_has_its_18_rows():
    families = collections.Counter(
        catalog.find(row.model).family for row in published.JFT_COSTS
    )
    assert families == {"vit": 6, "bit": 7, "hybrid": 5}


@pytest.mark.parametrize("name", list_models())
def test_every_row_is_counted_and_grows_with_the_image(name):
    model = build_model(name, num_classes=1000)
    side = catalog.find(name).resolution
    once = flops.multiply_adds(model, side)
    assert once > 0
    # Four times the tokens; attention grows faster, the head not at all.
    assert 3 * once < flops.multiply_adds(model, 2 * side) < 8 * once


def test_a_size_that_the_patch_does_not_divide_is_refused():
    for name in ("ViT-B/16", "R50+ViT-B/16", "Mixer-B/16", "Swin-T"):
        with pytest.raises(UserError, match="height 100 does not divide into patches"):
            flops.multiply_adds(build_model(name, num_classes=10), 100)


def test_an_unknown_module_is_not_counted():
    with pytest.raises(TypeError, match="multiply-adds of Dense are not counted"):
        flops.multiply_adds(nn.Dense(3), 224)

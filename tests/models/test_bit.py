# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.models import build_model, catalog, list_models
from vit_jax.models.bit import RootBlock
from vit_jax.models.layers.std_conv import StdConv


def bit(**overrides):
    return build_model("BiT-R50x1", **{"num_classes": 3, "stages": (2, 1), **overrides})


def images(height=16, width=16, batch=2):
    rng = np.random.default_rng(0)
    pixels = rng.uniform(-1, 1, (batch, height, width, 3))
    return jnp.asarray(pixels, jnp.float32)


def random_params(model):
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images())["params"]
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype), shapes
    )


@functools.cache
def evaluated(**overrides):
    model = bit(**overrides)
    return jax.jit(model.apply)({"params": random_params(model)}, images())[1]


def group_norm(x, layer):
    groups = x.reshape(*x.shape[:3], 32, -1)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    y = centred / np.sqrt((centred**2).mean((1, 2, 4), keepdims=True) + 1e-5)
    return y.reshape(x.shape) * layer["scale"] + layer["bias"]


def standard(kernel):
    centred = kernel - kernel.mean((0, 1, 2))
    return centred / np.sqrt((centred**2).mean((0, 1, 2)) + 1e-10)


def convolve(x, kernel, padding=0):
    """Plain convolution of stride 1, one offset of the kernel after the other."""
    side = kernel.shape[0]
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    h, w = x.shape[1] - side + 1, x.shape[2] - side + 1
    return sum(
        x[:, i : i + h, j : j + w] @ standard(kernel)[i, j]
        for i in range(side)
        for j in range(side)
    )


def test_outputs_are_the_documented_ones():
    # 15 x 22 pixels: every halving rounds up.
    model, image = bit(), images(15, 22)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)
    logits, out = jax.eval_shape(model.apply, shapes, image)
    assert {name: leaf.shape for name, leaf in out.items()} == {
        "stem": (2, 4, 6, 64),
        "stage1/unit01": (2, 4, 6, 256),
        "stage1/unit02": (2, 4, 6, 256),
        "stage1/output": (2, 4, 6, 256),
        "stage2/unit01": (2, 2, 3, 512),
        "stage2/output": (2, 2, 3, 512),
        "normed": (2, 2, 3, 512),
        "pre_logits": (2, 512),
        "logits": (2, 3),
    }
    assert logits.shape == (2, 3)


def test_second_unit_equals_its_formula():
    params = jax.device_get(random_params(bit())["block1"]["unit02"])
    out = jax.device_get(evaluated())
    x = y = np.asarray(out["stage1/unit01"], np.float64)
    for i, padding in ((1, 0), (2, 1), (3, 0)):
        y = np.maximum(group_norm(y, params[f"gn{i}"]), 0)
        y = convolve(y, params[f"conv{i}"]["kernel"], padding)
    np.testing.assert_allclose(out["stage1/unit02"], x + y, rtol=1e-4, atol=1e-3)


def test_shortcut_projects_what_is_normed_and_has_no_norm():
    params = jax.device_get(random_params(bit())["block1"]["unit01"])
    out = jax.device_get(evaluated())
    x = np.asarray(out["stem"], np.float64)
    y = np.maximum(group_norm(x, params["gn1"]), 0)
    shortcut = convolve(y, params["conv_proj"]["kernel"])
    y = convolve(y, params["conv1"]["kernel"])
    y = convolve(
        np.maximum(group_norm(y, params["gn2"]), 0), params["conv2"]["kernel"], 1
    )
    y = convolve(np.maximum(group_norm(y, params["gn3"]), 0), params["conv3"]["kernel"])
    expected = shortcut + y
    np.testing.assert_allclose(out["stage1/unit01"], expected, rtol=1e-4, atol=1e-3)


def test_head_sees_the_mean_of_the_normed_maps():
    out = evaluated()
    head = random_params(bit())["head"]
    mean = out["normed"].mean((1, 2))
    np.testing.assert_allclose(out["pre_logits"], mean, rtol=1e-5, atol=1e-6)
    logits = mean @ head["kernel"] + head["bias"][None]
    np.testing.assert_allclose(out["logits"], logits, rtol=1e-4, atol=1e-4)
    assert float(out["normed"].min()) == 0


def test_root_pools_with_zeros_around_the_map_and_big_vision_with_nothing():
    kernel = random_params(bit())["root_block"]

    def root(preset):
        padding = bit(preset=preset).pool_padding
        return RootBlock(64, padding, StdConv).apply({"params": kernel}, images())

    zero, nothing = root("bit"), root("bit-big-vision")
    np.testing.assert_array_equal(zero[:, 1:, 1:], nothing[:, 1:, 1:])
    border = np.asarray(nothing[:, 0])
    assert (border < 0).any()
    np.testing.assert_array_equal(zero[:, 0], np.maximum(border, 0))


@pytest.mark.parametrize(
    ("preset", "eps", "eps_form", "norm_eps", "pool_padding"),
    [
        ("bit", 1e-10, "var", 1e-5, "zero"),
        ("bit-big-vision", 1e-10, "var", 1e-5, "-inf"),
        ("timm-bit", 1e-8, "var", 1e-5, "zero"),
        ("hf-bit", 1e-8, "var", 1e-5, "zero"),
    ],
)
def test_numerics_are_those_of_the_origin(
    preset, eps, eps_form, norm_eps, pool_padding
):
    model = bit(preset=preset)
    assert (model.conv_eps, model.conv_eps_form) == (eps, eps_form)
    assert (model.norm_eps, model.pool_padding) == (norm_eps, pool_padding)


def test_epsilons_reach_the_layers():
    params = random_params(bit(stages=(1,)))
    params = trees.map_with_name(
        lambda name, leaf: leaf * (1e-4 if name.startswith("block") else 1), params
    )

    def logits(**overrides):
        model = bit(stages=(1,), **overrides)
        return jax.jit(model.apply)({"params": params}, images(8, 8))[0]

    plain = logits()
    for other in ({"conv_eps": 1e-6}, {"norm_eps": 1e-1}):
        assert np.abs(logits(**other) - plain).max() > 1e-2
    assert np.abs(logits(conv_eps=1e-5, conv_eps_form="std") - plain).max() > 1e-2


def resnet_parameters(stages, factor, classes=1000):
    """Convolutions, and two numbers for each channel of a norm, of a ResNet-v2."""
    channels = root = 64 * factor
    total = 7 * 7 * 3 * channels
    for stage, units in enumerate(stages):
        w = root * 2**stage
        total += channels * 4 * w
        for _ in range(units):
            total += channels * w + 9 * w * w + w * 4 * w
            total += 2 * (channels + w + w)
            channels = 4 * w
    return total + 2 * channels + (channels + 1) * classes


@pytest.mark.parametrize("name", [n for n in list_models() if n.startswith("BiT")])
def test_count_is_the_arithmetic_of_the_sizes(name):
    row = catalog.find(name)
    layers, factor = name.removeprefix("BiT-R").split("x")
    # A ResNet-50 has 50 layers: three in each unit, the root and the head.
    assert 3 * sum(row.fields["stages"]) + 2 == int(layers)
    assert row.parameters == resnet_parameters(row.fields["stages"], int(factor))

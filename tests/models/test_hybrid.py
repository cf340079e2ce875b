# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, list_models

SIZES = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
HYBRIDS = [name for name in list_models() if "+ViT" in name]


def hybrid(**overrides):
    fields = {"num_classes": 3, "stages": (2, 1), **SIZES, **overrides}
    return build_model("R26+ViT-S/32", **fields)


def images(height=16, width=16, batch=2):
    rng = np.random.default_rng(0)
    pixels = rng.uniform(-1, 1, (batch, height, width, 3))
    return jnp.asarray(pixels, jnp.float32)


def random_params(model, image):
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype), shapes
    )


@functools.cache
def evaluated():
    model, image = hybrid(), images(16, 24)
    params = random_params(model, image)
    return params, jax.jit(model.apply)({"params": params}, image)[1]


def outputs(model, image, **kwargs):
    variables = jax.eval_shape(model.init, jax.random.key(0), image)
    _, out = jax.eval_shape(
        lambda variables: model.apply(variables, image, **kwargs), variables
    )
    return {name: leaf.shape for name, leaf in out.items()}


def test_outputs_are_the_documented_ones():
    shapes = outputs(hybrid(), images(16, 24), return_attention=True)
    tokens = (2, 1 + 2 * 3, 16)
    assert shapes == {
        "root": (2, 4, 6, 64),
        "stage1/unit1": (2, 4, 6, 256),
        "stage1/unit2": (2, 4, 6, 256),
        "stage1/output": (2, 4, 6, 256),
        "stage2/unit1": (2, 2, 3, 512),
        "stage2/output": (2, 2, 3, 512),
        "stem": (2, 2, 3, 16),
        "block00/attention": tokens,
        "block00/mlp": tokens,
        "block00/output": tokens,
        "block00/attention_weights": (2, 2, 7, 7),
        "encoded": tokens,
        "pre_logits": (2, 16),
        "logits": (2, 3),
    }


@pytest.mark.parametrize(
    ("pool", "features"),
    [("mean", (2, 16)), ("map", (2, 16)), ("none", (2, 4, 16))],
)
def test_other_poolings_have_no_class_token(pool, features):
    shapes = outputs(hybrid(pool=pool), images(), return_attention=True)
    assert shapes["encoded"] == (2, 4, 16)
    assert shapes["pre_logits"] == features
    assert ("map_head/attention_weights" in shapes) == (pool == "map")


@pytest.mark.parametrize(
    ("name", "tokens", "grid"),
    [
        # The name says 16, but the stem has stride 4 and the patches 8.
        ("R+ViT-Ti/16", 50, (7, 7)),
        ("R26+ViT-S/32", 50, (7, 7)),
        ("R26+ViT-B/32", 50, (7, 7)),
        ("R50+ViT-B/16", 197, (14, 14)),
        ("R50+ViT-B/32", 50, (7, 7)),
        ("R50+ViT-L/16", 197, (14, 14)),
        ("R50+ViT-L/32", 50, (7, 7)),
    ],
)
def test_tokens_at_224_pixels_are_the_published_ones(name, tokens, grid):
    model = build_model(name, num_classes=1, depth=1)
    assert model.stride == (224 // grid[0], 224 // grid[1])
    shapes = outputs(model, jnp.zeros((1, 224, 224, 3)))
    assert shapes["encoded"][1] == tokens
    assert shapes["stem"][1:3] == grid


def test_second_form_puts_the_units_of_stage_4_into_stage_3():
    first = catalog.find("R50+ViT-B/32").fields["stages"]
    second = catalog.find("R50+ViT-B/16").fields["stages"]
    assert first == (3, 4, 6, 3)
    assert second == (*first[:2], first[2] + first[3])


def group_norm(x, layer):
    groups = x.reshape(*x.shape[:3], 32, -1)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    y = centred / np.sqrt((centred**2).mean((1, 2, 4), keepdims=True) + 1e-6)
    return y.reshape(x.shape) * layer["scale"] + layer["bias"]


def convolve(x, kernel, stride=1):
    """Plain convolution with the padding of SAME, offset after offset."""
    side = kernel.shape[0]
    kernel = (kernel - kernel.mean((0, 1, 2))) / (kernel.std((0, 1, 2)) + 1e-5)
    h, w = -(-x.shape[1] // stride), -(-x.shape[2] // stride)
    pads = [
        divmod(max((n - 1) * stride + side - old, 0), 2)
        for n, old in zip((h, w), x.shape[1:3], strict=True)
    ]
    pads = [(half, half + odd) for half, odd in pads]
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    return sum(
        x[:, i : i + stride * h : stride, j : j + stride * w : stride][:, :h, :w]
        @ kernel[i, j]
        for i in range(side)
        for j in range(side)
    )


def test_unit_with_stride_equals_its_formula():
    params, out = jax.device_get(evaluated())
    unit = params["block2"]["unit1"]
    x = np.asarray(out["stage1/output"], np.float64)
    shortcut = convolve(x, unit["conv_proj"]["kernel"], 2)
    shortcut = group_norm(shortcut, unit["gn_proj"])
    y = np.maximum(group_norm(convolve(x, unit["conv1"]["kernel"]), unit["gn1"]), 0)
    y = np.maximum(group_norm(convolve(y, unit["conv2"]["kernel"], 2), unit["gn2"]), 0)
    y = group_norm(convolve(y, unit["conv3"]["kernel"]), unit["gn3"])
    expected = np.maximum(shortcut + y, 0)
    np.testing.assert_allclose(out["stage2/unit1"], expected, rtol=1e-3, atol=1e-4)


def test_root_equals_its_formula():
    params, out = jax.device_get(evaluated())
    x = np.asarray(images(16, 24), np.float64)
    x = convolve(x, params["conv_root"]["kernel"], 2)
    x = np.maximum(group_norm(x, params["gn_root"]), 0)
    x = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    pooled = np.max(
        [x[:, i:, j:][:, :7:2, :11:2] for i in range(3) for j in range(3)], 0
    )
    np.testing.assert_allclose(out["root"], pooled, rtol=1e-3, atol=1e-4)


def test_patches_of_the_maps_are_one_linear_layer():
    params, out = jax.device_get(evaluated())
    layer = params["embedding"]
    expected = out["stage2/output"] @ layer["kernel"][0, 0] + layer["bias"]
    np.testing.assert_allclose(out["stem"], expected, rtol=1e-3, atol=1e-3)


def test_size_that_the_stride_does_not_divide_is_refused():
    with pytest.raises(
        UserError, match=r"height 20 .* height 8; resize it to 16 or 24"
    ):
        hybrid().init(jax.random.key(0), images(20, 16))


def test_another_grid_than_that_of_the_table_is_refused():
    model = hybrid(resolution=(16, 24))
    shapes = jax.eval_shape(model.init, jax.random.key(0), images(16, 24))
    with pytest.raises(UserError, match="grid of 2x3 patches, but the image has 3x2"):
        jax.eval_shape(model.apply, shapes, images(24, 16))


@pytest.mark.parametrize(
    ("preset", "eps", "eps_form", "group_norm_eps", "gelu"),
    [
        ("google-hybrid", 1e-5, "std", 1e-6, "tanh"),
        ("timm-hybrid", 1e-8, "var", 1e-5, "erf"),
    ],
)
def test_numerics_are_those_of_the_origin(preset, eps, eps_form, group_norm_eps, gelu):
    model = hybrid(preset=preset)
    assert (model.conv_eps, model.conv_eps_form) == (eps, eps_form)
    assert (model.group_norm_eps, model.gelu) == (group_norm_eps, gelu)
    assert model.norm_eps == 1e-6


def resnet_parameters(stages):
    """Convolutions, and two numbers for each channel of a norm, of a ResNet-v1."""
    channels = 64
    total = 7 * 7 * 3 * channels + 2 * channels
    for stage, units in enumerate(stages):
        w = 64 * 2**stage
        total += channels * 4 * w + 2 * 4 * w
        for _ in range(units):
            total += channels * w + 9 * w * w + w * 4 * w + 2 * (w + w + 4 * w)
            channels = 4 * w
    return total, channels


@pytest.mark.parametrize("name", HYBRIDS)
def test_count_is_the_arithmetic_of_the_sizes(name):
    row = catalog.find(name)
    d, f, p, depth = (
        row.fields[key] for key in ("width", "mlp_dim", "patch_size", "depth")
    )
    resnet, channels = resnet_parameters(row.fields["stages"])
    side = 14 if len(row.fields["stages"]) == 3 else 7
    stem = channels * p * p * d + d + d + (side * side + 1) * d
    block = 2 * 2 * d + 4 * (d * d + d) + (d * f + f) + (f * d + d)
    total = resnet + stem + depth * block + 2 * d + (d + 1) * 1000
    assert row.parameters == total


def test_count_of_the_imagenet_21k_file_is_the_published_one():
    # google-research/vision_transformer, models_test.py.
    model = build_model("R50+ViT-B/16", num_classes=21_843, representation_size=768)
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    leaves = jax.tree.leaves(shapes)
    assert sum(np.prod(leaf.shape) for leaf in leaves) == 115_277_971
    assert len(leaves) == 358

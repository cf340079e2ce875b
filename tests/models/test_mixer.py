# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, list_models

SIZES = {"width": 16, "depth": 2, "token_mlp_dim": 8, "mlp_dim": 32}


def mixer(**overrides):
    return build_model("Mixer-S/4", **{"num_classes": 3, **SIZES, **overrides})


def images(height=8, width=12, batch=2):
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
    model, image = mixer(), images()
    params = random_params(model, image)
    return jax.device_get((params, jax.jit(model.apply)({"params": params}, image)[1]))


def test_outputs_are_the_documented_ones():
    _, out = evaluated()
    tokens = (2, 6, 16)
    expected = {
        "stem": (2, 2, 3, 16),
        "encoded": tokens,
        "pre_logits": (2, 16),
        "logits": (2, 3),
    }
    for block in ("block00", "block01"):
        for part in ("token_mixing", "channel_mixing", "output"):
            expected[f"{block}/{part}"] = tokens
    assert {name: leaf.shape for name, leaf in out.items()} == expected


def layer_norm(x, layer):
    centred = x - x.mean(-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return y * layer["scale"] + layer["bias"]


def mlp(x, layers):
    first, second = layers["Dense_0"], layers["Dense_1"]
    x = x @ first["kernel"] + first["bias"]
    x = x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x @ second["kernel"] + second["bias"]


def test_block_equals_its_formula():
    params, out = evaluated()
    block = params["MixerBlock_0"]
    x = np.asarray(out["stem"], np.float64).reshape(2, 6, 16)
    across = layer_norm(x, block["LayerNorm_0"]).swapaxes(1, 2)
    across = mlp(across, block["token_mixing"]).swapaxes(1, 2)
    np.testing.assert_allclose(out["block00/token_mixing"], across, atol=1e-4)
    x = x + across
    x = x + mlp(layer_norm(x, block["LayerNorm_1"]), block["channel_mixing"])
    np.testing.assert_allclose(out["block00/output"], x, rtol=1e-4, atol=1e-4)


def test_head_sees_the_mean_of_the_encoded_tokens():
    params, out = evaluated()
    encoded = layer_norm(out["block01/output"], params["pre_head_layer_norm"])
    np.testing.assert_allclose(out["encoded"], encoded, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(out["pre_logits"], encoded.mean(1), atol=1e-4)
    logits = encoded.mean(1) @ params["head"]["kernel"] + params["head"]["bias"]
    np.testing.assert_allclose(out["logits"], logits, rtol=1e-4, atol=1e-4)


def test_another_number_of_patches_is_refused():
    model = mixer()
    shapes = jax.eval_shape(model.init, jax.random.key(0), images(8, 12))
    message = "made for 6 patches, but the image has 3x3; a Mixer cannot change"
    with pytest.raises(UserError, match=message):
        jax.eval_shape(model.apply, shapes, images(12, 12))


def test_resolution_tells_grids_of_one_size_apart():
    model = mixer(resolution=(8, 12))
    shapes = jax.eval_shape(model.init, jax.random.key(0), images(8, 12))
    with pytest.raises(UserError, match="grid of 2x3 patches, but the image has 3x2"):
        jax.eval_shape(model.apply, shapes, images(12, 8))
    with pytest.raises(UserError, match="grid of 2x3 patches, but the image has 2x2"):
        jax.eval_shape(model.init, jax.random.key(0), images(8, 8))


def test_size_that_the_patch_does_not_divide_is_refused():
    with pytest.raises(UserError, match=r"height 10 .* height 4; resize it to 8 or 12"):
        mixer().init(jax.random.key(0), images(10, 8))


def test_dropout_zeroes_the_branches_and_drop_path_skips_them():
    model, image = mixer(dropout_rate=0.5), images(batch=16)
    params = random_params(model, image)
    rngs = {"dropout": jax.random.key(0)}
    _, out = model.apply({"params": params}, image, train=True, rngs=rngs)
    for branch in ("block00/token_mixing", "block01/channel_mixing"):
        # 16 * 6 * 16 draws: five standard errors are 0.064.
        assert abs(np.mean(out[branch] == 0) - 0.5) < 0.07

    model = mixer(drop_path_rate=0.5)
    rngs = {"drop_path": jax.random.key(0)}
    _, out = model.apply({"params": params}, image, train=True, rngs=rngs)
    # The ramp starts at 0: the first block adds both its branches, whole.
    stem = out["stem"].reshape(16, 6, 16)
    total = stem + out["block00/token_mixing"] + out["block00/channel_mixing"]
    np.testing.assert_allclose(out["block00/output"], total, atol=1e-4)
    # The second adds none, one or both of them, doubled, to each example.
    added = out["block01/output"] - out["block00/output"]
    nothing = np.abs(added).max((1, 2)) < 1e-6
    assert 0 < nothing.sum() < 16


@pytest.mark.parametrize(("preset", "gelu"), [("mixer", "tanh"), ("timm-mixer", "erf")])
def test_numerics_are_those_of_the_origin(preset, gelu):
    model = mixer(preset=preset)
    assert (model.gelu, model.norm_eps) == (gelu, 1e-6)


@pytest.mark.parametrize(
    ("size", "width", "depth", "token_mlp_dim", "mlp_dim"),
    [
        # Table 1 of arXiv:2105.01601.
        ("S", 512, 8, 256, 2048),
        ("B", 768, 12, 384, 3072),
        ("L", 1024, 24, 512, 4096),
        ("H", 1280, 32, 640, 5120),
    ],
)
def test_sizes_are_the_published_ones(size, width, depth, token_mlp_dim, mlp_dim):
    assert catalog.find(f"Mixer-{size}/12").fields == {
        "width": width,
        "depth": depth,
        "token_mlp_dim": token_mlp_dim,
        "mlp_dim": mlp_dim,
        "patch_size": 12,
    }


@pytest.mark.parametrize("name", [n for n in list_models() if n.startswith("Mixer")])
def test_count_is_the_arithmetic_of_the_sizes(name):
    row = catalog.find(name)
    d, s, t, p = (
        row.fields[key] for key in ("width", "token_mlp_dim", "mlp_dim", "patch_size")
    )
    n = (224 // p) ** 2
    block = 2 * 2 * d + (n * s + s + s * n + n) + (d * t + t + t * d + d)
    stem = 3 * p * p * d + d
    total = stem + row.fields["depth"] * block + 2 * d + (d + 1) * 1000
    assert row.parameters == total


def test_count_of_the_imagenet_21k_file_is_the_published_one():
    model = build_model("Mixer-B/16", num_classes=21_843)
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    leaves = jax.tree.leaves(shapes)
    assert sum(np.prod(leaf.shape) for leaf in leaves) == 75_908_739

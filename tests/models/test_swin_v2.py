# SPDX-License-Identifier: Apache-2.0
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.models.layers.window_attention import CosineAttention, unit

SIZES = {
    "width": 16,
    "depths": (2, 1),
    "num_heads": (2, 4),
    "patch_size": 2,
    "window_size": 2,
    "resolution": 8,
}


def swin(**overrides):
    return build_model("SwinV2-T", **{"num_classes": 3, **SIZES, **overrides})


def images(height=8, width=8, batch=2):
    rng = np.random.default_rng(0)
    pixels = rng.uniform(-1, 1, (batch, height, width, 3))
    return jnp.asarray(pixels, jnp.float32)


def shapes_of(model, image):
    variables = jax.eval_shape(model.init, jax.random.key(0), image)
    return trees.flatten(variables["params"])


def random_params(model, *args, **kwargs):
    rng = np.random.default_rng(1)
    init = functools.partial(model.init, **kwargs)
    shapes = jax.eval_shape(init, jax.random.key(0), *args)["params"]

    def draw(name, leaf):
        values = rng.normal(1.0 if name.endswith("scale") else 0.0, 0.3, leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    return trees.map_with_name(draw, shapes)


def test_outputs_are_the_documented_ones():
    model, image = swin(), images(8, 16)
    variables = jax.eval_shape(model.init, jax.random.key(0), image)
    _, out = jax.eval_shape(
        lambda variables: model.apply(variables, image, return_attention=True),
        variables,
    )
    expected = {
        "stem": (2, 4, 8, 16),
        "stage0/output": (2, 4, 8, 16),
        "stage1/output": (2, 2, 4, 32),
        "encoded": (2, 2, 4, 32),
        "pre_logits": (2, 32),
        "logits": (2, 3),
    }
    for block, shape, windows, heads in (
        ("stage0/block00", (2, 4, 8, 16), 8, 2),
        ("stage0/block01", (2, 4, 8, 16), 8, 2),
        ("stage1/block00", (2, 2, 4, 32), 2, 4),
    ):
        for branch in ("attention", "mlp", "output"):
            expected[f"{block}/{branch}"] = shape
        expected[f"{block}/attention_weights"] = (2, windows, heads, 4, 4)
    assert {name: leaf.shape for name, leaf in out.items()} == expected


def test_blocks_whose_norms_are_zero_are_the_identity():
    model, image = swin(depths=(2,), num_heads=(2,)), images()
    params = random_params(model, image)
    for block in params["layers_0"].values():
        for norm in ("norm1", "norm2"):
            block[norm] = jax.tree.map(jnp.zeros_like, block[norm])
    _, out = jax.jit(model.apply)({"params": params}, image)
    np.testing.assert_array_equal(out["stage0/output"], out["stem"])


def test_branches_are_normalised_after_the_fact():
    model, image = swin(depths=(1,), num_heads=(2,)), images()
    params = jax.device_get(random_params(model, image))
    out = jax.device_get(jax.jit(model.apply)({"params": params}, image)[1])
    for branch, norm in (("attention", "norm1"), ("mlp", "norm2")):
        norm = params["layers_0"]["blocks_0"][norm]
        y = (out[f"stage0/block00/{branch}"] - norm["bias"]) / norm["scale"]
        np.testing.assert_allclose(y.mean(-1), 0, atol=1e-4)
        np.testing.assert_allclose(y.std(-1), 1, atol=1e-3)


@jax.default_matmul_precision("highest")
def attention(params, x, window=(2, 3), pretrained=(2, 3)):
    module = CosineAttention(2, window, False, pretrained)
    y, weights = jax.jit(functools.partial(module.apply, train=False))(
        {"params": params}, x
    )
    return np.asarray(y), np.asarray(weights)


def attention_params(x, window=(2, 3)):
    module = CosineAttention(2, window, False, window)
    params = random_params(module, x, train=False)
    return jax.device_get(params)


def map_of(*shape):
    values = np.random.default_rng(3).normal(size=shape)
    return np.asarray(values, np.float32)


@pytest.mark.parametrize("pretrained", [(2, 3), (4, 4)])
def test_attention_equals_numpy_in_double_precision(pretrained):
    x = map_of(1, 2, 3, 8)
    params = attention_params(x)
    got, got_weights = attention(params, jnp.asarray(x), pretrained=pretrained)
    p = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    qkv = np.einsum("nd,dsme->snme", x.reshape(6, 8), p["qkv"]["kernel"])
    query, key, value = qkv[0] + p["q_bias"], qkv[1], qkv[2] + p["v_bias"]
    expected = np.zeros((6, 2, 4))
    for m in range(2):
        cosines = query[:, m] @ key[:, m].T
        cosines /= np.linalg.norm(query[:, m], axis=1)[:, None]
        cosines /= np.linalg.norm(key[:, m], axis=1)[None]
        logits = cosines * np.exp(min(p["logit_scale"][m, 0, 0], math.log(100)))
        for q in range(6):
            for k in range(6):
                offset = np.subtract(divmod(q, 3), divmod(k, 3))
                offset = 8 * offset / (np.asarray(pretrained) - 1)
                offset = np.sign(offset) * np.log2(np.abs(offset) + 1) / np.log2(8)
                first, second = p["cpb_mlp_0"], p["cpb_mlp_2"]
                hidden = np.maximum(offset @ first["kernel"] + first["bias"], 0)
                bias = (hidden @ second["kernel"])[m]
                logits[q, k] += 16 / (1 + np.exp(-bias))
        weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        np.testing.assert_allclose(got_weights[0, 0, m], weights, atol=1e-5)
        expected[:, m] = weights @ value[:, m]
    expected = np.einsum("nme,med->nd", expected, p["proj"]["kernel"])
    expected = expected + p["proj"]["bias"]
    np.testing.assert_allclose(got.reshape(6, 8), expected, rtol=1e-4, atol=1e-4)


def test_lengths_of_queries_and_keys_do_not_matter():
    x = jnp.asarray(map_of(1, 2, 3, 8))
    params = attention_params(x)
    expected, _ = attention(params, x)
    params["qkv"]["kernel"] = params["qkv"]["kernel"].copy()
    params["qkv"]["kernel"][:, 0] *= 7
    params["qkv"]["kernel"][:, 1] *= 0.1
    params["q_bias"] = 7 * params["q_bias"]
    np.testing.assert_allclose(attention(params, x)[0], expected, rtol=1e-4, atol=1e-4)


def test_scale_ends_at_a_hundred():
    x = jnp.asarray(map_of(1, 2, 3, 8))
    params = attention_params(x)
    results = []
    for scale in (4.5, math.log(100), 8.0):
        params["logit_scale"] = np.full((2, 1, 1), scale, np.float32)
        results.append(attention(params, x)[1])
    assert np.abs(results[0] - results[1]).max() > 1e-4
    np.testing.assert_allclose(results[1], results[2], rtol=1e-4, atol=1e-6)


def test_unit_vectors_are_finite_and_differentiable_at_zero():
    x = jnp.asarray([[3.0, 4.0], [0.0, 0.0], [1e-13, 0.0]])
    np.testing.assert_allclose(unit(x), [[0.6, 0.8], [0, 0], [0.1, 0]], rtol=1e-5)
    assert np.isfinite(jax.grad(lambda x: unit(x).sum())(x)).all()


def test_keys_have_no_bias():
    names = set(shapes_of(swin(), images()))
    assert "layers_0/blocks_0/attn/q_bias" in names
    assert "layers_0/blocks_0/attn/v_bias" in names
    assert not [name for name in names if "k_bias" in name or "qkv/bias" in name]


def test_tensors_are_as_many_as_in_the_published_files():
    image = jax.ShapeDtypeStruct((1, 256, 256, 3), jnp.float32)
    for name, tensors in (("SwinV2-T", 221), ("SwinV2-T-w16", 221), ("SwinV2-S", 425)):
        assert len(shapes_of(build_model(name, num_classes=1000), image)) == tensors


def test_window_and_resolution_may_change_under_the_same_weights():
    expected = {k: v.shape for k, v in shapes_of(swin(), images()).items()}
    model = swin(window_size=4, resolution=16, pretrained_window_size=2)
    shapes = shapes_of(model, images(16, 16))
    assert {k: v.shape for k, v in shapes.items()} == expected


def test_positions_are_relative_to_the_window_of_pretraining():
    image = images(batch=1)
    params = random_params(swin(), image)

    def logits(**fields):
        return jax.jit(swin(**fields).apply)({"params": params}, image)[0]

    own = logits()
    np.testing.assert_array_equal(own, logits(pretrained_window_size=2))
    assert np.abs(own - logits(pretrained_window_size=(2, 4))).max() > 1e-3


def test_windows_of_pretraining_are_one_for_all_or_one_for_each_stage():
    model = swin(pretrained_window_size=(2, 2, 2))
    with pytest.raises(UserError, match="has 3 numbers for 2 stages; give one for"):
        model.init(jax.random.key(0), images())


@pytest.mark.parametrize(
    ("name", "depth", "millions"), [("SwinV2-H", 18, 658), ("SwinV2-G", 42, 3000)]
)
def test_large_models_have_a_norm_after_every_six_blocks(name, depth, millions):
    model = build_model(name, num_classes=1000)
    shapes = shapes_of(model, jax.ShapeDtypeStruct((1, 192, 192, 3), jnp.float32))
    norms = {key.split("/norm3")[0] for key in shapes if "/norm3/" in key}
    assert norms == {f"layers_2/blocks_{i}" for i in range(5, depth, 6)}
    count = sum(math.prod(leaf.shape) for leaf in shapes.values())
    assert round(count / 1e6, -2 if millions == 3000 else 0) == millions


def test_norm_on_the_main_branch_is_over_the_sum():
    model, image = swin(depths=(1,), num_heads=(2,), extra_norm_every=1), images()
    params = jax.device_get(random_params(model, image))
    out = jax.device_get(jax.jit(model.apply)({"params": params}, image)[1])
    norm = params["layers_0"]["blocks_0"]["norm3"]
    y = (out["stage0/output"] - norm["bias"]) / norm["scale"]
    total = out["stem"] + out["stage0/block00/attention"] + out["stage0/block00/mlp"]
    centred = total - total.mean(-1, keepdims=True)
    expected = centred / np.sqrt(total.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-3, atol=1e-3)


def test_sizes_are_checked_as_in_version_one():
    with pytest.raises(UserError, match=r"height 10 .*resize it to 8 or 16.*pad=True"):
        swin().init(jax.random.key(0), images(10, 8))
    with pytest.raises(UserError, match="depths has 2 stages, but num_heads has 1"):
        swin(num_heads=(2,)).init(jax.random.key(0), images())
    padded = functools.partial(swin(pad=True).init, jax.random.key(0))
    jax.eval_shape(padded, images(10, 7))


def test_sliding_windows_share_the_parameters():
    sizes = {"depths": (1,), "num_heads": (2,)}
    image, fixed = images(batch=1), swin(window_kind="fixed", **sizes)
    params = random_params(fixed, image)
    sliding = swin(window_kind="sliding", **sizes)
    sliding = jax.jit(sliding.apply)({"params": params}, image)[0]
    fixed = jax.jit(fixed.apply)({"params": params}, image)[0]
    assert np.isfinite(sliding).all()
    assert np.abs(sliding - fixed).max() > 1e-3

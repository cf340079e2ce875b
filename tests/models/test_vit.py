# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model

SIZES = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}


def vit(patch_size=4, **overrides):
    fields = {"num_classes": 3, "patch_size": patch_size, **SIZES, **overrides}
    return build_model("ViT-Ti/4", **fields)


def images(height=8, width=8, batch=2):
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
def evaluated(**overrides):
    """Outputs of a model in evaluation, one compilation for all who ask for it."""
    return run(vit(**overrides), images())[1]


def run(model, image, **kwargs):
    params = random_params(model, image)
    apply = jax.jit(model.apply, static_argnames=("train", "return_attention"))
    return apply({"params": params}, image, **kwargs)


def shapes(tree):
    return {name: leaf.shape for name, leaf in tree.items()}


@pytest.mark.parametrize(
    ("pool", "tokens", "features"),
    [
        ("cls", 7, (2, 16)),
        ("mean", 6, (2, 16)),
        ("map", 6, (2, 16)),
        ("none", 6, (2, 6, 16)),
    ],
)
def test_outputs_are_the_documented_ones(pool, tokens, features):
    model = vit(pool=pool)
    image = images(8, 12)
    variables = jax.eval_shape(model.init, jax.random.key(0), image)
    logits, out = jax.eval_shape(
        lambda variables: model.apply(variables, image, return_attention=True),
        variables,
    )
    expected = {
        "stem": (2, 2, 3, 16),
        "encoded": (2, tokens, 16),
        "pre_logits": features,
        "logits": (*features[:-1], 3),
    }
    for block in ("block00", "block01"):
        expected |= {
            f"{block}/{branch}": (2, tokens, 16)
            for branch in ("attention", "mlp", "output")
        }
        expected[f"{block}/attention_weights"] = (2, 2, tokens, tokens)
    if pool == "map":
        expected["map_head/attention_weights"] = (2, 2, 1, tokens)
    assert shapes(out) == expected
    assert logits.shape == expected["logits"]


def test_blocks_are_residual():
    out = evaluated()
    total = out["block00/output"] + out["block01/attention"] + out["block01/mlp"]
    np.testing.assert_allclose(out["block01/output"], total, rtol=1e-5, atol=1e-5)


def test_class_token_is_the_first_of_the_encoded_tokens():
    out = evaluated()
    np.testing.assert_array_equal(out["pre_logits"], out["encoded"][:, 0])


def test_mean_pooling_is_the_mean_of_the_encoded_tokens():
    out = evaluated(pool="mean")
    np.testing.assert_allclose(
        out["pre_logits"], out["encoded"].mean(1), rtol=1e-5, atol=1e-6
    )


def test_representation_layer_is_dense_and_tanh():
    model, image = vit(representation_size=5), images()
    params = random_params(model, image)
    _, out = jax.jit(model.apply)({"params": params}, image)
    dense = params["pre_logits"]
    expected = np.tanh(out["encoded"][:, 0] @ dense["kernel"] + dense["bias"][None])
    np.testing.assert_allclose(out["pre_logits"], expected, rtol=1e-5, atol=1e-6)
    assert params["head"]["kernel"].shape == (5, 3)


def test_head_sees_pre_logits():
    out = evaluated()
    head = random_params(vit(), images())["head"]
    expected = out["pre_logits"] @ head["kernel"] + head["bias"][None]
    np.testing.assert_allclose(out["logits"], expected, rtol=1e-5, atol=1e-5)


def patches_of(image, p):
    b, h, w, c = image.shape
    grid = image.reshape(b, h // p, p, w // p, p, c).transpose(0, 1, 3, 2, 4, 5)
    return grid.reshape(b, -1, p, p, c)


def image_of(patches, grid):
    b, _, p, _, c = patches.shape
    image = patches.reshape(b, *grid, p, p, c).transpose(0, 1, 3, 2, 4, 5)
    return image.reshape(b, grid[0] * p, grid[1] * p, c)


def test_stem_is_one_linear_layer_on_flattened_patches():
    model, image = vit(), images(8, 12)
    params = random_params(model, image)
    _, out = jax.jit(model.apply)({"params": params}, image)
    kernel = params["embedding"]["kernel"]
    assert kernel.shape == (4, 4, 3, 16)
    flat = patches_of(image, 4).reshape(2, 6, 48)
    expected = flat @ kernel.reshape(48, 16) + params["embedding"]["bias"][None, None]
    np.testing.assert_allclose(
        out["stem"].reshape(2, 6, 16), expected, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("pool", ["none", "mean"])
def test_without_positions_patches_have_no_order(pool):
    model, image = vit(positions="none", pool=pool), images(8, 12)
    order = np.asarray([4, 2, 0, 5, 1, 3])
    params = random_params(model, image)
    apply = jax.jit(lambda image: model.apply({"params": params}, image)[0])
    shuffled = image_of(patches_of(image, 4)[:, order], (2, 3))
    expected = apply(image)
    if pool == "none":
        expected = expected[:, order]
    np.testing.assert_allclose(apply(shuffled), expected, rtol=1e-4, atol=1e-4)


def test_with_positions_patches_have_an_order():
    model, image = vit(pool="mean"), images(8, 12)
    params = random_params(model, image)
    apply = jax.jit(lambda image: model.apply({"params": params}, image)[0])
    shuffled = image_of(patches_of(image, 4)[:, ::-1], (2, 3))
    assert np.abs(apply(shuffled) - apply(image)).max() > 1e-2


@pytest.mark.parametrize("positions", ["none", "sincos2d"])
def test_size_is_free_where_positions_are_not_stored(positions):
    model = vit(positions=positions)
    params = random_params(model, images())
    for size in ((8, 12), (12, 4)):
        logits, _ = jax.eval_shape(model.apply, {"params": params}, images(*size))
        assert logits.shape == (2, 3)


def test_patches_need_not_be_square():
    model = vit(patch_size=(2, 4))
    logits, out = run(model, images(8, 8))
    assert out["stem"].shape == (2, 4, 2, 16)
    assert logits.shape == (2, 3)


def test_another_grid_than_that_of_the_table_is_refused():
    model = vit()
    params = random_params(model, images(8, 8))
    with pytest.raises(UserError, match="grid of 2x2 patches, but the image has 2x3"):
        model.apply({"params": params}, images(8, 12))


def test_resolution_tells_grids_of_one_size_apart():
    model = vit(resolution=(8, 12))
    params = random_params(model, images(8, 12))
    with pytest.raises(UserError, match="grid of 2x3 patches, but the image has 3x2"):
        model.apply({"params": params}, images(12, 8))


def test_size_that_the_patch_does_not_divide_is_refused():
    with pytest.raises(UserError, match=r"height 10 .* height 4; resize it to 8 or 12"):
        vit().init(jax.random.key(0), images(10, 8))
    with pytest.raises(UserError, match=r"height 10 .* height 4; resize it to 8 or 12"):
        vit(resolution=10).init(jax.random.key(0), images())


def count_draws(jaxpr):
    """How often a program draws random bits, whatever it is nested in."""
    total = 0
    for equation in jaxpr.eqns:
        total += equation.primitive.name == "random_bits"
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            total += count_draws(inner) if hasattr(inner, "eqns") else 0
    return total


@pytest.mark.parametrize(
    ("rates", "draws"),
    [
        ({}, 0),
        # After the positions; in each of 2 blocks after the attention, the GELU and
        # the second layer of the MLP. Not after query, key and value.
        ({"dropout_rate": 0.1}, 1 + 2 * 3),
        ({"attention_dropout_rate": 0.1}, 2),
        # Both branches of the second block; the ramp starts at 0.
        ({"drop_path_rate": 0.1}, 2),
    ],
)
def test_dropout_is_where_the_paper_has_it_and_free_where_it_is_off(rates, draws):
    model, image = vit(**rates), images()
    params = random_params(model, image)

    def apply(train):
        rngs = {"dropout": jax.random.key(0), "drop_path": jax.random.key(1)}
        return jax.make_jaxpr(
            lambda: model.apply({"params": params}, image, train=train, rngs=rngs)
        )()

    assert count_draws(apply(True).jaxpr) == draws
    assert count_draws(apply(False).jaxpr) == 0


def test_dropout_zeroes_the_branches():
    rngs = {"dropout": jax.random.key(0)}
    _, out = run(vit(dropout_rate=0.5), images(batch=8), train=True, rngs=rngs)
    for branch in ("block00/attention", "block01/mlp"):
        # 8 * 5 * 16 draws: five standard errors are 0.1.
        assert abs(np.mean(out[branch] == 0) - 0.5) < 0.1


def test_map_head_equals_its_formula():
    model, image = vit(pool="map", num_classes=0), images()
    params = random_params(model, image)
    pooled, out = jax.jit(model.apply)({"params": params}, image)
    head, tokens = jax.device_get((params["MAPHead_0"], out["encoded"]))
    attention = head["MultiHeadDotProductAttention_0"]

    def dense(layer, x, axes=1):
        return np.tensordot(x, layer["kernel"], axes) + layer["bias"]

    query = dense(attention["query"], head["probe"][0])[0]
    key = dense(attention["key"], tokens)
    value = dense(attention["value"], tokens)
    scores = np.einsum("me,bnme->bmn", query, key) / np.sqrt(8)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    y = dense(attention["out"], np.einsum("bmn,bnme->bme", weights, value), 2)
    centred = y - y.mean(-1, keepdims=True)
    z = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    z = z * head["LayerNorm_0"]["scale"] + head["LayerNorm_0"]["bias"]
    z = dense(head["MlpBlock_0"]["Dense_0"], z)
    z = z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    expected = y + dense(head["MlpBlock_0"]["Dense_1"], z)
    np.testing.assert_allclose(pooled, expected, rtol=1e-4, atol=1e-4)


def test_presets_decide_epsilon_activation_and_place_of_positions():
    image = images()
    flat = trees.flatten(random_params(vit(preset="big-vision-vit"), image))
    assert flat["Transformer/posembed_input/pos_embedding"].shape == (1, 4, 16)
    flat = trees.flatten(random_params(vit(preset="google-vit"), image))
    assert flat["Transformer/posembed_input/pos_embedding"].shape == (1, 5, 16)


def test_epsilon_matters_where_tokens_are_nearly_zero():
    image = 1e-3 * images()
    params = random_params(vit(positions="none", pool="mean"), image)
    params["embedding"]["bias"] *= 0

    def logits(eps):
        model = vit(positions="none", pool="mean", norm_eps=eps)
        return jax.jit(model.apply)({"params": params}, image)[0]

    assert np.abs(logits(1e-12) - logits(1e-3)).max() > 1e-2

# SPDX-License-Identifier: Apache-2.0
"""Later forms of ViT: DeiT, DINOv2, registers, other positions and other sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.resample import resize_positions

SIZES = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
POSITIONS = "Transformer/posembed_input/pos_embedding"


def vit(**fields):
    return build_model("ViT-Ti/4", **{"num_classes": 3, **SIZES, **fields})


def images(height=8, width=8, batch=2):
    pixels = np.random.default_rng(0).uniform(-1, 1, (batch, height, width, 3))
    return jnp.asarray(pixels, jnp.float32)


def shapes_of(model, image):
    return jax.eval_shape(model.init, jax.random.key(0), image)["params"]


def random_params(model, image):
    rng = np.random.default_rng(1)

    def draw(name, leaf):
        values = rng.normal(float(name.endswith("scale")), 0.3, leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    return trees.map_with_name(draw, shapes_of(model, image))


@functools.cache
def jitted(model):
    return jax.jit(model.apply, static_argnames=("train", "return_attention"))


def run(model, params, image, **kwargs):
    return jitted(model)({"params": params}, image, **kwargs)


def test_distilled_logits_are_the_mean_of_two_heads_on_two_tokens():
    model, image = vit(distillation=True), images()
    params = random_params(model, image)
    logits, out = run(model, params, image)
    tokens = out["encoded"]
    assert tokens.shape == (2, 1 + 1 + 4, 16)
    assert params["Transformer"]["posembed_input"]["pos_embedding"].shape[1] == 2 + 4
    by_head = [
        tokens[:, i] @ params[head]["kernel"] + params[head]["bias"][None]
        for i, head in enumerate(("head", "head_dist"))
    ]
    np.testing.assert_allclose(out["logits_class"], by_head[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        out["logits_distillation"], by_head[1], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(logits, (by_head[0] + by_head[1]) / 2, atol=1e-5)
    np.testing.assert_allclose(out["pre_logits"], tokens[:, :2].mean(1), atol=1e-6)


def test_distilled_model_without_classes_gives_the_mean_feature():
    model, image = vit(distillation=True, num_classes=0), images()
    params = random_params(model, image)
    assert "head_dist" not in params
    features, out = run(model, params, image)
    np.testing.assert_array_equal(features, out["pre_logits"])


# One layer less of the class token's model, one token more: DeiT-B distilled in timm.
def test_distilled_base_model_has_the_published_number_of_parameters():
    model = build_model("ViT-B/16", num_classes=1000, distillation=True)
    shapes = shapes_of(model, jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 87_338_192


def test_giant_dinov2_has_the_published_number_of_parameters():
    model = build_model(
        "ViT-g-opt/14",
        num_classes=0,
        preset="dinov2",
        num_heads=24,
        mlp="swiglu",
        mlp_dim=4096,
        layer_scale=1e-5,
        resolution=518,
    )
    shapes = shapes_of(model, jax.ShapeDtypeStruct((1, 518, 518, 3), jnp.float32))
    # timm 1.0.31, vit_giant_patch14_dinov2.
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 1_136_479_232


def test_distillation_without_a_class_token_is_refused():
    with pytest.raises(UserError, match="distillation needs the class token, but pool"):
        shapes_of(vit(distillation=True, pool="mean"), images())


@pytest.mark.parametrize("pool", ["cls", "mean", "map", "none"])
def test_registers_are_not_pooled(pool):
    model, image = vit(num_registers=3, pool=pool), images()
    params = random_params(model, image)
    logits, out = run(model, params, image, return_attention=True)
    first = int(pool == "cls")
    assert out["encoded"].shape == (2, first + 3 + 4, 16)
    if pool == "cls":
        np.testing.assert_array_equal(out["pre_logits"], out["encoded"][:, 0])
    elif pool == "mean":
        expected = out["encoded"][:, 3:].mean(1)
        np.testing.assert_allclose(out["pre_logits"], expected, atol=1e-5)
    elif pool == "map":
        assert out["map_head/attention_weights"].shape == (2, 2, 1, 4)
    else:
        assert logits.shape == (2, 4, 3)


def test_class_token_and_mean_are_put_side_by_side():
    model, image = vit(num_registers=3, pool="cls_mean"), images()
    params = random_params(model, image)
    assert params["head"]["kernel"].shape == (32, 3)
    _, out = run(model, params, image)
    token, patches = out["encoded"][:, 0], out["encoded"][:, 4:]
    assert patches.shape == (2, 4, 16)
    expected = np.concatenate([token, patches.mean(1)], axis=1)
    np.testing.assert_allclose(out["pre_logits"], expected, atol=1e-5)


def test_side_by_side_without_a_class_token_is_refused():
    with pytest.raises(UserError, match='pool="cls_mean" needs the class token'):
        shapes_of(vit(pool="cls_mean", class_token=False), images())


def test_norm_after_the_pooling_is_of_the_mean_and_of_nothing_else():
    model = vit(pool="mean", pool_norm="after", class_token=True, num_registers=2)
    image = images()
    params = random_params(model, image)
    assert "encoder_norm" not in params["Transformer"]
    assert params["Transformer"]["posembed_input"]["pos_embedding"].shape[1] == 1 + 4
    _, out = run(model, params, image)
    np.testing.assert_array_equal(out["encoded"], out["block01/output"])
    # Class token and registers are not in the mean.
    mean = np.asarray(out["encoded"])[:, 3:].mean(1)
    centred = mean - mean.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    norm = params["pool_norm"]
    expected = normed * norm["scale"][None] + norm["bias"][None]
    np.testing.assert_allclose(out["pre_logits"], expected, rtol=1e-4, atol=1e-5)


def test_pooling_by_a_class_token_that_is_not_there_is_refused():
    with pytest.raises(UserError, match='pool="cls" needs the class token'):
        shapes_of(vit(class_token=False), images())


def test_registers_start_apart_from_one_another():
    model, image = vit(num_registers=2, depth=0), images()
    params = jax.jit(model.init)(jax.random.key(0), image)["params"]
    first, second = params["registers"][0]
    assert np.abs(first - second).max() > 1e-3


def test_layer_scale_and_swiglu_name_their_parameters():
    model = vit(layer_scale=1e-5, mlp="swiglu", qk_norm=True)
    flat = trees.flatten(shapes_of(model, images()))
    block = "Transformer/encoderblock_1"
    attention = f"{block}/MultiHeadDotProductAttention_0"
    assert flat[f"{block}/LayerScale_0/scale"].shape == (16,)
    assert flat[f"{block}/LayerScale_1/scale"].shape == (16,)
    assert flat[f"{block}/MlpBlock_0/Dense_0/kernel"].shape == (16, 64)
    assert flat[f"{block}/MlpBlock_0/Dense_1/kernel"].shape == (32, 16)
    assert flat[f"{attention}/query_ln/scale"].shape == (8,)
    assert flat[f"{attention}/key_ln/bias"].shape == (8,)


def test_branches_are_those_after_the_layer_scale():
    model, image = vit(layer_scale=0.5), images()
    params = random_params(model, image)
    _, out = run(model, params, image)
    total = out["block00/output"] + out["block01/attention"] + out["block01/mlp"]
    np.testing.assert_allclose(out["block01/output"], total, rtol=1e-4, atol=1e-4)
    doubled = jax.tree.map(lambda leaf: leaf, params)
    scale = doubled["Transformer"]["encoderblock_0"]["LayerScale_0"]
    scale["scale"] = 2 * scale["scale"]
    _, changed = run(model, doubled, image)
    np.testing.assert_allclose(
        changed["block00/attention"], 2 * out["block00/attention"], rtol=1e-5
    )


NEW = [
    {"positions": "learned2d", "position_injection": "every_layer", "mlp": "swiglu"},
    {"positions": "rotary2d"},
    # The class token, which alone the head would see, has no relative positions.
    {"positions": "relative", "pool": "mean", "num_registers": 1},
    {"distillation": True, "num_registers": 2, "layer_scale": 0.1, "qk_norm": True},
]


@pytest.mark.parametrize("fields", NEW)
def test_every_parameter_of_a_form_gets_a_gradient(fields):
    model, image = vit(depth=1, **fields), images(8, 12)
    params = random_params(model, image)

    def loss(params):
        logits, _ = model.apply({"params": params}, image)
        return jnp.sum(logits * jnp.asarray([1.0, -2.0, 0.5])[None])

    for name, grad in trees.flatten(jax.jit(jax.grad(loss))(params)).items():
        largest = float(jnp.abs(grad).max())
        # What adds the same to all scores of a query makes no difference to a softmax.
        last = "key_ln/bias" if "qk_norm" in fields else "key/bias"
        free = name.endswith(last) and fields.get("positions") != "rotary2d"
        assert largest < 1e-5 if free else largest > 1e-4, name


@pytest.mark.parametrize("positions", ["learned2d", "rotary2d", "relative"])
def test_patches_have_an_order(positions):
    model, image = vit(pool="mean", positions=positions), images(8, 12)
    params = random_params(model, image)
    logits, _ = run(model, params, image)
    # The left and the right column of patches change places.
    shuffled = jnp.concatenate(
        [image[:, :, 8:], image[:, :, 4:8], image[:, :, :4]], axis=2
    )
    other, _ = run(model, params, shuffled)
    assert np.abs(logits - other).max() > 1e-2


TABLE_8 = [
    ("learned", "stem", {"pos_embedding": (1, 7, 16)}),
    ("learned", "every_layer", {"pos_embedding": (2, 7, 16)}),
    ("learned", "every_layer_shared", {"pos_embedding": (1, 7, 16)}),
    (
        "learned2d",
        "every_layer",
        {"column_embedding": (2, 3, 8), "row_embedding": (2, 2, 8)},
    ),
]


@pytest.mark.parametrize(("positions", "injection", "tables"), TABLE_8)
def test_tables_are_one_or_one_for_each_layer(positions, injection, tables):
    model = vit(positions=positions, position_injection=injection)
    params = shapes_of(model, images(8, 12))["Transformer"]["posembed_input"]
    assert {name: leaf.shape for name, leaf in params.items()} == tables


@pytest.mark.parametrize("injection", ["every_layer", "every_layer_shared"])
def test_positions_are_added_before_every_layer(injection):
    model, image = vit(position_injection=injection), images(8, 12)
    params = random_params(model, image)
    _, out = run(model, params, image)
    tables = params["Transformer"]["posembed_input"]["pos_embedding"]
    tables = jnp.broadcast_to(tables, (2, 7, 16))
    cls = jnp.broadcast_to(params["cls"], (2, 1, 16))
    x = jnp.concatenate([cls, out["stem"].reshape(2, 6, 16)], axis=1)
    for i, block in enumerate(("block00", "block01")):
        x = x + tables[i][None] + out[f"{block}/attention"] + out[f"{block}/mlp"]
        np.testing.assert_allclose(out[f"{block}/output"], x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", ["rotary2d", "relative", "none"])
def test_only_added_positions_can_be_added_before_every_layer(positions):
    model = vit(positions=positions, position_injection="every_layer")
    with pytest.raises(UserError, match=f"not for '{positions}'; leave it at 'stem'"):
        shapes_of(model, images())


@pytest.mark.parametrize(("size", "method"), [((8, 16), "bicubic"), ((20, 12), "zoom")])
def test_resize_at_run_time_equals_resize_when_loading(size, method):
    model = vit(resolution=16, resize_positions=method)
    params = random_params(model, images(16, 16))
    logits, _ = run(model, params, images(*size))
    flat = trees.flatten(params)
    grid = (size[0] // 4, size[1] // 4)
    flat[POSITIONS] = jnp.asarray(
        resize_positions(np.asarray(flat[POSITIONS]), grid, method)
    )
    expected, _ = run(vit(resolution=size), trees.unflatten(flat), images(*size))
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_model_that_resizes_is_initialised_by_images_of_any_size():
    model = vit(resolution=16, resize_positions="bicubic")
    shapes = trees.flatten(shapes_of(model, images(8, 12)))
    assert shapes[POSITIONS].shape == (1, 1 + 16, 16)


def test_unknown_way_of_resizing_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"resize_positions 'bicubc'.* bicubic,"):
        vit(resize_positions="bicubc")
    with pytest.raises(UserError, match=r"resize_positions 'nearest'.* None"):
        vit(resize_positions="nearest")
    assert vit(resize_positions=None).resize_positions is None

# SPDX-License-Identifier: Apache-2.0
"""Attention, positions and filters of tiny models of every family."""

import functools

import jax
import numpy as np
import pytest

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.models.layers.positions import sincos2d
from vit_jax.plots import attention, first_layer
from vit_jax.plots.opened import open_checkpoint

VIT = {"name": "ViT-Ti/8", "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 16}
SWIN = {
    **{"name": "Swin-T", "width": 8, "depths": (2, 2), "num_heads": (1, 2)},
    **{"window_size": 4, "resolution": 32},
}
HYBRID = {"name": "R50+ViT-B/16", **VIT, "stages": (1,), "patch_size": 2}
HYBRID["name"] = "R50+ViT-B/16"
AXIAL = {**VIT, "name": "Axial-ViT-Ti/8"}
MIXER = {"name": "Mixer-S/8", "width": 4, "depth": 1, "mlp_dim": 4, "token_mlp_dim": 4}
IMAGE = (16, 32, 3)


@functools.cache
def opened(family, shape=IMAGE, **fields):
    base = {
        **{"vit": VIT, "swin": SWIN, "hybrid": HYBRID},
        **{"axial": AXIAL, "mixer": MIXER},
    }[family]
    model = {**base, "num_classes": 3, **fields}
    image = np.zeros((1, *shape), np.float32)
    shapes = jax.eval_shape(build_model(**model).init, jax.random.key(0), image)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: 0.3 * rng.standard_normal(leaf.shape, np.float32),
        shapes["params"],
    )
    ops = "decode|value_range(-1, 1)"
    return open_checkpoint(Checkpoint(params, model, shape, ops))


def images(shape=IMAGE, count=2):
    return np.random.default_rng(1).standard_normal((count, *shape), np.float32)


@functools.cache
def asked(model, return_attention=True):
    def apply(params, image):
        return model.model.apply(
            {"params": params}, image, return_attention=return_attention
        )

    return jax.jit(apply)


def matrices(model, shape=IMAGE):
    """The attention of each layer as the model itself gives it, with its output."""
    _, out = asked(model)(model.params, images(shape))
    return [np.asarray(out[f"block{i:02d}/attention_weights"]) for i in range(2)], out


FORMS = [
    ("vit", {"pool": "cls"}, 1),
    ("vit", {"pool": "mean"}, 0),
    ("vit", {"pool": "cls", "num_registers": 4}, 5),
    ("vit", {"pool": "map"}, 0),
    ("vit", {"pool": "cls", "distillation": True}, 2),
    ("hybrid", {"pool": "cls"}, 1),
]


@pytest.mark.parametrize(("family", "fields", "before"), FORMS)
def test_rollout_is_what_the_head_reads_of_the_product(family, fields, before):
    model = opened(family, **fields)
    layers, out = matrices(model)
    expected = []
    for image in range(2):
        product = np.eye(before + 8)
        for weights in layers:
            product = (weights[image].mean(0) + np.eye(before + 8)) / 2 @ product
        if fields["pool"] == "map":
            (probe,) = np.asarray(out["map_head/attention_weights"])[image].mean(0)
            row = probe @ product
        elif fields["pool"] == "cls":
            row = product[: 2 if "distillation" in fields else 1].mean(0)
        else:
            row = product.mean(0)
        expected.append((row[before:] / row[before:].sum()).reshape(2, 4))
    # The matrices are float32.
    np.testing.assert_allclose(model.rollout(images()), expected, atol=1e-6)


def test_logits_do_not_change_by_asking_and_rows_sum_to_one():
    model = opened("vit")
    plain, _ = asked(model, return_attention=False)(model.params, images())
    logits, _ = asked(model)(model.params, images())
    # Two programs may sum in another order.
    np.testing.assert_allclose(plain, logits, rtol=1e-5)
    weights = model.weights(images())
    assert list(weights) == ["block00", "block01"]
    for each in weights.values():
        assert each.shape == (2, 2, 9, 9)
        np.testing.assert_allclose(each.sum(-1), 1, atol=1e-5)


def test_maps_of_a_query_are_its_row():
    model = opened("vit", num_registers=4)
    layers, _ = matrices(model)
    row = layers[0][:, :, 5 + 4 + 2, 5:]
    expected = (row / row.sum(-1, keepdims=True)).reshape(2, 2, 2, 4)
    np.testing.assert_allclose(model.maps(images(), 0, (1, 2)), expected, atol=1e-6)
    looked = layers[1][:, :, 0, 5:]
    expected = (looked / looked.sum(-1, keepdims=True)).reshape(2, 2, 2, 4)
    np.testing.assert_allclose(model.maps(images()), expected, atol=1e-6)


def test_class_and_mean_are_read_half_and_half():
    model = opened("vit", pool="cls_mean")
    (_, last), _ = matrices(model)
    row = (last[:, :, 0] + last[:, :, 1:].mean(2))[..., 1:]
    expected = (row / row.sum(-1, keepdims=True)).reshape(2, 2, 2, 4)
    np.testing.assert_allclose(model.maps(images()), expected, atol=1e-6)


def test_distances_are_averaged_over_all_images():
    model = opened("vit", num_registers=4)
    layers, _ = matrices(model)
    where = attention.centres((2, 4), (8, 8))[None]
    for weights, found in zip(layers, model.distances(images()), strict=True):
        inner = weights[:, None, :, 5:, 5:]
        expected = attention.mean_distance(inner, where, where)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    twice = np.concatenate([images(), images()] * 5)  # more than one batch
    for one, many in zip(
        model.distances(images()), model.distances(twice), strict=True
    ):
        np.testing.assert_allclose(one, many, rtol=1e-5)


def test_a_hybrid_sees_pixels_by_the_stride_of_its_maps():
    (first, *_) = opened("hybrid").layers
    assert (first.grid, first.stride, first.before) == ((2, 4), (8, 8), 1)


def test_windows_of_swin_are_put_on_the_map():
    shape = (32, 32, 3)
    model = opened("swin", shape)
    names = [layer.name for layer in model.layers]
    assert names == [f"stage{i}/block{j:02d}" for i in range(2) for j in range(2)]
    assert [layer.grid for layer in model.layers] == [(8, 8)] * 2 + [(4, 4)] * 2
    assert model.layers[2].stride == (8, 8)
    maps = model.maps(images(shape), 1)
    assert maps.shape == (2, 1, 8, 8)
    np.testing.assert_allclose(maps.sum((-1, -2)), 1, rtol=1e-5)
    one = model.maps(images(shape), 0, (0, 0))
    assert (one[..., 4:, :] < 1e-9).all()  # beyond its window
    assert (one[..., :, 4:] < 1e-9).all()
    # Within a window of 4 x 4 tokens of 4 pixels nothing is further than this.
    longest = 4 * 3 * np.sqrt(2)
    distances = model.distances(images(shape))
    assert all((0 < heads).all() for heads in distances)
    assert (distances[0] < longest).all()


def test_axial_attention_stays_in_its_row_or_column():
    model = opened("axial")  # 2 x 4 patches of 8 pixels
    assert [layer.name for layer in model.layers] == [
        f"block{i:02d}/{axis}" for i in range(2) for axis in ("row", "column")
    ]
    for number, inside in ((0, np.s_[1, :]), (3, np.s_[:, 2])):
        maps = model.maps(images(), number, (1, 2))
        assert maps.shape == (2, 2, 2, 4)
        np.testing.assert_allclose(maps.sum((-1, -2)), 1, rtol=1e-5)
        maps[(..., *inside)] = 0
        assert (maps == 0).all()
    rows, columns = model.distances(images())[:2]
    # The mean over a row of 4 patches of 8 pixels is at most that to its far end.
    assert (0 < rows).all()
    assert (rows < 3 * 8).all()
    assert (columns < 8).all()
    table, grid = first_layer.positions(model)
    assert (table.shape, grid) == ((8, 16), (2, 4))
    np.testing.assert_array_equal(
        table, model.params["Transformer"]["posembed_input"]["pos_embedding"][0]
    )
    with pytest.raises(UserError, match="AxialViT attend within windows or lines"):
        model.rollout(images())


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(UserError, match="tokens of a Swin attend within windows"):
        opened("swin", (32, 32, 3)).rollout(images((32, 32, 3)))
    with pytest.raises(UserError, match="Mixer has no attention"):
        opened("mixer", (16, 16, 3), resolution=16).rollout(images((16, 16, 3)))
    with pytest.raises(UserError, match="no layer 2: the model has 2"):
        opened("vit").maps(images(), 2)
    with pytest.raises(UserError, match="no patch in row 0 and column 4"):
        opened("vit").maps(images(), 0, (0, 4))


def test_positions_are_the_rows_of_the_patches():
    model = opened("vit")
    table, grid = first_layer.positions(model)
    stored = model.params["Transformer"]["posembed_input"]["pos_embedding"]
    np.testing.assert_array_equal(table, stored[0, 1:])
    assert grid == (2, 4)


def test_positions_of_every_layer_and_of_rows_and_columns():
    model = opened("vit", position_injection="every_layer")
    stored = model.params["Transformer"]["posembed_input"]["pos_embedding"]
    np.testing.assert_array_equal(first_layer.positions(model, -1)[0], stored[1, 1:])
    with pytest.raises(UserError, match="no position table 2: the model has 2"):
        first_layer.positions(model, 2)
    model = opened("vit", positions="learned2d")
    tables = model.params["Transformer"]["posembed_input"]
    row, column = tables["row_embedding"][0, 1], tables["column_embedding"][0, 2]
    expected = np.concatenate([column, row])
    np.testing.assert_array_equal(first_layer.positions(model)[0][4 + 2], expected)
    model = opened("vit", positions="sincos2d")
    np.testing.assert_array_equal(first_layer.positions(model)[0], sincos2d(2, 4, 16))


def test_positions_of_swin_are_its_absolute_ones():
    model = opened("swin", (32, 32, 3), absolute_positions=True)
    table, grid = first_layer.positions(model)
    assert grid == (8, 8)
    np.testing.assert_array_equal(table[9], model.params["absolute_pos_embed"][0, 1, 1])


def test_models_without_a_table_are_named():
    with pytest.raises(UserError, match="'rotary2d', act within the attention"):
        first_layer.positions(opened("vit", positions="rotary2d"))
    with pytest.raises(UserError, match="Swin adds no position embeddings"):
        first_layer.positions(opened("swin", (32, 32, 3)))


def test_filters_are_those_that_see_the_picture():
    model = opened("vit")
    np.testing.assert_array_equal(
        first_layer.filters(model), model.params["embedding"]["kernel"]
    )
    assert first_layer.filters(opened("hybrid")).shape == (7, 7, 3, 64)
    assert first_layer.filters(opened("swin", (32, 32, 3))).shape == (4, 4, 3, 8)


def test_another_resolution_resizes_the_positions():
    model = opened("vit", (16, 16, 3))
    larger = open_checkpoint(
        Checkpoint(model.params, {**VIT, "num_classes": 3}, (16, 16, 3), model.ops), 32
    )
    assert larger.image_shape == (32, 32, 3)
    assert "32" in larger.ops
    table, grid = first_layer.positions(larger)
    assert grid == (4, 4)
    # zoom keeps the corners.
    small, _ = first_layer.positions(model)
    np.testing.assert_allclose(table[[0, 3, 12, 15]], small, atol=1e-6)
    assert larger.rollout(images((32, 32, 3))).shape == (2, 4, 4)

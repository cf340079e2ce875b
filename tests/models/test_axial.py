# SPDX-License-Identifier: Apache-2.0
"""Axial-ViT against NumPy, and what its attention can and cannot see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.checkpoints.adapt import adapt
from vit_jax.checkpoints.class_rows import TABLE
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.models.layers.positions import sincos2d
from vit_jax.models.stacking import stack_blocks

SIZES = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 24}
# 3 rows and 2 columns of patches: rows and columns cannot be taken for each other.
IMAGE = np.random.default_rng(0).uniform(-1, 1, (2, 12, 8, 3)).astype(np.float32)


def axial(**fields):
    given = {"num_classes": 3, "resolution": (12, 8), **SIZES, **fields}
    return build_model("Axial-ViT-Ti/4", **given)


def random_params(model, image=IMAGE):
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def draw(name, leaf):
        centre = 1.0 if name.endswith("scale") else 0.0
        return rng.normal(centre, 0.3, leaf.shape).astype(np.float32)

    return trees.map_with_name(draw, shapes)


def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attend(line, p):
    """Attention among the tokens of one row or column, head by head."""
    project = {
        n: np.tensordot(line, p[n]["kernel"], 1) + p[n]["bias"]
        for n in ("query", "key", "value")
    }
    y, weights = np.zeros_like(line) + p["out"]["bias"], []
    for head in range(SIZES["num_heads"]):
        query, key, value = (
            project[name][:, head] for name in ("query", "key", "value")
        )
        logits = query @ key.T / np.sqrt(query.shape[-1])
        exp = np.exp(logits - logits.max(-1, keepdims=True))
        weights.append(exp / exp.sum(-1, keepdims=True))
        y = y + weights[-1] @ value @ p["out"]["kernel"][head]
    return y, np.stack(weights)


def half(x, p, axis):
    """One example's map after attention along an axis and an MLP."""
    attention = p["MultiHeadDotProductAttention_0"]
    y = norm(x, p["LayerNorm_0"])
    lines = [y[i] for i in range(len(y))] if axis == "row" else list(y.swapaxes(0, 1))
    done = [attend(line, attention) for line in lines]
    branch = np.stack([each for each, _ in done], 0 if axis == "row" else 1)
    x = x + branch
    first, second = p["MlpBlock_0"]["Dense_0"], p["MlpBlock_0"]["Dense_1"]
    hidden = gelu(norm(x, p["LayerNorm_1"]) @ first["kernel"] + first["bias"])
    x = x + hidden @ second["kernel"] + second["bias"]
    return x, np.stack([weights for _, weights in done])


def numpy_model(params, image, positions):
    """Logits, the map after each half of a block, and the attention of each."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    logits, maps, attention = [], [], []
    for pixels in image.astype(np.float64):
        rows, columns = pixels.shape[0] // 4, pixels.shape[1] // 4
        kernel = p["embedding"]["kernel"].reshape(4 * 4 * 3, -1)
        patches = pixels.reshape(rows, 4, columns, 4, 3).swapaxes(1, 2)
        x = patches.reshape(rows, columns, -1) @ kernel + p["embedding"]["bias"]
        x = x + positions.reshape(x.shape)
        halves = []
        for i in range(SIZES["depth"]):
            for axis in ("row", "column"):
                block = p["Transformer"][f"encoderblock_{i}"][axis]
                x, weights = half(x, block, axis)
                halves.append((x, weights))
        x = norm(x, p["Transformer"]["encoder_norm"]).mean((0, 1))
        if "pre_logits" in p:
            x = np.tanh(x @ p["pre_logits"]["kernel"] + p["pre_logits"]["bias"])
        logits.append(x @ p["head"]["kernel"] + p["head"]["bias"])
        maps.append([each for each, _ in halves])
        attention.append([weights for _, weights in halves])
    return np.stack(logits), maps, attention


@pytest.mark.parametrize(
    "fields",
    [{}, {"representation_size": 5, "positions": "sincos2d"}, {"positions": "none"}],
    ids=str,
)
def test_it_equals_numpy_at_every_stop(fields):
    model = axial(**fields)
    params = random_params(model)
    positions = np.zeros((6, 16))
    if model.positions == "sincos2d":
        positions = sincos2d(3, 2, 16)
    if model.positions == "learned":
        positions = params["Transformer"]["posembed_input"]["pos_embedding"][0]
    expected, maps, attention = numpy_model(params, IMAGE, positions)

    def run(params, image):
        return model.apply({"params": params}, image, return_attention=True)

    logits, out = jax.jit(run)(params, IMAGE)
    # Rounding of float32 in some hundred additions of numbers of size 1.
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    names = [
        name
        for i in range(SIZES["depth"])
        for name in (f"block{i:02d}/row/output", f"block{i:02d}/output")
    ]
    weights = [
        f"block{i:02d}/{axis}/attention_weights"
        for i in range(SIZES["depth"])
        for axis in ("row", "column")
    ]
    for example in range(len(IMAGE)):
        for number, name in enumerate(names):
            np.testing.assert_allclose(
                out[name][example], maps[example][number], rtol=1e-4, atol=1e-4
            )
        for number, name in enumerate(weights):
            np.testing.assert_allclose(
                out[name][example], attention[example][number], atol=1e-5
            )


def test_a_token_reaches_its_row_then_the_whole_map():
    model = axial(depth=1, positions="none")
    params = random_params(model)
    other = IMAGE.copy()
    other[:, :4, 4:8] += 1  # the patch in row 0 and column 1
    run = jax.jit(lambda image: model.apply({"params": params}, image)[1])
    before, after = run(IMAGE), run(other)

    def changed(name):
        return np.abs(before[name] - after[name]).max((0, 3)) > 1e-6

    first_row = np.zeros((3, 2), bool)
    first_row[0] = True
    np.testing.assert_array_equal(changed("block00/row/output"), first_row)
    assert changed("block00/output").all()


def test_scanned_blocks_equal_single_ones():
    model = axial(drop_path_rate=0.6, dropout_rate=0.1)
    params = random_params(model)
    plain = jax.jit(lambda p: model.apply({"params": p}, IMAGE))
    scanned = model.clone(scan=True, remat="full")
    stacked = jax.jit(lambda p: scanned.apply({"params": p}, IMAGE))
    logits, out = plain(params)
    got, got_out = stacked(stack_blocks(params))
    np.testing.assert_allclose(got, logits, rtol=1e-4, atol=1e-5)
    assert out.keys() == got_out.keys()
    for name, array in out.items():
        np.testing.assert_allclose(
            got_out[name], array, rtol=1e-4, atol=1e-4, err_msg=name
        )


def test_stochastic_depth_drops_whole_examples():
    model = axial(depth=2, drop_path_rate=0.5)
    params = random_params(model)
    image = np.repeat(IMAGE[:1], 16, axis=0)
    rngs = {"drop_path": jax.random.key(3)}
    _, out = jax.jit(
        lambda p: model.apply({"params": p}, image, train=True, rngs=rngs)
    )(params)
    step = np.abs(out["block01/row/output"] - out["block00/output"]).max(-1)
    # The first half of the last block: an example's map changes everywhere or nowhere.
    still = (step < 1e-7).reshape(16, -1)
    assert (still.all(1) | (~still).all(1)).all()
    assert 0 < still.all(1).sum() < 16


def test_a_table_may_be_resized_when_the_model_runs():
    model = axial()
    params = random_params(model)
    large = np.zeros((1, 24, 16, 3), np.float32)
    with pytest.raises(UserError, match=r"a grid of 3x2 patches, .* has 6x4"):
        model.apply({"params": params}, large)
    wide = model.clone(resize_positions="bicubic")
    _, out = jax.eval_shape(wide.apply, {"params": params}, jnp.asarray(large))
    assert out["encoded"].shape == (1, 6, 4, 16)


def test_a_side_that_the_patch_does_not_divide_is_refused():
    with pytest.raises(UserError, match="width 10 does not divide into patches"):
        axial().init(jax.random.key(0), np.zeros((1, 12, 10, 3), np.float32))


def test_positions_within_the_attention_are_not_offered():
    with pytest.raises(UserError, match="unknown positions 'relative'"):
        axial(positions="relative")


def test_weights_go_into_another_resolution():
    loaded = trees.flatten(random_params(axial()))
    large = np.zeros((1, 24, 16, 3), np.float32)
    target = trees.flatten(random_params(axial(resolution=(24, 16)), large))
    params, report = adapt(
        loaded, target, position_resize="zoom", grids=((3, 2), (6, 4))
    )
    assert report.names("resized") == [TABLE]
    assert len(report.names("taken")) == len(target) - 1
    old = loaded[TABLE].reshape(3, 2, 16)
    new = params[TABLE].reshape(6, 4, 16)
    corners = np.ix_([0, -1], [0, -1])
    np.testing.assert_allclose(new[corners], old[corners], rtol=1e-6)

# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model

SIZES = {
    "width": 16,
    "depths": (2, 1),
    "num_heads": (2, 4),
    "patch_size": 2,
    "window_size": 2,
    "resolution": 8,
}


def swin(**overrides):
    return build_model("Swin-T", **{"num_classes": 3, **SIZES, **overrides})


def images(height=8, width=8, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    pixels = rng.uniform(-1, 1, (batch, height, width, 3))
    return jnp.asarray(pixels, jnp.float32)


def random_params(model, image):
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def draw(name, leaf):
        values = rng.normal(1.0 if name.endswith("scale") else 0.0, 0.3, leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    return trees.map_with_name(draw, shapes)


def run(model, image, **kwargs):
    params = random_params(model, image)
    apply = jax.jit(model.apply, static_argnames=("train", "return_attention"))
    return apply({"params": params}, image, **kwargs)


@functools.cache
def evaluated():
    """Outputs of a model in evaluation, one compilation for all who ask for it."""
    return jax.device_get(run(swin(), images())[1])


def shapes_of(model, image):
    variables = jax.eval_shape(model.init, jax.random.key(0), image)
    return trees.flatten(variables["params"])


def test_outputs_are_the_documented_ones():
    model, image = swin(), images(8, 16)
    variables = jax.eval_shape(model.init, jax.random.key(0), image)
    logits, out = jax.eval_shape(
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
    assert logits.shape == (2, 3)


def test_blocks_are_residual():
    out = evaluated()
    total = out["stage0/block00/output"]
    total = total + out["stage0/block01/attention"] + out["stage0/block01/mlp"]
    np.testing.assert_allclose(
        out["stage0/block01/output"], total, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(out["stage0/output"], out["stage0/block01/output"])


def test_features_are_the_mean_of_the_last_map():
    out = evaluated()
    mean = out["encoded"].mean((1, 2))
    np.testing.assert_allclose(out["pre_logits"], mean, rtol=1e-5, atol=1e-6)


def test_head_sees_pre_logits():
    out = evaluated()
    head = random_params(swin(), images())["head"]
    expected = out["pre_logits"] @ head["kernel"] + head["bias"][None]
    np.testing.assert_allclose(out["logits"], expected, rtol=1e-5, atol=1e-5)


def changed(kind, name, place):
    """Which tokens of an output change with one patch of the image."""
    model = swin(window_kind=kind, depths=(2,), num_heads=(2,))
    image = images(batch=1)
    params = random_params(model, image)
    apply = jax.jit(lambda image: model.apply({"params": params}, image)[1][name])
    row, column = (2 * side for side in place)
    other = image.at[:, row : row + 2, column : column + 2].add(0.5)
    return (apply(image) != apply(other)).any(-1)[0]


@pytest.mark.parametrize("kind", ["shifted", "fixed"])
def test_the_first_block_of_a_stage_stays_in_its_windows(kind):
    expected = np.zeros((4, 4), bool)
    expected[:2, 2:] = True
    np.testing.assert_array_equal(
        changed(kind, "stage0/block00/output", (1, 2)), expected
    )


def test_the_second_block_reaches_the_windows_around_it():
    # After one shift, the window of rows 0-1 and columns 2-3 has met all that it
    # shares a shifted window with: rows 0-2 and columns 1-3; the corner window of rows
    # 0 and columns 3 is cut off from the other side of the map.
    expected = np.zeros((4, 4), bool)
    expected[:3, 1:] = True
    np.testing.assert_array_equal(
        changed("shifted", "stage0/block01/output", (1, 2)), expected
    )
    expected[:] = False
    expected[:2, 2:] = True
    np.testing.assert_array_equal(
        changed("fixed", "stage0/block01/output", (1, 2)), expected
    )


def test_sliding_windows_surround_their_query():
    # A window of 2 is its query and the place before it; 0 and 1 share one. So place 1
    # is seen from 0, 1 and 2, and place 2 from 2 and 3.
    expected = np.zeros((4, 4), bool)
    expected[:3, 2:] = True
    np.testing.assert_array_equal(
        changed("sliding", "stage0/block00/output", (1, 2)), expected
    )


def test_kinds_of_windows_share_their_parameters():
    expected = {k: v.shape for k, v in shapes_of(swin(), images()).items()}
    for kind in ("fixed", "sliding"):
        shapes = shapes_of(swin(window_kind=kind), images())
        assert {k: v.shape for k, v in shapes.items()} == expected


def test_tensors_are_as_many_as_in_the_published_files():
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    for name, tensors in (("Swin-T", 173), ("Swin-S", 329)):
        assert len(shapes_of(build_model(name, num_classes=1000), image)) == tensors


def test_table_has_a_row_for_each_offset():
    table = "layers_0/blocks_0/attn/relative_position_bias_table"
    assert shapes_of(swin(), images())[table].shape == (9, 2)
    model = swin(window_size=(2, 4))
    assert shapes_of(model, images(8, 8))[table].shape == (3 * 7, 2)
    assert table not in shapes_of(swin(relative_positions=False), images())


def test_absolute_positions_are_added_to_the_stem():
    model, image = swin(absolute_positions=True, depths=(1,), num_heads=(2,)), images()
    params = random_params(model, image)
    assert params["absolute_pos_embed"].shape == (1, 4, 4, 16)

    def first_sum(params):
        out = model.apply({"params": params}, image)[1]
        block = "stage0/block00"
        return out[f"{block}/output"] - out[f"{block}/attention"] - out[f"{block}/mlp"]

    expected = jax.jit(model.apply)({"params": params}, image)[1]["stem"]
    expected = expected + params["absolute_pos_embed"]
    np.testing.assert_allclose(
        jax.jit(first_sum)(params), expected, rtol=1e-4, atol=1e-4
    )


def test_absolute_positions_of_another_grid_are_refused():
    model = swin(absolute_positions=True)
    with pytest.raises(UserError, match="grid of 4x4 patches, but the image has 4x8"):
        model.init(jax.random.key(0), images(8, 16))


def test_larger_images_keep_the_windows():
    model = swin()
    params = random_params(model, images())
    logits, out = jax.eval_shape(
        functools.partial(model.apply, return_attention=True),
        {"params": params},
        images(16, 24),
    )
    assert logits.shape == (2, 3)
    assert out["stage1/block00/attention_weights"].shape == (2, 2 * 3, 4, 4, 4)


def test_size_that_does_not_divide_is_refused_without_padding():
    with pytest.raises(UserError, match=r"height 10 .*resize it to 8 or 16.*pad=True"):
        swin().init(jax.random.key(0), images(10, 8))
    with pytest.raises(UserError, match=r"resolution 10 .*use 8 or 16.*or pad=True"):
        swin(resolution=10, window_size=2).init(jax.random.key(0), images(10, 10))


def test_padding_takes_any_size():
    model = swin(pad=True)
    params = random_params(model, images())
    logits, out = jax.jit(model.apply)({"params": params}, images(9, 13))
    assert np.isfinite(logits).all()
    assert out["stem"].shape == (2, 5, 7, 16)
    assert out["encoded"].shape == (2, 3, 4, 32)


def test_padding_changes_nothing_where_none_is_needed():
    params = random_params(swin(), images())
    padded = jax.jit(swin(pad=True).apply)({"params": params}, images())[0]
    np.testing.assert_array_equal(padded, evaluated()["logits"])


def test_stages_and_heads_that_do_not_go_together_are_refused():
    with pytest.raises(UserError, match="depths has 2 stages, but num_heads has 1"):
        swin(num_heads=(2,)).init(jax.random.key(0), images())
    with pytest.raises(UserError, match="width of stage 0, 16, is no multiple of its"):
        swin(num_heads=(3, 6)).init(jax.random.key(0), images())


def test_unknown_kind_of_windows_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="unknown window_kind 'shift'; did you mean"):
        swin(window_kind="shift")


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
        # After the embedding; in each of 3 blocks after the projection, the GELU and
        # the second layer of the MLP.
        ({"dropout_rate": 0.1}, 1 + 3 * 3),
        ({"attention_dropout_rate": 0.1}, 3),
        # Both branches of the second and third block; the ramp starts at 0.
        ({"drop_path_rate": 0.1}, 4),
    ],
)
def test_dropout_is_free_where_it_is_off(rates, draws):
    model, image = swin(**rates), images()
    variables = jax.eval_shape(model.init, jax.random.key(0), image)

    def jaxpr(train):
        rngs = {"dropout": jax.random.key(0), "drop_path": jax.random.key(1)}
        apply = functools.partial(model.apply, train=train, rngs=rngs)
        return jax.make_jaxpr(apply)(variables, image).jaxpr

    assert count_draws(jaxpr(True)) == draws
    assert count_draws(jaxpr(False)) == 0


def test_drop_path_keeps_the_mean_and_grows_over_the_stages():
    # Without MLPs, a block adds its attention or twice its attention or nothing.
    model = swin(drop_path_rate=0.5, depths=(1, 1), resolution=4, window_size=1)
    image = jnp.tile(images(4, 4, batch=1), (4000, 1, 1, 1))
    params = random_params(model, image[:1])
    for stage in ("layers_0", "layers_1"):
        mlp = params[stage]["blocks_0"]["mlp"]
        mlp["fc2"] = jax.tree.map(jnp.zeros_like, mlp["fc2"])

    @jax.jit
    def ratios(key):
        out = model.apply(
            {"params": params}, image, train=True, rngs={"drop_path": key}
        )[1]
        last = out["stage1/block00/output"], out["stage1/block00/attention"]
        first = out["stage0/output"] - out["stem"], out["stage0/block00/attention"]
        return jnp.mean(first[0] / first[1]), jnp.std(last[0], axis=0), *last

    ratio, spread, sums, branch = ratios(jax.random.key(0))
    np.testing.assert_allclose(ratio, 1, rtol=1e-3)
    # The standard deviation of twice a fair coin is one, so the spread is the branch;
    # the mean of 4000 draws is within five standard errors.
    np.testing.assert_allclose(spread, np.abs(branch[0]), rtol=0.01)
    levels = np.unique(np.round(np.asarray(sums[:, 0, 0, 0]), 4))
    assert len(levels) == 2
    middle = np.asarray(sums).mean(0)
    expected = levels.mean()
    assert abs(middle[0, 0, 0] - expected) < 5 * spread[0, 0, 0] / 4000**0.5

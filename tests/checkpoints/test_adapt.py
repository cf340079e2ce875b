# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.checkpoints.adapt import adapt
from vit_jax.checkpoints.class_rows import TABLE
from vit_jax.errors import UserError
from vit_jax.models import build_model

SIZES = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 16, "patch_size": 4}


def init(seed: int, size: tuple[int, int] = (8, 8), **fields) -> dict[str, np.ndarray]:
    """Returns random parameters of a tiny ViT with 3 classes, by name."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=leaf.shape).astype(leaf.dtype)
        for name, leaf in shapes(size, tuple(fields.items())).items()
    }


@functools.cache
def shapes(size: tuple[int, int], fields: tuple) -> dict[str, jax.ShapeDtypeStruct]:
    model = build_model("ViT-Ti/16", **{"num_classes": 3, **SIZES, **dict(fields)})
    image = jnp.zeros((1, *size, 3))
    return trees.flatten(jax.eval_shape(model.init, jax.random.key(0), image)["params"])


def changed(report) -> dict[str, tuple[str, str]]:
    return {e.name: (e.action, e.detail) for e in report.entries if e.action != "taken"}


def test_all_of_the_same_model_is_taken_and_is_the_same_array():
    loaded, target = init(0), init(1)
    params, report = adapt(loaded, target, position_resize="none")
    assert list(params) == list(target)
    assert all(params[name] is loaded[name] for name in target)
    assert report.names("taken") == list(target)
    assert report.summary() == f"{len(target)} taken"


@pytest.mark.parametrize("grid", [(2, 4), (4, 2), (1, 8)])
def test_positions_of_a_model_that_is_not_square_are_taken_bit_for_bit(grid):
    size = (4 * grid[0], 4 * grid[1])
    loaded, target = init(0, size), init(1, size)
    for grids in [(grid, grid), (None, None)]:
        params, _ = adapt(loaded, target, position_resize="zoom", grids=grids)
        np.testing.assert_array_equal(params[TABLE], loaded[TABLE])


def test_another_resolution_changes_the_positions_alone():
    loaded, target = init(0), init(1, (12, 12))
    params, report = adapt(loaded, target, position_resize="zoom")
    assert changed(report) == {TABLE: ("resized", "2x2 -> 3x3, zoom")}
    old, new = loaded[TABLE][0], params[TABLE][0]
    assert new.dtype == np.float32
    np.testing.assert_array_equal(new[0], old[0])
    # Corners stay, and what lies between is the mean of what it lies between.
    np.testing.assert_array_equal(new[[1, 3, 7, 9]], old[1:])
    np.testing.assert_allclose(new[2], (old[1] + old[2]) / 2, rtol=1e-6)
    np.testing.assert_allclose(new[5], old[1:].mean(0), rtol=1e-5)


@pytest.mark.parametrize("rows", [196, 197, 576, 577, 49, 50])
@pytest.mark.parametrize("class_position", [False, True])
def test_tables_of_any_count_go_into_a_model_of_24_x_24(rows, class_position):
    with_row = rows % 2 == 1 if rows > 50 else rows == 50
    loaded = {"cls": np.ones((1, 1, 2), np.float32), TABLE: np.ones((1, rows, 2))}
    count = 576 + class_position
    target = {
        "cls": jax.ShapeDtypeStruct((1, 1, 2), np.float32),
        TABLE: jax.ShapeDtypeStruct((1, count, 2), np.float32),
    }
    params, report = adapt(loaded, target, position_resize="zoom")
    assert params[TABLE].shape == (1, count, 2)
    # Whatever the forms, the class token gets 1, and its row of 1 if it has one.
    first = params["cls"] + (params[TABLE][:, :1] if class_position else 0)
    assert first.ravel().tolist() == ([2, 2] if with_row else [1, 1])
    np.testing.assert_allclose(params[TABLE][:, class_position:], 1, rtol=1e-6)
    assert (TABLE in report.names("taken")) == (rows == count)


def test_a_class_row_that_the_model_does_not_have_is_folded():
    loaded = init(0)
    target = init(1, class_position=False)
    params, report = adapt(loaded, target, position_resize="zoom")
    assert changed(report) == {
        "cls": ("folded", "plus its row of the position table"),
        TABLE: ("folded", "without the row of cls"),
    }
    expected = loaded["cls"] + loaded[TABLE][:, :1]
    np.testing.assert_array_equal(params["cls"], expected)
    np.testing.assert_array_equal(params[TABLE], loaded[TABLE][:, 1:])


def test_folded_weights_give_the_same_logits(rng):
    image = rng.normal(size=(2, 8, 8, 3)).astype(np.float32)
    loaded = init(0)
    both = []
    for fields in ({"class_position": True}, {"class_position": False}):
        params, _ = adapt(loaded, init(1, **fields), position_resize="zoom")
        model = build_model("ViT-Ti/16", num_classes=3, **SIZES, **fields)
        tree = jax.tree.map(jnp.asarray, trees.unflatten(params))
        both.append(jax.jit(model.apply)({"params": tree}, image)[0])
    np.testing.assert_allclose(both[0], both[1], atol=1e-5)


def test_folded_and_resized_is_told_in_one_line():
    loaded, target = init(0), init(1, (12, 12), class_position=False)
    _, report = adapt(loaded, target, position_resize="zoom")
    detail = "without the row of cls; 2x2 -> 3x3, zoom"
    assert changed(report)[TABLE] == ("resized", detail)


def test_another_patch_size_is_resampled():
    loaded, target = init(0), init(1, (16, 16), patch_size=8)
    params, report = adapt(loaded, target, position_resize="none")
    assert changed(report) == {
        "embedding/kernel": ("resized", "4x4 -> 8x8, pseudo-inverse")
    }
    assert params["embedding/kernel"].shape == (8, 8, 3, 8)
    assert params["embedding/kernel"].dtype == np.float32


def test_windows_of_another_size_are_resized():
    name = "layers_0/blocks_0/attn/relative_position_bias_table"
    loaded = {name: np.arange(9, dtype=np.float32)[:, None]}
    target = {name: np.zeros((25, 1), np.float32)}
    params, report = adapt(loaded, target, position_resize="geometric")
    assert changed(report) == {name: ("resized", "3x3 -> 5x5, geometric")}
    # The middle offset is that of a token to itself, whatever the window.
    assert params[name][12] == 4


def test_a_head_for_other_classes_needs_to_be_allowed():
    loaded, target = init(0), init(1, num_classes=5)
    message = "head does not fit: 3 classes on 8 features -> 5 classes on 8 features"
    with pytest.raises(UserError, match=message):
        adapt(loaded, target, position_resize="zoom")
    params, report = adapt(loaded, target, position_resize="zoom", head="reset")
    assert changed(report) == {
        "head/kernel": (
            "re-initialised",
            "3 classes on 8 features -> 5 classes on 8 features",
        ),
        "head/bias": (
            "re-initialised",
            "3 classes on 8 features -> 5 classes on 8 features",
        ),
    }
    for name in ("head/kernel", "head/bias"):
        assert params[name] is target[name]


def test_a_head_that_fits_stays_though_another_is_allowed():
    loaded = init(0)
    params, _ = adapt(loaded, init(1), position_resize="zoom", head="reset")
    assert params["head/kernel"] is loaded["head/kernel"]


def test_a_head_that_is_asked_to_start_anew_does_so_though_it_fits():
    target = init(1)
    params, report = adapt(
        init(0), target, position_resize="zoom", reset=("head/.*", "head_dist/.*")
    )
    assert report.names("re-initialised") == ["head/bias", "head/kernel"]
    assert params["head/kernel"] is target["head/kernel"]
    assert report.unused == ("head_dist/.*",)
    assert "reset matched nothing: head_dist/.*" in report.summary()


def test_a_pattern_matches_whole_names():
    _, report = adapt(init(0), init(1), position_resize="zoom", reset=("head",))
    assert report.names("re-initialised") == []
    assert report.unused == ("head",)


def test_a_checkpoint_without_a_head_gets_a_new_one():
    loaded, target = init(0, num_classes=0), init(1)
    message = "head does not fit: no head -> 3 classes on 8 features"
    with pytest.raises(UserError, match=message):
        adapt(loaded, target, position_resize="zoom")
    params, _ = adapt(loaded, target, position_resize="zoom", head="reset")
    assert params["head/bias"] is target["head/bias"]


def test_a_model_without_a_head_drops_it_when_allowed():
    loaded, target = init(0), init(1, num_classes=0)
    with pytest.raises(UserError, match="3 classes on 8 features -> no head"):
        adapt(loaded, target, position_resize="zoom")
    for options in ({"head": "reset"}, {"reset": ("head/.*",)}):
        _, report = adapt(loaded, target, position_resize="zoom", **options)
        assert report.names("dropped") == ["head/bias", "head/kernel"]


def test_the_layer_before_the_head_is_dropped_and_the_head_with_it():
    # The width is that of the tokens, so that the shapes of the heads agree.
    loaded, target = init(0, representation_size=8), init(1)
    message = "head does not fit: it was trained on pre_logits, which the model does n"
    with pytest.raises(UserError, match=message):
        adapt(loaded, target, position_resize="zoom")
    params, report = adapt(loaded, target, position_resize="zoom", head="reset")
    assert report.names("dropped") == ["pre_logits/bias", "pre_logits/kernel"]
    assert report.names("re-initialised") == ["head/bias", "head/kernel"]
    assert list(params) == list(target)


def test_a_layer_before_the_head_that_is_missing_is_an_error():
    loaded, target = init(0), init(1, representation_size=8)
    with pytest.raises(UserError, match="it lacks pre_logits/bias, pre_logits/kernel;"):
        adapt(loaded, target, position_resize="zoom")
    reset = ("pre_logits/.*",)
    params, _ = adapt(loaded, target, position_resize="zoom", reset=reset)
    assert params["pre_logits/kernel"] is target["pre_logits/kernel"]


def test_arrays_that_are_left_over_or_missing_are_named_with_their_neighbours():
    loaded, target = init(0), init(1)
    loaded["Transformer/encoder_norms/scale"] = loaded.pop(
        "Transformer/encoder_norm/scale"
    )
    match = (
        r"it lacks Transformer/encoder_norm/scale \(near Transformer/encoder_norms/"
        r"scale\) and it has, and the model has not, Transformer/encoder_norms/scale "
        r"\(near Transformer/encoder_norm/scale\); choose the model"
    )
    with pytest.raises(UserError, match=match):
        adapt(loaded, target, position_resize="zoom")


def test_of_many_names_five_are_shown():
    # A block has 16 arrays.
    match = "has, and the model has not, (Transformer/encoderblock_1/[^,]*(, )?){5} and"
    with pytest.raises(UserError, match=f"{match} 11 more; choose"):
        adapt(init(0, depth=2), init(1), position_resize="zoom")


def test_arrays_of_other_shapes_are_named_with_both():
    match = r"arrays .* do not fit .*Dense_0/kernel \(8, 16\), model \(8, 32\)"
    with pytest.raises(UserError, match=match):
        adapt(init(0), init(1, mlp_dim=32), position_resize="zoom")


def test_a_class_token_that_the_model_does_not_have_is_an_error():
    target = init(1, pool="mean", class_position=False)
    with pytest.raises(UserError, match="it has, and the model has not, cls"):
        adapt(init(0), target, position_resize="zoom")


def test_a_mixer_keeps_its_number_of_patches():
    name = "MixerBlock_0/token_mixing/Dense_0/kernel"
    loaded, target = {name: np.zeros((196, 4))}, {name: np.zeros((576, 4))}
    with pytest.raises(UserError, match="mixes 196 patches and cannot take 576: "):
        adapt(loaded, target, position_resize="none")


def test_a_bad_pattern_is_told():
    with pytest.raises(UserError, match=r"reset holds a bad regular expression: '\('"):
        adapt(init(0), init(1), position_resize="zoom", reset=("(",))


def test_the_dtype_is_that_of_the_model_and_told():
    loaded = {name: array.astype(np.float16) for name, array in init(0).items()}
    target = init(1) | {"cls": np.zeros((1, 1, 8), ml_dtypes.bfloat16)}
    params, report = adapt(loaded, target, position_resize="zoom")
    for name, leaf in target.items():
        assert params[name].dtype == leaf.dtype
    np.testing.assert_array_equal(params["head/kernel"], loaded["head/kernel"])
    assert changed(report) == {}
    lines = report.summary().splitlines()
    assert f"  taken (float16 -> float32): {len(target) - 1}, such as" in lines[1]
    assert lines[2] == "  taken (float16 -> bfloat16): 1, such as cls"


def test_shapes_are_enough_of_a_target():
    loaded = init(0)
    target = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for name, leaf in init(1, num_classes=5).items()
    }
    params, _ = adapt(loaded, target, position_resize="zoom", head="reset")
    assert params["head/bias"] == jax.ShapeDtypeStruct((5,), np.float32)
    assert params["cls"] is loaded["cls"]

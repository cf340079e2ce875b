# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest

from vit_jax.checkpoints.class_rows import TABLE
from vit_jax.checkpoints.fit import fit
from vit_jax.errors import UserError

COLUMNS = "Transformer/posembed_input/column_embedding"
BIAS = "layers_0/blocks_0/attn/relative_position_bias_table"


def positions(values: list[float], *first: float) -> np.ndarray:
    return np.array([*first, *values], np.float32)[None, :, None]


# Four values on a line, put on a line of eight: corners aligned, half-pixel linear,
# cubic with a = -0.5.
LINES = {
    "zoom": [0, 0.4286, 0.8571, 1.2857, 1.7143, 2.1429, 2.5714, 3],
    "bilinear": [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3],
    "bicubic-antialias": [
        *(-0.0882, 0.1679, 0.7099, 1.25, 1.75, 2.2901, 2.8321, 3.0882),
    ],
}


@pytest.mark.parametrize("method", LINES)
@pytest.mark.parametrize("first", [(), (9.0,), (9.0, 8.0)])
def test_positions_are_resized_by_the_method_of_their_origin(method, first):
    # 4x1 to 8x1, with rows of tokens before them that stay.
    table = positions([0, 1, 2, 3], *first)
    fitted = fit(TABLE, table, (1, 8 + len(first), 1), method, ((4, 1), (8, 1)))
    expected = [*first, *LINES[method]]
    np.testing.assert_allclose(fitted.array[0, :, 0], expected, atol=1e-4)
    assert fitted.action == "resized"
    assert fitted.detail == f"4x1 -> 8x1, {method}"


@pytest.mark.parametrize("method", ["zoom", "bicubic", "none"])
@pytest.mark.parametrize("grid", [None, (4, 4), (2, 8)])
def test_positions_of_the_same_grid_are_the_same_array(rng, method, grid):
    table = rng.normal(size=(1, 17, 3)).astype(np.float32)
    fitted = fit(TABLE, table, (1, 17, 3), method, (grid, grid))
    assert fitted == (table, "taken", "")
    assert fitted.array is table


def test_positions_of_an_unknown_grid_that_is_no_square_are_the_same_array(rng):
    table = rng.normal(size=(1, 8, 3)).astype(np.float32)
    assert fit(TABLE, table, (1, 8, 3), "zoom").array is table


def test_grids_are_compared_and_not_their_counts():
    # Value = row. 2x8 and 4x4 have 16 patches both.
    table = positions([float(row) for row in range(2) for _ in range(8)])
    fitted = fit(TABLE, table, (1, 16, 1), "zoom", ((2, 8), None))
    rows = fitted.array.reshape(4, 4)
    np.testing.assert_allclose(rows[:, 0], [0, 1 / 3, 2 / 3, 1], atol=1e-12)
    np.testing.assert_allclose(rows, np.repeat(rows[:, :1], 4, 1), atol=1e-12)
    assert fitted.detail == "2x8 -> 4x4, zoom"


def test_rows_and_columns_are_not_swapped():
    # Value = column of a grid of 1x2; wider images have more columns.
    fitted = fit(TABLE, positions([0, 1]), (1, 3, 1), "zoom", ((1, 2), (1, 3)))
    assert fitted.array.ravel().tolist() == [0, 0.5, 1]


def test_each_table_of_every_layer_is_resized():
    table = np.concatenate([positions([0, 2]), positions([4, 8])])
    fitted = fit(TABLE, table, (2, 3, 1), "zoom", ((2, 1), (3, 1)))
    assert fitted.array[..., 0].tolist() == [[0, 1, 2], [4, 6, 8]]


def test_half_precision_is_resized_in_double():
    table = positions([0, 1]).astype(ml_dtypes.bfloat16)
    fitted = fit(TABLE, table, (1, 4, 1), "zoom", ((2, 1), (4, 1)))
    np.testing.assert_allclose(fitted.array.ravel(), [0, 1 / 3, 2 / 3, 1], rtol=1e-12)


def test_tables_of_columns_are_resized_along_their_axis():
    table = np.array([[[0.0], [2.0]]], np.float32)
    fitted = fit(COLUMNS, table, (1, 3, 1), "zoom")
    assert fitted.array.tolist() == [[[0], [1], [2]]]
    assert (fitted.action, fitted.detail) == ("resized", "2x1 -> 3x1, zoom")


def test_positions_of_swin_are_resized_on_their_axes():
    table = np.array([0.0, 1.0], np.float32).reshape(1, 2, 1, 1)
    fitted = fit("absolute_pos_embed", table, (1, 4, 1, 1), "bicubic")
    # At -1/4 the last tap has k(5/4) = -27/256, and at 1/4 the last two k(3/4) = 67/256
    # and k(7/4) = -9/256, with the kernel k of a = -3/4.
    expected = [-27 / 256, 58 / 256, 198 / 256, 283 / 256]
    np.testing.assert_allclose(fitted.array.ravel(), expected, atol=1e-12)
    assert fitted.detail == "2x1 -> 4x1, bicubic"


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        ("bicubic", [-0.0999, 0.2714, 0.8751, 1.4837, 2.0625, 2.5828]),
        ("geometric", [0, 0.3401, 0.6802, 1.0252, 1.4472, 1.8692]),
    ],
)
def test_relative_positions_have_the_values_of_torch_and_timm(method, rows):
    # Windows of 7 and 12; value = row of the table of 13x13 offsets.
    table = np.repeat(np.arange(13, dtype=np.float32), 13)[:, None]
    fitted = fit(BIAS, table, (23 * 23, 1), method)
    resized = fitted.array.reshape(23, 23)
    np.testing.assert_allclose(resized[:6, 0], rows, atol=1e-4)
    assert fitted.detail == f"13x13 -> 23x23, {method}"


def test_relative_positions_of_the_same_window_are_the_same_array():
    table = np.zeros((15, 2), np.float32)  # a window of 2x3
    assert fit(BIAS, table, (15, 2), "none").array is table
    assert fit(BIAS, table, (9, 2), "bicubic") is None


@pytest.mark.parametrize("name", ["embedding", "stem", "patch_embed/proj"])
def test_a_patch_twice_as_large_gives_the_token_of_the_small_one(rng, name):
    # Of an image without detail, a patch of 4 sees four times the pixels of one of 2.
    kernel = rng.normal(size=(2, 2, 3, 5)).astype(np.float32)
    fitted = fit(f"{name}/kernel", kernel, (4, 4, 3, 5), "none")
    np.testing.assert_allclose(
        fitted.array.sum((0, 1)), kernel.sum((0, 1), dtype=np.float64), atol=1e-6
    )
    assert fitted.detail == "2x2 -> 4x4, pseudo-inverse"


@pytest.mark.parametrize(
    "name", ["gn_root/scale", "block1/unit1/gn3/bias", "norm/bias"]
)
def test_a_group_norm_may_have_singleton_axes(name):
    vector = np.arange(4, dtype=np.float32)
    fitted = fit(name, vector.reshape(1, 1, 1, 4), (4,), "none")
    assert fitted.array.tolist() == [0, 1, 2, 3]
    assert (fitted.action, fitted.detail) == ("taken", "(1, 1, 1, 4) -> (4,)")
    assert fit(name, vector, (1, 1, 1, 4), "none").array.shape == (1, 1, 1, 4)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("head/bias", (1, 1, 1, 4), (4,)),
        ("gn_root/scale", (1, 1, 1, 4), (5,)),
        ("gn_root/scale", (2, 2), (4,)),
        ("embedding/kernel", (2, 2, 3, 5), (4, 4, 1, 5)),
        ("conv_root/kernel", (7, 7, 3, 5), (3, 3, 3, 5)),
        (BIAS, (9, 2), (25, 4)),
        ("absolute_pos_embed", (1, 2, 2, 3), (1, 4, 4, 5)),
        (COLUMNS, (1, 2, 3), (1, 4, 5)),
        (TABLE, (1, 4, 3), (1, 9, 5)),
        (TABLE, (1, 4, 3), (2, 9, 3)),
        (TABLE, (1, 4, 3), (1, 10, 3)),
        ("cls", (1, 1, 3), (1, 1, 4)),
        ("scale", (), (1,)),
    ],
)
def test_other_shapes_do_not_fit(name, old, new):
    assert fit(name, np.zeros(old, np.float32), new, "zoom") is None


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (TABLE, (1, 4, 1), (1, 9, 1)),
        (BIAS, (9, 2), (25, 2)),
        ("absolute_pos_embed", (1, 2, 2, 3), (1, 3, 3, 3)),
    ],
)
def test_a_table_whose_origin_does_not_resize_is_refused(name, old, new):
    match = rf"{name} would have to be resized, \dx\d -> \dx\d, .* choose a preset"
    with pytest.raises(UserError, match=match):
        fit(name, np.zeros(old, np.float32), new, "none")

# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
import scipy.ndimage

from vit_jax.errors import UserError
from vit_jax.resample import (
    axis_weights,
    resize_grid,
    resize_patch_kernel,
    resize_positions,
    split_class_rows,
)

METHODS = ["zoom", "bilinear", "linear", "bicubic", "bicubic-antialias", "geometric"]

UP = {
    "zoom": [0, 0.4286, 0.8571, 1.2857, 1.7143, 2.1429, 2.5714, 3],
    "bilinear": [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3],
    "linear": [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3],
    "bicubic": [-0.1055, 0.1914, 0.6680, 1.2969, 1.7031, 2.3320, 2.8086, 3.1055],
    "bicubic-antialias": [
        *(-0.0882, 0.1679, 0.7099, 1.25, 1.75, 2.2901, 2.8321, 3.0882),
    ],
}
DOWN = {
    "zoom": [0, 5.6667, 22, 49],
    "bilinear": [0.5, 6.5, 20.5, 42.5],
    "linear": [1, 7, 21, 40],
    "bicubic": [0.2188, 6.125, 20.125, 43.5312],
    "bicubic-antialias": [0.4100, 6.1892, 20.7568, 41.7950],
}
WIDE = {
    "zoom": [0, 2.3333, 4.6667, 7],
    "bilinear": [0.5, 2.5, 4.5, 6.5],
    "linear": [0.7143, 2.5, 4.5, 6.2857],
    "bicubic": [0.4062, 2.5, 4.5, 6.5938],
    "bicubic-antialias": [0.5439, 2.4595, 4.5405, 6.4561],
}


@pytest.mark.parametrize("method", UP)
def test_growing_axis_has_the_values_of_its_method(method):
    table = np.arange(4.0)[:, None, None]
    resized = resize_grid(table, (8, 1), method)
    np.testing.assert_allclose(resized[:, 0, 0], UP[method], atol=1e-4)
    across = resize_grid(table.swapaxes(0, 1), (1, 8), method)
    np.testing.assert_array_equal(across, resized.swapaxes(0, 1))


@pytest.mark.parametrize("method", DOWN)
def test_shrinking_axis_has_the_values_of_its_method(method):
    table = np.arange(8.0)[:, None, None] ** 2
    resized = resize_grid(table, (4, 1), method)[:, 0, 0]
    np.testing.assert_allclose(resized, DOWN[method], atol=1e-4)


@pytest.mark.parametrize("method", WIDE)
def test_grid_that_is_not_square_is_resized_by_rows_and_columns(method):
    table = np.broadcast_to(np.arange(8.0)[:, None], (2, 8, 1))
    resized = resize_grid(table, (4, 4), method)[..., 0]
    np.testing.assert_allclose(resized, [WIDE[method]] * 4, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "rows"),
    [
        ("bicubic", [-0.0999, 0.2714, 0.8751, 1.4837, 2.0625, 2.5828]),
        ("geometric", [0, 0.3401, 0.6802, 1.0252, 1.4472, 1.8692]),
    ],
)
def test_bias_table_of_swin_has_the_values_of_its_method(method, rows):
    table = np.broadcast_to(np.arange(13.0)[:, None, None], (13, 13, 3))
    resized = resize_grid(table, (23, 23), method)
    assert resized.shape == (23, 23, 3)
    np.testing.assert_allclose(resized[:6, 4, 1], rows, atol=1e-4)
    np.testing.assert_allclose(resized[::-1, 4, 1], 12 - resized[:, 4, 1], atol=1e-4)
    if method == "geometric":
        np.testing.assert_allclose(resized[10:13, 0, 0], [5, 6, 7], atol=1e-9)


def test_antialias_greys_a_checkerboard():
    board = (np.indices((12, 12)).sum(0) % 2)[..., None].astype(np.float64)
    plain = resize_grid(board, (4, 4), "bilinear")
    np.testing.assert_allclose(np.minimum(plain, 1 - plain), 0, atol=1e-9)
    grey = resize_grid(board, (4, 4), "linear")
    assert np.abs(grey - 0.5).max() < 0.0063


@pytest.mark.parametrize(("old", "new"), [((5, 5), (9, 9)), ((7, 3), (4, 8))])
def test_zoom_is_that_of_scipy(old, new):
    table = np.random.default_rng(0).normal(size=(*old, 2))
    factors = (new[0] / old[0], new[1] / old[1], 1)
    expected = scipy.ndimage.zoom(table, factors, order=1)
    np.testing.assert_allclose(resize_grid(table, new, "zoom"), expected, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("old", "new"), [(5, 9), (9, 5), (13, 23), (5, 1)])
def test_constant_stays_constant(method, old, new):
    weights = axis_weights(old, new, method)
    assert weights.shape == (new, old)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("grid", [(14, 14), (2, 8)])
@pytest.mark.parametrize("method", METHODS)
def test_same_grid_is_a_no_op(method, grid, dtype):
    table = np.random.default_rng(0).normal(size=(*grid, 3)).astype(dtype)
    resized = resize_grid(table, grid, method)
    assert resized.dtype == dtype
    np.testing.assert_array_equal(resized, table)
    rows = np.concatenate([table[0, :1], table.reshape(-1, 3)])[None]
    resized = resize_positions(rows, grid, method, stored_grid=grid)
    np.testing.assert_array_equal(resized, rows)


def test_equal_counts_are_not_equal_grids():
    table = np.arange(16.0, dtype=np.float32).reshape(1, 16, 1)
    resized = resize_positions(table, (4, 4), "bilinear", stored_grid=(2, 8))
    np.testing.assert_allclose(resized[0, :4, 0], [0.5, 2.5, 4.5, 6.5])


def test_result_is_rounded_once_to_the_dtype_of_the_table():
    table = np.random.default_rng(0).normal(size=(4, 4, 5)).astype(np.float32)
    wide = resize_grid(table.astype(np.float64), (7, 9), "bicubic")
    np.testing.assert_array_equal(
        resize_grid(table, (7, 9), "bicubic"), wide.astype(np.float32)
    )


@pytest.mark.parametrize("rows", [49, 196, 576])
@pytest.mark.parametrize("grid", [(24, 24), (10, 12)])
def test_class_row_is_known_by_the_count_and_kept_apart(rows, grid):
    side = int(np.sqrt(rows))
    patches = np.random.default_rng(0).normal(size=(rows, 4))
    expected = resize_grid(patches.reshape(side, side, 4), grid, "zoom").reshape(-1, 4)
    np.testing.assert_array_equal(
        resize_positions(patches[None], grid, "zoom")[0], expected
    )
    with_class = np.concatenate([np.full((1, 4), 7.0), patches])
    resized = resize_positions(with_class[None], grid, "zoom")[0]
    np.testing.assert_array_equal(resized[0], np.full(4, 7.0))
    np.testing.assert_array_equal(resized[1:], expected)


@pytest.mark.parametrize(
    ("rows", "prefix_tokens", "patches", "first"),
    [
        *((n, None, None, 0) for n in (49, 196, 256, 576)),
        *((n, None, None, 1) for n in (50, 197, 257, 577)),
        (198, 2, None, 2),
        (197, 1, None, 1),
        (16, None, 16, 0),
        (17, None, 16, 1),
        (1 + 4 + 35, 5, 35, 5),
    ],
)
def test_rows_of_prefix_tokens_come_off_first(rows, prefix_tokens, patches, first):
    table = np.arange(rows, dtype=np.float32)[:, None]
    prefix, rest = split_class_rows(table, prefix_tokens, patches)
    np.testing.assert_array_equal(prefix[:, 0], np.arange(first))
    np.testing.assert_array_equal(rest[:, 0], np.arange(first, rows))


@pytest.mark.parametrize(
    ("rows", "prefix_tokens", "patches", "message"),
    [
        (198, None, None, "198 rows is not a square plus 0 or 1; give prefix_tokens"),
        (196, 1, None, "196 rows is not a square plus 1"),
        (197, None, 190, "197 rows is not 190 plus 0 or 1"),
        (1, 1, None, "1 rows is not a square plus 1"),
    ],
)
def test_count_that_fits_no_grid_is_refused(rows, prefix_tokens, patches, message):
    with pytest.raises(UserError, match=message):
        split_class_rows(np.zeros((rows, 2)), prefix_tokens, patches)


def test_positions_of_an_unknown_grid_are_refused():
    with pytest.raises(UserError, match="6 rows is not a square plus 0 or 1"):
        resize_positions(np.zeros((1, 6, 2)), (4, 4), "zoom")


@pytest.mark.parametrize("batch", [1, 3])
def test_larger_patches_of_a_larger_image_give_the_same_tokens(batch):
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(4, 6, 3, 5))
    images = rng.normal(size=(batch, 4, 6, 3))
    tokens = np.einsum("bhwc,hwcd->bd", images, kernel)
    rows, columns = axis_weights(4, 8, "bilinear"), axis_weights(6, 12, "bilinear")
    larger = np.einsum("rh,sw,bhwc->brsc", rows, columns, images)
    resized = resize_patch_kernel(kernel, (8, 12))
    assert resized.shape == (8, 12, 3, 5)
    np.testing.assert_allclose(
        np.einsum("bhwc,hwcd->bd", larger, resized), tokens, atol=1e-10
    )


def test_kernel_that_shrinks_solves_the_least_squares_problem():
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(8, 8, 1, 1))
    shrink = np.kron(axis_weights(8, 4, "bilinear"), axis_weights(8, 4, "bilinear"))
    expected = np.linalg.lstsq(shrink.T, kernel.reshape(-1), rcond=None)[0]
    resized = resize_patch_kernel(kernel, (4, 4))
    np.testing.assert_allclose(resized.reshape(-1), expected, atol=1e-10)


def test_kernel_of_the_same_size_is_unchanged():
    kernel = np.random.default_rng(0).normal(size=(4, 4, 3, 5)).astype(np.float16)
    np.testing.assert_array_equal(resize_patch_kernel(kernel, (4, 4)), kernel)


def test_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"resize method.*bicubc.*bicubic"):
        resize_grid(np.zeros((2, 2, 1)), (3, 3), "bicubc")


def test_geometric_resize_refuses_even_sides():
    with pytest.raises(UserError, match="odd, not for 14 to 24"):
        axis_weights(14, 24, "geometric")

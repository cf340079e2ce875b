# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.models.layers.positions import PositionTable, sincos2d, to_sequence
from vit_jax.resample import axis_weights, resize_positions


@pytest.mark.parametrize(
    ("d", "y", "x", "row"),
    [
        (8, 1, 0, [0, 0, 1, 1, 0.841471, 0.0001, 0.540302, 1]),
        (
            16,
            1,
            2,
            [
                *(0.909297, 0.092699, 0.004309, 0.0002),
                *(-0.416147, 0.995694, 0.999991, 1),
                *(0.841471, 0.046399, 0.002154, 0.0001),
                *(0.540302, 0.998923, 0.999998, 1),
            ],
        ),
    ],
)
def test_sincos2d_has_the_literal_values(d, y, x, row):
    table = sincos2d(3, 4, d)
    assert table.shape == (12, d)
    np.testing.assert_allclose(table[y * 4 + x], row, atol=1e-6)


@pytest.mark.parametrize("d", [4, 10])
def test_sincos2d_refuses_widths_that_do_not_split(d):
    with pytest.raises(UserError, match=f"multiple of 4 and at least 8, not {d}"):
        sincos2d(2, 2, d)


TOKENS = jnp.arange(2 * 2 * 3 * 8, dtype=jnp.float32).reshape(2, 2, 3, 8)
CLS = jnp.full((1, 1, 8), 5.0)
REGISTERS = jnp.full((1, 2, 8), 7.0)


def test_sequence_is_prefix_registers_and_patches_in_raster_order():
    x = to_sequence(TOKENS, CLS, REGISTERS)
    assert x.shape == (2, 1 + 2 + 6, 8)
    np.testing.assert_array_equal(x[:, 0], np.full((2, 8), 5.0))
    np.testing.assert_array_equal(x[:, 1:3], np.full((2, 2, 8), 7.0))
    np.testing.assert_array_equal(x[:, 3:], TOKENS.reshape(2, 6, 8))
    np.testing.assert_array_equal(to_sequence(TOKENS, None), TOKENS.reshape(2, 6, 8))


def rows(
    grid=(2, 3), prefix=1, registers=0, params=None, d=8, grid_of_table=None, **fields
):
    """Rows that are added, and the parameters that they are made of."""
    module = PositionTable(grid=grid_of_table, **fields)
    tokens = {"prefix": prefix, "registers": registers}
    if params is None:
        params = module.init(jax.random.key(0), grid, d, **tokens).get("params", {})
    return module.apply({"params": params}, grid, d, **tokens), params


def test_learned_table_has_first_rows_for_the_prefix():
    table, params = rows(prefix=2)
    assert params["pos_embedding"].shape == (1, 2 + 6, 8)
    np.testing.assert_array_equal(table, params["pos_embedding"])


def test_without_class_position_the_prefix_gets_zeros():
    table, params = rows(prefix=2, class_position=False)
    assert params["pos_embedding"].shape == (1, 6, 8)
    np.testing.assert_array_equal(table[:, :2], np.zeros((1, 2, 8)))
    np.testing.assert_array_equal(table[:, 2:], params["pos_embedding"])


def test_registers_have_no_position():
    table, params = rows(registers=3)
    stored = params["pos_embedding"]
    assert stored.shape == (1, 7, 8)
    np.testing.assert_array_equal(table[:, :1], stored[:, :1])
    np.testing.assert_array_equal(table[:, 1:4], np.zeros((1, 3, 8)))
    np.testing.assert_array_equal(table[:, 4:], stored[:, 1:])


def test_fixed_positions_leave_the_prefix_alone():
    table, params = rows(kind="sincos2d")
    assert params == {}
    np.testing.assert_array_equal(table[:, :1], np.zeros((1, 1, 8)))
    np.testing.assert_allclose(table[:, 1:], sincos2d(2, 3, 8)[None], rtol=1e-6)


def test_two_tables_are_put_side_by_side_by_column_and_row():
    table, params = rows(kind="learned2d")
    columns, down = params["column_embedding"], params["row_embedding"]
    assert columns.shape == (1, 3, 4)
    assert down.shape == (1, 2, 4)
    for y in range(2):
        for x in range(3):
            np.testing.assert_array_equal(table[0, 1 + 3 * y + x, :4], columns[0, x])
            np.testing.assert_array_equal(table[0, 1 + 3 * y + x, 4:], down[0, y])
    np.testing.assert_array_equal(table[:, 0], np.zeros((1, 8)))


def test_two_tables_need_an_even_width():
    with pytest.raises(UserError, match="even width, not 7; nearest: 8"):
        rows(kind="learned2d", d=7)


@pytest.mark.parametrize("kind", ["learned", "learned2d"])
def test_copies_are_tables_of_their_own(kind):
    table, params = rows(kind=kind, copies=3)
    assert table.shape == (3, 7, 8)
    assert all(leaf.shape[0] == 3 for leaf in params.values())
    assert np.abs(table[0] - table[1]).max() > 1e-3


@pytest.mark.parametrize("width", [8, 100])
def test_first_values_have_the_deviation_that_is_asked_for(width):
    table, _ = rows((10, 12), stddev=None, d=width)
    # Five standard errors of a deviation from 960 draws and more.
    np.testing.assert_allclose(np.std(table), width**-0.5, rtol=5 / np.sqrt(2 * 960))


def stored(patches, d=8):
    values = np.random.default_rng(0).normal(size=(1, patches, d))
    return {"pos_embedding": jnp.asarray(values, jnp.float32)}


@pytest.mark.parametrize(
    ("grid", "patches", "match"),
    [
        (None, 16, "a grid of 4x4 patches, but the image has 2x3"),
        (None, 7, "made for 7 patches, but the image has 2x3"),
        ((1, 7), 7, "a grid of 1x7 patches, but the image has 2x3"),
        ((3, 2), 6, "a grid of 3x2 patches, but the image has 2x3"),
    ],
)
def test_another_grid_is_refused_with_both_grids(grid, patches, match):
    with pytest.raises(UserError, match=match):
        rows(prefix=0, grid_of_table=grid, params=stored(patches))


def test_table_of_another_size_than_that_of_the_model_is_refused():
    with pytest.raises(UserError, match="made for 16 patches, but the image has 2x3"):
        rows(prefix=0, grid_of_table=(2, 3), params=stored(16), resize="bicubic")


def test_initialisation_on_another_grid_than_the_given_one_is_refused():
    with pytest.raises(UserError, match="a grid of 4x4 patches, but the image has 2x3"):
        rows(grid_of_table=(4, 4))


@pytest.mark.parametrize("patches", [None, 16])
def test_grid_that_could_be_a_square_must_be_given(patches):
    params = None if patches is None else stored(patches)
    with pytest.raises(UserError, match="2x8 patches has as many as one of 4x4"):
        rows((2, 8), prefix=0, params=params)
    table, _ = rows((2, 8), prefix=0, grid_of_table=(2, 8), params=params)
    assert table.shape == (1, 16, 8)


@pytest.mark.parametrize("method", ["zoom", "bicubic", "bicubic-antialias", "linear"])
@pytest.mark.parametrize("grid", [(4, 4), (5, 3), (2, 8)])
def test_table_is_resized_when_it_runs_as_when_it_is_loaded(method, grid):
    params = stored(1 + 16)
    table, _ = rows(grid, grid_of_table=(4, 4), params=params, resize=method)
    expected = resize_positions(np.asarray(params["pos_embedding"]), grid, method)
    np.testing.assert_allclose(table, expected, atol=1e-6)
    if grid == (4, 4):
        np.testing.assert_array_equal(table, expected)


def test_two_tables_are_resized_each_along_its_axis():
    _, params = rows((4, 4), kind="learned2d")
    table, _ = rows((4, 7), kind="learned2d", params=params, resize="zoom")
    columns = axis_weights(4, 7, "zoom") @ np.asarray(params["column_embedding"][0])
    np.testing.assert_allclose(table[0, 1:8, :4], columns, atol=1e-6)
    np.testing.assert_array_equal(table[0, 1, 4:], params["row_embedding"][0, 0])
    with pytest.raises(UserError, match="a grid of 4x4 patches, but the image has 4x7"):
        rows((4, 7), kind="learned2d", params=params)

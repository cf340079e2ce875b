# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.models.layers.positions import AddPositions, sincos2d


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


def run(module, tokens=TOKENS, cls=CLS):
    params = module.init(jax.random.key(0), tokens, cls)
    return module.apply(params, tokens, cls), params.get("params", {})


def test_class_row_is_added_to_the_class_token_alone():
    y, params = run(AddPositions(class_position=True))
    table = params["pos_embedding"]
    assert table.shape == (1, 7, 8)
    np.testing.assert_array_equal(y[:, :1], jnp.repeat(CLS + table[:, :1], 2, axis=0))
    np.testing.assert_array_equal(y[:, 1:], TOKENS.reshape(2, 6, 8) + table[:, 1:])


def test_without_class_row_the_class_token_has_no_position():
    y, params = run(AddPositions(class_position=False))
    table = params["pos_embedding"]
    assert table.shape == (1, 6, 8)
    np.testing.assert_array_equal(y[:, :1], jnp.repeat(CLS, 2, axis=0))
    np.testing.assert_array_equal(y[:, 1:], TOKENS.reshape(2, 6, 8) + table)


def test_without_class_token_the_table_has_no_class_row():
    y, params = run(AddPositions(class_position=True), cls=None)
    assert params["pos_embedding"].shape == (1, 6, 8)
    np.testing.assert_array_equal(y, TOKENS.reshape(2, 6, 8) + params["pos_embedding"])


def test_class_row_equals_its_fold_into_the_class_token():
    with_row, params = run(AddPositions(class_position=True))
    table = params["pos_embedding"]
    folded = AddPositions(class_position=False).apply(
        {"params": {"pos_embedding": table[:, 1:]}}, TOKENS, CLS + table[:, :1]
    )
    np.testing.assert_array_equal(with_row, folded)


@pytest.mark.parametrize("class_position", [True, False])
def test_fixed_positions_leave_the_class_token_alone(class_position):
    y, params = run(AddPositions("sincos2d", class_position))
    assert params == {}
    np.testing.assert_array_equal(y[:, :1], jnp.repeat(CLS, 2, axis=0))
    np.testing.assert_allclose(
        y[:, 1:], TOKENS.reshape(2, 6, 8) + sincos2d(2, 3, 8)[None], rtol=1e-6
    )


def test_no_positions_only_flatten():
    y, params = run(AddPositions("none"))
    assert params == {}
    np.testing.assert_array_equal(y[:, 1:], TOKENS.reshape(2, 6, 8))


def grid_error(grid, stored, tokens, match):
    params = {"pos_embedding": jnp.zeros((1, stored, 8))}
    with pytest.raises(UserError, match=match):
        AddPositions(grid=grid).apply({"params": params}, tokens, None)


def test_another_grid_is_refused_with_both_grids():
    grid_error(None, 16, TOKENS, "a grid of 4x4 patches, but the image has 2x3")
    grid_error(None, 7, TOKENS, "made for 7 patches, but the image has 2x3")
    grid_error((1, 7), 7, TOKENS, "a grid of 1x7 patches, but the image has 2x3")


def test_grid_of_the_same_number_of_patches_is_refused_where_it_is_known():
    grid_error((3, 2), 6, TOKENS, "a grid of 3x2 patches, but the image has 2x3")


def test_initialisation_on_another_grid_than_the_given_one_is_refused():
    with pytest.raises(UserError, match="a grid of 4x4 patches, but the image has 2x3"):
        run(AddPositions(grid=(4, 4)))

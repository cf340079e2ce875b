# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.models.layers.rotary import rotary_angles, rotate


def test_angles_are_column_and_row_times_the_frequencies():
    angles = rotary_angles(2, 3, 8, prefix_tokens=2)
    assert angles.shape == (2 + 6, 4)
    np.testing.assert_array_equal(angles[:2], np.zeros((2, 4)))
    # Frequencies 1 and 100^(-1/2) = 0.1; row 1, column 2.
    np.testing.assert_allclose(angles[2 + 3 + 2], [2, 0.2, 1, 0.1], rtol=1e-6)


def test_neighbouring_channels_are_turned_by_the_angle():
    x = jnp.asarray([3.0, 4.0, 1.0, 0.0]).reshape(1, 1, 1, 4)
    angles = np.asarray([[np.pi / 2, np.pi / 6]], np.float32)
    expected = [-4, 3, np.sqrt(3) / 2, 0.5]
    np.testing.assert_allclose(rotate(x, angles)[0, 0, 0], expected, atol=1e-6)


def test_product_depends_on_the_distance_alone():
    rng = np.random.default_rng(0)
    query, key = (
        jnp.asarray(rng.normal(size=(1, 1, 1, 16)), jnp.float32) for _ in "qk"
    )
    angles = rotary_angles(5, 5, 16)
    queries = rotate(jnp.repeat(query, 25, axis=1), angles).reshape(5, 5, 16)
    keys = rotate(jnp.repeat(key, 25, axis=1), angles).reshape(5, 5, 16)
    for y, x in ((0, 0), (1, 2), (2, 0)):
        here = queries[y, x] @ keys[y + 2, x + 1]
        np.testing.assert_allclose(here, queries[0, 0] @ keys[2, 1], rtol=1e-4)
    assert abs(queries[0, 0] @ keys[2, 1] - queries[0, 0] @ keys[1, 2]) > 1e-2


def test_width_of_a_head_must_be_a_multiple_of_four():
    with pytest.raises(UserError, match="multiple of 4, not 6"):
        rotary_angles(2, 2, 6)

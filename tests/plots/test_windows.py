# SPDX-License-Identifier: Apache-2.0
"""Where tokens of windows lie."""

import numpy as np

from vit_jax.models.layers.windows import Windows
from vit_jax.plots.windows import places


def test_windows_are_tiles_of_the_map():
    queries, keys = places(Windows((4, 4), (2, 2), "fixed"))
    np.testing.assert_array_equal(queries, keys)
    np.testing.assert_array_equal(queries[1], [[0, 2], [0, 3], [1, 2], [1, 3]])


def test_shifted_windows_begin_half_a_window_further():
    queries, _ = places(Windows((4, 4), (2, 2), "shifted", shifted=True))
    np.testing.assert_array_equal(queries[0], [[1, 1], [1, 2], [2, 1], [2, 2]])
    # The last window holds the four corners, which the roll brought together.
    np.testing.assert_array_equal(queries[3], [[3, 3], [3, 0], [0, 3], [0, 0]])


def test_padding_has_no_place():
    queries, _ = places(Windows((3, 2), (2, 2), "fixed"))
    np.testing.assert_array_equal(queries[1, :2], [[2, 0], [2, 1]])
    assert np.isnan(queries[1, 2:]).all()


def test_keys_of_sliding_windows_are_the_rows_they_reach():
    queries, keys = places(Windows((4, 2), (3, 3), "sliding"))
    np.testing.assert_array_equal(queries[3], [[3, 0], [3, 1]])
    expected = [[1, 0], [1, 1], [2, 0], [2, 1], [3, 0], [3, 1]]
    np.testing.assert_array_equal(keys[3], expected)

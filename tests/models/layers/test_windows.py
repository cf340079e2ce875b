# SPDX-License-Identifier: Apache-2.0
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.windows import (
    Windows,
    log_coordinates,
    partition,
    reverse,
)

M, E = 2, 3


def draw(*shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(values, jnp.float32)


def test_tiles_are_in_raster_order():
    x = jnp.arange(16.0).reshape(1, 4, 4, 1)
    tiles = partition(x, (2, 2))[..., 0]
    expected = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    np.testing.assert_array_equal(tiles, expected)


@pytest.mark.parametrize("size", [(2, 2), (2, 3), (4, 6)])
def test_reverse_undoes_partition(size):
    x = draw(3, 4, 6, 5)
    np.testing.assert_array_equal(reverse(partition(x, size), (4, 6), size), x)


# Shifted, padded, both along one axis, and windows as large as the map or larger.
WINDOWS = [
    Windows((4, 4), (2, 2), shifted=True),
    Windows((4, 6), (2, 3), "fixed", shifted=True),
    Windows((5, 7), (3, 3), shifted=True),
    Windows((5, 7), (3, 3)),
    Windows((2, 7), (4, 3), shifted=True),
    Windows((5, 6), (3, 2), "sliding"),
    Windows((5, 6), (3, 5), "sliding"),
    Windows((3, 3), (5, 5), "sliding"),
]


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_join_undoes_split(windows):
    x = draw(2, *windows.grid, 3)
    np.testing.assert_array_equal(windows.join(windows.split(x)), x)


def relative_index(size):
    return np.asarray(Windows(size, size).index()[0])


def test_relative_index_of_a_small_window_is_the_published_one():
    expected = [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    np.testing.assert_array_equal(relative_index((2, 2)), expected)


def test_relative_index_of_the_usual_window_is_the_published_one():
    index = relative_index((7, 7))
    np.testing.assert_array_equal(np.diag(index), 84)
    np.testing.assert_array_equal(index[0, :8], [84, 83, 82, 81, 80, 79, 78, 71])
    assert (index[48, 0], index[0, 48]) == (168, 0)


def test_relative_index_of_an_oblong_window_numbers_its_offsets():
    # 3 x 5 offsets; from the last token (1, 2) to the first is the largest.
    index = relative_index((2, 3))
    assert set(index.ravel()) == set(range(15))
    assert (index[5, 0], index[0, 5], index[0, 0], index[0, 1]) == (14, 0, 7, 6)


def test_regions_of_a_shifted_map_are_the_published_ones():
    windows = Windows((4, 4), (2, 2), shifted=True)
    expected = [[0, 0, 1, 2], [0, 0, 1, 2], [3, 3, 4, 5], [6, 6, 7, 8]]
    np.testing.assert_array_equal(windows.regions(), expected)
    seen = windows.seen()
    assert seen.shape == (4, 4, 4)
    assert seen[0].all()
    np.testing.assert_array_equal(seen[3], np.eye(4, dtype=bool))


def test_masked_logits_are_lower_by_a_hundred():
    windows = Windows((4, 4), (2, 2), shifted=True)
    logits = windows.biased(jnp.ones((4, M, 4, 4)), None)
    assert logits.shape == (1, 4, M, 4, 4)
    np.testing.assert_array_equal(logits[0, 0], 1)
    off_diagonal = logits[0, 3, 0][~np.eye(4, dtype=bool)]
    np.testing.assert_array_equal(off_diagonal, -99)


@pytest.mark.parametrize(
    ("grid", "shift"), [((8, 8), (2, 2)), ((4, 8), (0, 2)), ((3, 4), (0, 0))]
)
def test_there_is_no_shift_where_one_window_covers_the_map(grid, shift):
    assert Windows(grid, (4, 4), shifted=True).shift == shift
    assert Windows(grid, (4, 4), "fixed", shifted=True).shift == (0, 0)
    assert Windows(grid, (4, 4), shifted=False).shift == (0, 0)


def visible(windows, query, key):
    """Whether a token sees another, from the paper's words and not from its code."""
    for side, size, shift, q, k in zip(
        windows.grid, windows.size, windows.shift, query, key, strict=True
    ):
        if windows.kind == "sliding":
            size = min(size, side)
            first = min(max(q - size // 2, 0), side - size)
            if not first <= k < first + size:
                return False
        # Windows of a shifted map begin at `shift`; those at its ends are cut.
        elif (q - shift) // size != (k - shift) // size:
            return False
    return True


@functools.partial(jax.jit, static_argnums=0)
def attention(windows, query, key, value, table=None):
    """The whole path through `Windows`, with logits that the test gives."""

    def split(x):
        x = windows.split(x.reshape(*x.shape[:3], M * E))
        return x.reshape(*x.shape[:2], M, E)

    query, key, value = windows.spread(split(query), split(key), split(value))
    logits = jnp.einsum("xqme,xkme->xmqk", query, key)
    weights = jax.nn.softmax(windows.biased(logits, table))
    y = jnp.einsum("xmqk,xkme->xqme", weights.reshape(logits.shape), value)
    return windows.join(y.reshape(*y.shape[:2], M * E))


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_attention_equals_a_loop_over_visible_pairs(windows):
    (h, w), (rows, columns) = windows.grid, windows.size
    query, key, value = (draw(2, h, w, M, E, seed=seed) for seed in range(3))
    table = draw((2 * rows - 1) * (2 * columns - 1), M, seed=3)
    result = attention(windows, query, key, value, table)
    query, key, value, table = jax.device_get((query, key, value, table))
    table = table.reshape(2 * rows - 1, 2 * columns - 1, M)
    places = list(itertools.product(range(h), range(w)))
    for q in places:
        keys = [k for k in places if visible(windows, q, k)]
        assert q in keys
        for b, m in itertools.product(range(2), range(M)):
            logits = [
                query[b, *q, m] @ key[b, *k, m]
                + table[q[0] - k[0] + rows - 1, q[1] - k[1] + columns - 1, m]
                for k in keys
            ]
            weights = np.exp(logits) / np.exp(logits).sum()
            expected = sum(
                weight * value[b, *k, m]
                for weight, k in zip(weights, keys, strict=True)
            )
            got = result[b, *q, m * E : (m + 1) * E]
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("windows", WINDOWS[:5], ids=str)
def test_tokens_that_are_not_seen_change_nothing(windows):
    h, w = windows.grid
    query, key, value = (draw(1, h, w, M, E, seed=seed) for seed in range(3))
    before = attention(windows, query, key, value)
    for place in [(0, 0), (h - 1, w - 1), (h // 2, w - 1)]:
        changed = value.at[0, *place].add(1e3), key.at[0, *place].add(1.0)
        after = attention(windows, query, changed[1], changed[0])
        for q in itertools.product(range(h), range(w)):
            same = np.array_equal(before[0, *q], after[0, *q])
            assert same != visible(windows, q, place), (q, place)


def test_sliding_windows_use_every_offset():
    windows = Windows((9, 9), (3, 3), "sliding")
    used = windows.index()[jnp.broadcast_to(windows.seen(), windows.index().shape)]
    assert set(np.asarray(used).ravel()) == set(range(25))


@pytest.mark.parametrize(
    ("size", "pretrained", "offsets", "expected"),
    [
        (8, 8, range(8), [0, 0.3665, 0.5721, 0.7156, 0.8260, 0.9157, 0.9913, 1.0566]),
        (16, 16, [0, 1, 2, 3, 8, 15], [0, 0.2056, 0.3491, 0.4595, 0.7990, 1.0566]),
        (16, 8, [1, 7, 8, 15], [0.3665, 1.0566, 1.1141, 1.3938]),
        (16, 12, [1, 11, 15], [0.2628, 1.0566, 1.1913]),
        (24, 12, [1, 11, 12, 23], [0.2628, 1.0566, 1.0940, 1.3826]),
        (12, 6, [1, 5, 11], [0.4595, 1.0566, 1.4057]),
    ],
)
def test_log_coordinates_are_the_published_ones(size, pretrained, offsets, expected):
    table = log_coordinates((size, size), (pretrained, pretrained))
    side = 2 * size - 1
    table = table.reshape(side, side, 2)
    places = size - 1 + np.asarray(list(offsets))
    np.testing.assert_allclose(table[places, 0, 0], expected, atol=6e-5)
    np.testing.assert_allclose(table[0, places, 1], expected, atol=6e-5)
    np.testing.assert_array_equal(table[::-1, ::-1], -table)


def test_log_coordinates_of_a_window_of_one_are_zero():
    np.testing.assert_array_equal(log_coordinates((1, 1), (1, 1)), [[0, 0]])

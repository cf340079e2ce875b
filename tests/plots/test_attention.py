# SPDX-License-Identifier: Apache-2.0
"""Rollout, distances and maps against loops, closed forms and arithmetic."""

import itertools
import math

import numpy as np
import pytest

from vit_jax.plots import attention


def random_layers(rng, *, layers=3, images=2, heads=4, tokens=7):
    logits = rng.standard_normal((layers, images, heads, tokens, tokens))
    weights = np.exp(logits)
    return list(weights / weights.sum(-1, keepdims=True))


@pytest.mark.parametrize("residual", [True, False])
def test_rollout_of_identity_attention_is_the_identity(residual):
    identity = np.broadcast_to(np.eye(5), (2, 3, 5, 5))
    result = attention.rollout([identity] * 4, residual=residual)
    np.testing.assert_array_equal(result, np.broadcast_to(np.eye(5), (2, 5, 5)))


@pytest.mark.parametrize("residual", [True, False])
def test_rollout_is_the_product_of_the_layers(rng, residual):
    layers = random_layers(rng)
    expected = []
    for image in range(2):
        product = np.eye(7)
        for weights in layers:
            mean = sum(weights[image, head] for head in range(4)) / 4
            product = ((mean + np.eye(7)) / 2 if residual else mean) @ product
        expected.append(product)
    result = attention.rollout(layers, residual=residual)
    np.testing.assert_allclose(result, expected, atol=1e-12)
    np.testing.assert_allclose(result.sum(-1), 1.0)


def test_rollout_from_one_output_is_its_row(rng):
    layers = random_layers(rng)
    start = np.zeros((2, 1, 7))
    start[..., 3] = 1
    row = attention.rollout(layers, start=start)
    np.testing.assert_allclose(row[:, 0], attention.rollout(layers)[:, 3], atol=1e-12)


def test_each_layer_keeps_half_of_a_token():
    # All tokens attend to token 0: half of the rest remains after each layer.
    weights = np.zeros((1, 1, 3, 3))
    weights[..., 0] = 1
    result = attention.rollout([weights] * 3)[0]
    np.testing.assert_allclose(result[2], [7 / 8, 0, 1 / 8])


def test_maps_leave_class_token_and_registers_out():
    row = np.array([[0.5, 0.1, 0.1, 0.05, 0.15, 0.1]])
    result = attention.on_grid(row, 2, (2, 2))
    np.testing.assert_allclose(result, [[[0.25, 0.125], [0.375, 0.25]]])


@pytest.mark.parametrize("side", [1, 2, 5, 14])
def test_uniform_distance_of_a_line_is_the_closed_form(side):
    # The mean of |i - j| over n x n pairs is (n^2 - 1) / (3 n).
    expected = 16 * (side**2 - 1) / (3 * side)
    assert attention.uniform_distance((1, side), (9, 16)) == pytest.approx(expected)
    assert attention.uniform_distance((side, 1), (16, 9)) == pytest.approx(expected)


def test_uniform_attention_has_the_mean_distance_of_the_grid():
    grid, stride = (3, 5), (7, 14)
    weights = np.full((2, 1, 4, 15, 15), 1 / 15)
    where = attention.centres(grid, stride)[None]
    places = [(7 * i, 14 * j) for i, j in itertools.product(range(3), range(5))]
    expected = sum(math.dist(p, q) for p in places for q in places) / 15**2
    result = attention.mean_distance(weights, where, where)
    np.testing.assert_allclose(result, np.full(4, expected))
    assert attention.uniform_distance(grid, stride) == pytest.approx(expected)


def test_distances_are_those_of_loops(rng):
    (weights,) = random_layers(rng, layers=1, tokens=6)
    where = attention.centres((2, 3), (4, 5))
    expected = np.zeros(4)
    for image, head, q, k in itertools.product(range(2), range(4), range(6), range(6)):
        distance = math.dist(where[q], where[k])
        expected[head] += weights[image, head, q, k] * distance / (2 * 6)
    result = attention.mean_distance(weights[:, None], where[None], where[None])
    np.testing.assert_allclose(result, expected)


def test_attention_to_itself_has_distance_zero_and_to_a_neighbour_the_stride():
    where = attention.centres((1, 4), (8, 8))[None]
    itself = np.eye(4)
    neighbour = np.eye(4)[[1, 0, 3, 2]]
    weights = np.stack([itself, neighbour])[None, None]
    result = attention.mean_distance(weights, where, where)
    np.testing.assert_allclose(result, [0, 8])


def test_keys_and_queries_without_a_place_do_not_count():
    queries = np.array([[[0.0, 0.0], [np.nan, np.nan]]])
    keys = np.array([[[0.0, 0.0], [0.0, 6.0], [np.nan, np.nan]]])
    weights = np.array([[0.1, 0.3, 0.6], [0.0, 1.0, 0.0]])[None, None, None]
    # 0.3 of the 0.4 that go to places is 6 pixels away.
    result = attention.mean_distance(weights, queries, keys)
    np.testing.assert_allclose(result, [4.5])


def test_attention_in_windows_comes_to_its_place():
    # Two windows of two tokens, the columns of a map of two by two.
    places = np.array([[[0.0, 0], [1, 0]], [[0, 1], [1, 1]]])
    weights = np.array([[[0.9, 0.1], [0.5, 0.5]], [[0.2, 0.8], [0.0, 1.0]]])
    weights = weights[None, :, None]
    every = attention.on_map(weights, places, places, (2, 2))
    np.testing.assert_allclose(every, [[[[1.4 / 4, 0.2 / 4], [0.6 / 4, 1.8 / 4]]]])
    one = attention.on_map(weights, places, places, (2, 2), query=(0, 1))
    np.testing.assert_allclose(one, [[[[0, 0.2], [0, 0.8]]]])

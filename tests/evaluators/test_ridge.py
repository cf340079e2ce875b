# SPDX-License-Identifier: Apache-2.0
"""Closed-form least squares against published numbers, direct solves, scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from vit_jax.evaluators import ridge

L2 = [2.0**p for p in range(-10, 21, 2)]


def problem(rng, n, d, k=4):
    labels = np.arange(n) % k
    features = rng.normal(size=(n, d)) * rng.uniform(0.1, 10, d) + labels[:, None]
    return features, labels


def by_hand(x, y, l2):
    """(X'X + l2 I)^-1 X'Y by elimination."""
    return np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)


@pytest.mark.parametrize(
    ("l2", "feature", "bias"),
    [
        # big_vision's formula: numbers computed with jax.numpy.
        (1024.0, [-0.003572, -0.001786, 0.005357], [-0.003277] * 3),
        (1.0, [-0.525533, -0.262767, 0.788300], [-0.003333] * 3),
    ],
)
def test_weights_and_classes_are_those_of_big_vision(l2, feature, bias):
    support = np.array([[0.0], [1], [2], [3], [10], [11]])
    labels = np.array([0, 0, 1, 1, 2, 2])
    scaled = ridge.Scaler.fit(support).apply_with_bias(support)
    solved = ridge.solve(scaled, 2 * np.eye(3)[labels] - 1)
    np.testing.assert_allclose(solved.weights(l2), [feature, bias], atol=5e-7)
    queries = np.array([[0], [2.5], [4], [5], [9]])
    (classes,), _ = ridge.classify(support, labels, queries, [l2])
    assert classes.tolist() == [0, 0, 0, 2, 2]


@pytest.mark.parametrize(("n", "d"), [(60, 7), (20, 20), (12, 50)])
def test_every_regulariser_of_one_solution_is_the_direct_one(rng, n, d):
    features, labels = problem(rng, n, d)
    x = ridge.Scaler.fit(features).apply_with_bias(features)
    y = 2.0 * np.eye(4)[labels] - 1
    solved = ridge.solve(x, y)
    other = ridge.Scaler.fit(features).apply_with_bias(rng.normal(size=(9, d)))
    for l2 in L2:
        expected = by_hand(x, y, l2)
        np.testing.assert_allclose(solved.weights(l2), expected, rtol=1e-6, atol=1e-9)
        scores = solved.scores(other @ solved.basis, l2)
        np.testing.assert_allclose(scores, other @ expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("n", "d"), [(60, 7), (12, 50)])
def test_scikit_learn_agrees_to_four_digits(rng, n, d):
    features, labels = problem(rng, n, d)
    x = ridge.Scaler.fit(features).apply_with_bias(features)
    y = 2.0 * np.eye(4)[labels] - 1
    solved = ridge.solve(x, y)
    for l2 in L2:
        model = Ridge(alpha=l2, fit_intercept=False, solver="svd").fit(x, y)
        np.testing.assert_allclose(
            solved.weights(l2), model.coef_.T, rtol=1e-4, atol=1e-8
        )


@pytest.mark.parametrize(("n", "d"), [(24, 5), (10, 30)])
def test_left_out_scores_are_those_of_fits_without_the_row(rng, n, d):
    features, labels = problem(rng, n, d)
    x = ridge.Scaler.fit(features).apply_with_bias(features)
    y = 2.0 * np.eye(4)[labels] - 1
    solved = ridge.solve(x, y)
    for l2 in (2.0**-10, 1.0, 1024.0):
        expected = [
            x[i] @ by_hand(np.delete(x, i, 0), np.delete(y, i, 0), l2) for i in range(n)
        ]
        np.testing.assert_allclose(solved.left_out(l2), expected, rtol=1e-5, atol=1e-6)


def test_a_constant_feature_changes_nothing(rng):
    features, labels = problem(rng, 30, 6)
    queries = rng.normal(size=(40, 6))
    plain, _ = ridge.classify(features, labels, queries, L2)
    padded, _ = ridge.classify(
        np.pad(features, ((0, 0), (0, 1)), constant_values=3.0),
        labels,
        np.pad(queries, ((0, 0), (0, 1)), constant_values=3.0),
        L2,
    )
    np.testing.assert_array_equal(plain, padded)


@pytest.mark.parametrize("present", [2, 3, 5])
def test_a_class_without_support_never_wins(rng, present):
    """Columns of targets that are all -1 may as well be left out."""
    labels = 2 * (np.arange(40) % present)  # odd classes are absent
    features = rng.normal(size=(40, 8)) + labels[:, None]
    queries = 10 * rng.normal(size=(500, 8))
    scaler = ridge.Scaler.fit(features)
    x, q = scaler.apply_with_bias(features), scaler.apply_with_bias(queries)
    found, right = ridge.classify(features, labels, queries, L2)
    assert len(right) == len(L2)
    for l2, classes in zip(L2, found, strict=True):
        scores = q @ by_hand(x, 2.0 * np.eye(2 * present)[labels] - 1, l2)
        np.testing.assert_array_equal(classes, scores.argmax(1))

# SPDX-License-Identifier: Apache-2.0
"""The linear probe against scikit-learn's logistic regression."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from vit_jax.evaluators import probe


def problem(rng, n, d=5, k=3):
    labels = np.arange(n) % k
    return rng.normal(size=(n, d)) + 0.7 * np.eye(d)[labels], labels


@pytest.mark.parametrize("l2", [0.1, 10.0])
def test_weights_are_those_of_scikit_learn(rng, l2):
    features, labels = problem(rng, 60)
    kernel, bias = probe.fit(features, labels, 3, l2)
    model = LogisticRegression(C=1 / l2, tol=1e-8, max_iter=1000).fit(features, labels)
    np.testing.assert_allclose(kernel, model.coef_.T, atol=2e-3)
    # A constant may be added to every bias.
    centred = model.intercept_ - model.intercept_.mean()
    np.testing.assert_allclose(bias - bias.mean(), centred, atol=2e-3)


def test_classes_are_those_of_scikit_learn(rng):
    features, labels = problem(rng, 60)
    ids = np.array([2, 5, 9])
    queries = rng.normal(size=(200, 5))
    found, right = probe.classify(features, ids[labels], queries, [1.0])
    scale = features.std(0) + 1e-5
    model = LogisticRegression(C=1.0, tol=1e-8).fit(
        (features - features.mean(0)) / scale, ids[labels]
    )
    expected = model.predict((queries - features.mean(0)) / scale)
    assert np.mean(found[0] == expected) > 0.99  # but for the very border
    assert right == []


def test_each_fifth_of_a_class_is_held_out_to_compare_regularisers(rng):
    features, labels = problem(rng, 30)
    order = rng.permutation(30)
    features, labels = features[order], labels[order]
    found, right = probe.classify(features, labels, features, [1e-3, 1e4])
    assert [len(each) for each in right] == [6, 6]  # two of ten of each class
    held_out = [i for i in range(30) if np.sum(labels[:i] == labels[i]) % 5 == 4]
    rest = np.setdiff1d(np.arange(30), held_out)
    again, _ = probe.classify(features[rest], labels[rest], features[held_out], [1e-3])
    np.testing.assert_array_equal(right[0], again[0] == labels[held_out])
    assert (found[0] == labels).mean() >= (found[1] == labels).mean()


def test_too_few_examples_leave_nothing_out(rng):
    features, labels = problem(rng, 12)
    assert probe.classify(features, labels, features, [1.0, 2.0])[1] == []

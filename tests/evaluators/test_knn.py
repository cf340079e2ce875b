# SPDX-License-Identifier: Apache-2.0
"""Votes of neighbours against loops over all pairs."""

import math

import numpy as np
import pytest

from vit_jax.evaluators import knn


def cosine(a, b):
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def vote(support, labels, query, k, temperature=0.07, without=None):
    pairs = [(-cosine(x, query), i) for i, x in enumerate(support) if i != without]
    votes = {}
    for negative, i in sorted(pairs)[:k]:
        weight = math.exp(-negative / temperature)
        votes[labels[i]] = votes.get(labels[i], 0.0) + weight
    return max(sorted(votes), key=votes.__getitem__)


def problem(rng, n, m):
    labels = rng.choice([1, 4, 5], n)  # ids need not be consecutive
    support = rng.normal(size=(n, 6)) + np.eye(6)[labels]
    return support, labels, rng.normal(size=(m, 6))


@pytest.mark.parametrize("queries_at_a_time", [1024, 7])
def test_classes_are_those_of_a_loop(rng, monkeypatch, queries_at_a_time):
    monkeypatch.setattr(knn, "QUERIES", queries_at_a_time)
    support, labels, queries = problem(rng, 40, 25)
    ks = [1, 3, 20, 40, 1000]
    found, _ = knn.classify(support, labels, queries, ks)
    for k, classes in zip(ks, found, strict=True):
        assert classes.tolist() == [vote(support, labels, q, k) for q in queries]


def test_the_temperature_says_how_much_the_nearest_count():
    # One neighbour of class 7 at cosine 1, two of class 8 at cosine 0.9.
    side = math.sqrt(1 - 0.9**2)
    support = np.array([[1, 0, 0], [0.9, side, 0], [0.9, -side, 0]])
    labels, query = np.array([7, 8, 8]), np.array([[2.0, 0, 0]])
    # exp(0.1 / t) against 2: they are equal at t = 0.1 / log 2 = 0.144.
    for temperature, expected in [(0.07, 7), (0.14, 7), (0.15, 8), (1.0, 8)]:
        found, _ = knn.classify(support, labels, query, [3], temperature)
        assert found[0].tolist() == [expected]


def test_left_out_examples_do_not_vote_for_themselves(rng):
    support, labels, queries = problem(rng, 30, 1)
    support[7] = support[3]  # a duplicate is a neighbour like any other
    ks = [1, 5]
    _, right = knn.classify(support, labels, queries, ks)
    for k, hits in zip(ks, right, strict=True):
        expected = [
            vote(support, labels, support[i], k, without=i) == labels[i]
            for i in range(30)
        ]
        assert hits.tolist() == expected
    assert knn.classify(support, labels, queries, [5])[1] == []


def test_a_feature_of_zeros_is_no_nan():
    support, labels = np.array([[0.0, 0], [1, 0], [0, 1]]), np.array([0, 1, 2])
    found, _ = knn.classify(support, labels, np.array([[1.0, 0.1]]), [1])
    assert found[0].tolist() == [1]

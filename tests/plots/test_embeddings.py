# SPDX-License-Identifier: Apache-2.0
"""Positions and filters against their formula and scikit-learn."""

import numpy as np
import pytest
from sklearn.decomposition import PCA

from vit_jax.models.layers.positions import sincos2d
from vit_jax.plots import embeddings


def test_similarity_of_sines_is_its_formula():
    # sin a sin b + cos a cos b = cos(a - b): only offsets count.
    h, w, d = 3, 5, 32
    omega = 10_000.0 ** -(np.arange(d // 4) / (d // 4 - 1))
    result = embeddings.similarity(sincos2d(h, w, d), (h, w))
    assert result.shape == (h, w, h, w)
    for i, j, k, m in np.ndindex(result.shape):
        expected = (np.cos((i - k) * omega) + np.cos((j - m) * omega)).sum() / (d / 2)
        # The table is float32.
        assert result[i, j, k, m] == pytest.approx(expected, abs=1e-6)


def test_similarity_is_that_of_random_vectors(rng):
    table = rng.standard_normal((6, 4))
    result = embeddings.similarity(table, (2, 3))
    a, b = table[1], table[5]
    expected = a @ b / np.sqrt((a @ a) * (b @ b))
    assert result[0, 1, 1, 2] == pytest.approx(expected)


def test_a_vector_of_zeros_is_similar_to_none():
    result = embeddings.similarity(np.array([[0.0, 0.0], [1.0, 2.0]]), (1, 2))
    np.testing.assert_allclose(result.reshape(2, 2), [[0, 0], [0, 1]])


def test_neighbours_are_counted(rng):
    table = sincos2d(6, 6, 64)
    near = embeddings.similarity(table, (6, 6))
    assert embeddings.nearest_are_neighbours(near) == 1.0
    # Opposite places next to each other: nobody has its likest beside it.
    line = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
    far = embeddings.similarity(line, (1, 4))
    assert embeddings.nearest_are_neighbours(far) == 0.0


def test_components_are_those_of_scikit_learn(rng):
    kernel = rng.standard_normal((4, 3, 3, 50))
    samples = kernel.reshape(-1, 50).T
    pca = PCA(n_components=6, svd_solver="full").fit(samples)
    components, explained = embeddings.filter_components(kernel, 6)
    assert components.shape == (6, 4, 3, 3)
    flat = components.reshape(6, -1)
    signs = np.sign((flat * pca.components_).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(flat, signs * pca.components_, atol=1e-9)
    np.testing.assert_allclose(explained, pca.explained_variance_ratio_, rtol=1e-9)
    assert (flat[np.arange(6), np.abs(flat).argmax(1)] > 0).all()


def test_fewer_filters_than_components_give_what_there_is(rng):
    components, explained = embeddings.filter_components(
        rng.standard_normal((2, 2, 3, 4)), 28
    )
    assert len(components) == len(explained) == 4

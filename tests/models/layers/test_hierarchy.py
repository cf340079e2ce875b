# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.hierarchy import (
    PatchEmbedding,
    PatchMerging,
    merge_neighbours,
)

DTYPES = {"norm_eps": 1e-5, "dtype": jnp.float32, "param_dtype": jnp.float32}


def draw(*shape):
    values = np.random.default_rng(0).normal(size=shape)
    return jnp.asarray(values, jnp.float32)


def test_neighbours_are_merged_column_by_column():
    # [[a, b], [c, d]] with two channels each.
    x = jnp.asarray([[[1, 10], [2, 20]], [[3, 30], [4, 40]]], jnp.float32)[None]
    np.testing.assert_array_equal(
        merge_neighbours(x)[0, 0, 0], [1, 10, 3, 30, 2, 20, 4, 40]
    )


def test_odd_maps_are_padded_with_zeros_at_the_bottom_and_right():
    merged = merge_neighbours(jnp.ones((1, 3, 5, 1)))
    assert merged.shape == (1, 2, 3, 4)
    np.testing.assert_array_equal(merged[0, 0, 0], [1, 1, 1, 1])
    np.testing.assert_array_equal(merged[0, 1, 0], [1, 0, 1, 0])
    np.testing.assert_array_equal(merged[0, 0, 2], [1, 1, 0, 0])
    np.testing.assert_array_equal(merged[0, 1, 2], [1, 0, 0, 0])


def normalised(x):
    x = np.asarray(x)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_merging_normalises_before_or_after_the_reduction(norm_first):
    x, kernel = draw(1, 4, 4, 3), draw(12, 6)
    width = 12 if norm_first else 6
    norm = {"scale": jnp.ones(width), "bias": jnp.zeros(width)}
    params = {"reduction": {"kernel": kernel}, "norm": norm}
    y = PatchMerging(norm_first, **DTYPES).apply({"params": params}, x)
    merged = np.asarray(merge_neighbours(x))
    expected = (
        normalised(merged) @ kernel if norm_first else normalised(merged @ kernel)
    )
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_patches_are_embedded_and_normalised():
    image = draw(2, 8, 4, 3)
    embedding = PatchEmbedding(5, (4, 4), **DTYPES)
    params = embedding.init(jax.random.key(0), image)["params"]
    y = embedding.apply({"params": params}, image)
    assert y.shape == (2, 2, 1, 5)
    flat = image.reshape(2, 2, 48) @ params["proj"]["kernel"].reshape(48, 5)
    flat = flat + params["proj"]["bias"][None, None]
    np.testing.assert_allclose(
        y.reshape(2, 2, 5), normalised(flat), rtol=1e-4, atol=1e-5
    )


def test_images_are_padded_to_whole_patches_at_the_bottom_and_right():
    image = draw(1, 7, 10, 3)
    embedding = PatchEmbedding(5, (4, 4), **DTYPES)
    padded = jnp.pad(image, ((0, 0), (0, 1), (0, 2), (0, 0)))
    params = embedding.init(jax.random.key(0), image)
    np.testing.assert_array_equal(
        embedding.apply(params, image), embedding.apply(params, padded)
    )

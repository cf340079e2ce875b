# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.models.layers.relative import RelativeScores

B, M, E = 2, 3, 4


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_score_is_that_of_the_offset_of_query_and_key(n, prefix):
    query, embedding = draw(B, prefix + n, M, E), draw(2 * n - 1, M, E)
    scores = RelativeScores(prefix).apply(
        {"params": {"embedding": embedding}}, jnp.asarray(query)
    )
    expected = np.zeros((B, M, prefix + n, prefix + n))
    for q in range(n):
        for k in range(n):
            offset = q - k
            expected[:, :, prefix + q, prefix + k] = np.einsum(
                "bme,me->bm", query[:, prefix + q], embedding[n - 1 - offset]
            )
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_first_embeddings_are_small_and_one_for_each_offset_and_head():
    params = RelativeScores().init(jax.random.key(0), jnp.zeros((1, 50, M, E)))
    embedding = params["params"]["embedding"]
    assert embedding.shape == (99, M, E)
    np.testing.assert_allclose(np.std(embedding), 0.02, rtol=0.15)


def test_another_number_of_patches_is_refused():
    params = {"embedding": jnp.zeros((7, M, E))}
    with pytest.raises(UserError, match="made for 4 patches, but the image has 6"):
        RelativeScores(1).apply({"params": params}, jnp.zeros((1, 7, M, E)))

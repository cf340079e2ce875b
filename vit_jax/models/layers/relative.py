# SPDX-License-Identifier: Apache-2.0
"""Relative positions: a score for the distance of two patches in the sequence."""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.errors import UserError


class RelativeScores(nn.Module):
    """Scores of queries against the embeddings of offsets.

    Appendix D.4 of arXiv:2010.11929: each 1-D offset p_q - p_k of two patches has an
    embedding, which is an extra key for the content of the query; its score is added to
    that of the content before the softmax. The paper leaves open what shares
    embeddings: here each block and head has its own. Tokens before the patches have no
    place and get nothing.

    Attributes:
      prefix_tokens: How many come before the patches.
      param_dtype: Of the embeddings.
    """

    prefix_tokens: int = 0
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, query: Float[Array, "b q m e"]) -> Float[Array, "b m q q"]:
        """Returns float32 scores to be added; `query` is scaled like that of content.

        Raises:
          UserError: Another number of patches than the embeddings are made for.
        """
        b, tokens, m, e = query.shape
        n = tokens - self.prefix_tokens
        if self.has_variable("params", "embedding"):
            stored = (self.get_variable("params", "embedding").shape[0] + 1) // 2
            if stored != n:
                raise UserError(
                    f"the relative positions are made for {stored} patches, but the "
                    f"image has {n}; feed images of the size that they are made for"
                )
        embedding = self.param(
            "embedding",
            nn.initializers.normal(0.02),
            (2 * n - 1, m, e),
            self.param_dtype,
        )
        # Row i of the embeddings is the offset n - 1 - i.
        by_offset = jnp.einsum(
            "bqme,rme->bmqr",
            query[:, self.prefix_tokens :],
            embedding.astype(query.dtype),
            preferred_element_type=jnp.float32,
        )
        # Query q wants rows n - 1 - q + k: with one more column, one row of 2n - 1
        # further on in memory is one column further to the left.
        flat = jnp.pad(by_offset, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(b, m, -1)
        flat = flat[..., n - 1 : n - 1 + n * (2 * n - 1)]
        by_key = flat.reshape(b, m, n, 2 * n - 1)[..., :n]
        before = (self.prefix_tokens, 0)
        return jnp.pad(by_key, ((0, 0), (0, 0), before, before))

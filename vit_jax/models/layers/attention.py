# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention: what the products and the softmax of `attend.py` stand in."""

import functools

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.layers.attend import (
    Form,
    attend,
    join_heads,
    mix,
    scores,
    softmax,
    split_heads,
)
from vit_jax.models.layers.dense import FlatDense
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.relative import RelativeScores
from vit_jax.models.layers.remat import named
from vit_jax.models.layers.rotary import rotate


class MultiHeadAttention(nn.Module):
    """Multi-head attention (Appendix A of arXiv:2010.11929) of `x` to `context`.

    For each head softmax(q k^T / sqrt(e)) v with head width e = d / num_heads; the
    heads are mixed by one more linear layer. The softmax is float32.

    Attributes:
      num_heads: Number of heads, a divisor of the width.
      attention_dropout_rate: Dropout of the attention probabilities. The paper has
        none.
      qk_norm: Whether queries and keys of each head are layer-normalised, one norm for
        all heads (Section 2 of arXiv:2302.05442, which has no bias; timm's has one).
      norm_eps: Epsilon of these norms.
      relative_after: Number of tokens before patches that get the scores of
        `RelativeScores`; None is no such scores.
      form: How softmax(q k^T) v is computed, see `attend`. Dropout and relative scores
        need the probabilities and are plain in any case.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    num_heads: int
    attention_dropout_rate: float = 0.0
    qk_norm: bool = False
    norm_eps: float = 1e-6
    relative_after: int | None = None
    form: Form = "auto"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b q d"],
        context: Float[Array, "b n d"],
        *,
        train: bool,
        angles: Float[np.ndarray, "n f"] | None = None,
        return_attention: bool = True,
    ) -> tuple[Float[Array, "b q d"], Float[Array, "b m q n"] | None]:
        """Returns the result and the attention probabilities before dropout.

        Args:
          x: What queries are made of.
          context: What keys and values are made of.
          train: Whether dropout is on.
          angles: Turn queries and keys, see `rotate`; `x` must then be `context`.
          return_attention: Whether somebody looks at the probabilities; else they may
            be None.

        Raises:
          UserError: The width is no multiple of `num_heads`.
        """
        width = x.shape[-1]
        if width % self.num_heads:
            raise UserError(
                f"width {width} is no multiple of num_heads {self.num_heads}; "
                f"with these heads, {self.num_heads * max(1, width // self.num_heads)} "
                "would be one"
            )
        heads, head_width = self.num_heads, width // self.num_heads
        dense = functools.partial(
            FlatDense,
            kernel_init=nn.initializers.xavier_uniform(),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        project = functools.partial(dense, (width,), (heads, head_width))
        query = named(project(name="query")(x), "qkv")  # (b, q, d)
        key = named(project(name="key")(context), "qkv")  # (b, n, d)
        value = named(project(name="value")(context), "qkv")  # (b, n, d)
        if self.qk_norm or angles is not None:
            query, key = split_heads(query, heads), split_heads(key, heads)
            if self.qk_norm:
                norm = functools.partial(
                    LayerNorm, self.norm_eps, self.dtype, self.param_dtype
                )
                query, key = norm(name="query_ln")(query), norm(name="key_ln")(key)
            if angles is not None:
                query, key = rotate(query, angles), rotate(key, angles)
            query, key = join_heads(query), join_heads(key)
        query = query * head_width**-0.5
        dropout = self.attention_dropout_rate if train else 0.0
        weights = None
        if return_attention or self._is_plain(dropout):
            by_head = split_heads(query, heads)
            logits = scores(by_head, split_heads(key, heads))  # (b, m, q, n)
            if self.relative_after is not None:
                relative = RelativeScores(
                    self.relative_after, self.param_dtype, name="relative"
                )
                logits = logits + relative(by_head)
            weights = softmax(logits)
        if weights is not None and self._is_plain(dropout):
            dropped = nn.Dropout(dropout, deterministic=not train)(weights)
            y = mix(dropped.astype(self.dtype), split_heads(value, heads))
            y = join_heads(y)
        else:
            y = attend(query, key, value, heads=heads, form=self.form)
        return dense((heads, head_width), (width,), name="out")(y), weights

    def _is_plain(self, dropout: float) -> bool:
        plain = self.form == "plain" or self.relative_after is not None
        return plain or dropout > 0.0

# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention and its two products, in the form that each platform likes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.layers.attend import Form, compact, fused
from vit_jax.models.layers.dense import DenseGeneral
from vit_jax.models.layers.flash import check_chip, flash, pays
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
      form: How softmax(q k^T) v is computed: "plain", as told above; "compact", see
        `attend.py`, whose products are rounded to `dtype`; "fused", by a kernel of
        cuDNN where it takes the arrays; "flash", by a kernel for TPUs from v4 on, see
        `flash.py`, and plain on other platforms; "auto" is flash on TPUs where that
        pays, else compact on TPUs, and plain on other platforms.
        Dropout and relative scores need the probabilities and are plain in any case.
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
        head_width = width // self.num_heads
        dense = functools.partial(
            DenseGeneral,
            kernel_init=nn.initializers.xavier_uniform(),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        project = functools.partial(dense, (self.num_heads, head_width))
        query = named(project(name="query")(x), "qkv")  # (b, q, m, e)
        key = named(project(name="key")(context), "qkv")  # (b, n, m, e)
        value = named(project(name="value")(context), "qkv")  # (b, n, m, e)
        if self.qk_norm:
            norm = functools.partial(
                LayerNorm, self.norm_eps, self.dtype, self.param_dtype
            )
            query, key = norm(name="query_ln")(query), norm(name="key_ln")(key)
        if angles is not None:
            query, key = rotate(query, angles), rotate(key, angles)
        query = query * head_width**-0.5
        dropout = self.attention_dropout_rate if train else 0.0
        weights = None
        if return_attention or self._is_plain(dropout):
            logits = scores(query, key)  # (b, m, q, n)
            if self.relative_after is not None:
                relative = RelativeScores(
                    self.relative_after, self.param_dtype, name="relative"
                )
                logits = logits + relative(query)
            weights = softmax(logits)
        if weights is not None and self._is_plain(dropout):
            dropped = nn.Dropout(dropout, deterministic=not train)(weights)
            y = mix(dropped.astype(self.dtype), value)  # (b, q, m, e)
        else:
            forms = {
                "auto": attend,
                "compact": compact,
                "fused": fused,
                "flash": flash_on_tpus,
            }
            y = forms[self.form](query, key, value)
        return dense(width, axis=(-2, -1), name="out")(y), weights

    def _is_plain(self, dropout: float) -> bool:
        plain = self.form == "plain" or self.relative_after is not None
        return plain or dropout > 0.0


# XLA's CPU backend has a fast product for one leading axis only: with batch and heads
# folded into one, 197 tokens and 6 heads take a fourth of the time. TPUs and GPUs do
# better without the transposition, and with heads on an axis of their own they can be
# sharded over devices. The choice falls when the program is lowered, because programs
# for TPUs are compiled on hosts whose own backend is the CPU. Both functions are jitted
# so that the branches are traced and differentiated once, not once a layer.


@jax.jit
def scores(
    query: Float[Array, "b q m e"], key: Float[Array, "b n m e"]
) -> Float[Array, "b m q n"]:
    """Returns the float32 products of every query with every key, head by head."""

    def folded(query: Array, key: Array) -> Array:
        flat = _product("xqe,xne->xqn", _fold(query), _fold(key))
        return flat.reshape(query.shape[0], -1, *flat.shape[1:])

    product = functools.partial(_product, "bqme,bnme->bmqn")
    return lax.platform_dependent(query, key, cpu=folded, default=product)


@jax.jit
def mix(
    weights: Float[Array, "b m q n"], value: Float[Array, "b n m e"]
) -> Float[Array, "b q m e"]:
    """Returns the weighted sums of the values, in their dtype."""

    def folded(weights: Array, value: Array) -> Array:
        flat = weights.reshape(-1, *weights.shape[2:])
        flat = _product("xqn,xne->xqe", flat, _fold(value))
        return flat.reshape(*weights.shape[:3], -1).swapaxes(1, 2)

    product = functools.partial(_product, "bmqn,bnme->bqme")
    mixed = lax.platform_dependent(weights, value, cpu=folded, default=product)
    return mixed.astype(value.dtype)


@jax.jit
def attend(
    query: Float[Array, "b q m e"],
    key: Float[Array, "b n m e"],
    value: Float[Array, "b n m e"],
) -> Float[Array, "b q m e"]:
    """Returns the values weighted by attention, in the form that the platform likes."""
    if pays(query, key):
        return flash(query, key, value)
    return lax.platform_dependent(query, key, value, tpu=compact, default=_plain)


@jax.jit
def flash_on_tpus(
    query: Float[Array, "b q m e"],
    key: Float[Array, "b n m e"],
    value: Float[Array, "b n m e"],
) -> Float[Array, "b q m e"]:
    """Returns the values weighted by attention, by a kernel on TPUs, else plainly.

    Raises:
      UserError: The arrays are for a TPU that cannot run the kernel.
    """
    check_chip(query)
    return lax.platform_dependent(query, key, value, tpu=flash, default=_plain)


def _plain(query: Array, key: Array, value: Array) -> Array:
    return mix(softmax(scores(query, key)).astype(value.dtype), value)


@jax.custom_jvp
def softmax(logits: Float[Array, "b m q n"]) -> Float[Array, "b m q n"]:
    """Returns the softmax over the last axis.

    On a CPU exponentials are cheaper than the memory that keeps them: they are computed
    for the sums, and again with the logarithm of the sum taken off.
    """
    return lax.platform_dependent(
        logits, cpu=lambda x: jnp.exp(nn.log_softmax(x)), default=nn.softmax
    )


@softmax.defjvp
def _softmax_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y, (change,) = softmax(*primals), tangents
    return y, y * (change - jnp.sum(y * change, axis=-1, keepdims=True))


def _product(formula: str, a: Array, b: Array) -> Array:
    return jnp.einsum(formula, a, b, preferred_element_type=jnp.float32)


def _fold(x: Float[Array, "b n m e"]) -> Float[Array, "bm n e"]:
    b, n, m, e = x.shape
    return x.swapaxes(1, 2).reshape(b * m, n, e)

# SPDX-License-Identifier: Apache-2.0
"""softmax(q k^T) v, in the form that a platform or the user asks for.

Queries, keys and values are flat, (b, n, d): the channels of a head lie next to one
another. Each form says what it makes of them.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float

from vit_jax.models.layers.flash import check_chip, flash, pays
from vit_jax.models.layers.short import short, takes

Form = Literal["auto", "plain", "fused", "short", "flash"]


# Jitted so that forms are traced and differentiated once, not once a layer. The choice
# by platform falls when the program is lowered, because programs for TPUs are compiled
# on hosts whose own backend is the CPU.
@functools.partial(jax.jit, static_argnames=("heads", "form"))
def attend(
    query: Float[Array, "b q d"],
    key: Float[Array, "b n d"],
    value: Float[Array, "b n d"],
    *,
    heads: int,
    form: Form,
) -> Float[Array, "b q d"]:
    """Returns the values weighted by attention, in their dtype.

    Args:
      query: The queries, scaled.
      key: The keys.
      value: The values.
      heads: Number of heads, which divides d.
      form: "plain"; "fused", by a kernel of cuDNN where it takes the arrays; "short"
        or "flash", by a kernel on TPUs and plainly on other platforms; "auto" is short
        where that takes the arrays, else flash where that pays, else plain.

    Raises:
      UserError: The kernel that is asked for does not take the arrays, or does not run
        on the TPU on which they lie.
    """
    if form == "auto":
        form = "flash" if pays(query, key) else "plain"
        form = "short" if takes(query, key, heads) else form
    if form == "flash":
        check_chip(query)
    plainly = functools.partial(plain, heads=heads)
    if form == "plain":
        return plainly(query, key, value)
    if form == "fused":
        return fused(query, key, value, heads=heads)
    kernel = functools.partial({"short": short, "flash": flash}[form], heads=heads)
    return lax.platform_dependent(query, key, value, tpu=kernel, default=plainly)


def plain(
    query: Float[Array, "b q d"],
    key: Float[Array, "b n d"],
    value: Float[Array, "b n d"],
    *,
    heads: int,
) -> Float[Array, "b q d"]:
    """Returns the same as it is written: products, softmax, sums."""
    query, key, value = (split_heads(x, heads) for x in (query, key, value))
    weights = softmax(scores(query, key)).astype(value.dtype)
    return join_heads(mix(weights, value))


def fused(
    query: Float[Array, "b q d"],
    key: Float[Array, "b n d"],
    value: Float[Array, "b n d"],
    *,
    heads: int,
) -> Float[Array, "b q d"]:
    """Returns the same by JAX's own function: on GPUs the kernel of cuDNN.

    cuDNN takes dtypes of 16 bits only; the rest, and other platforms, get a form
    without a kernel.
    """
    kernel = jax.default_backend() == "gpu" and query.dtype.itemsize == 2
    query, key, value = (split_heads(x, heads) for x in (query, key, value))
    y = jax.nn.dot_product_attention(
        query, key, value, scale=1.0, implementation="cudnn" if kernel else "xla"
    )
    return join_heads(y)


def split_heads(x: Float[Array, "b n d"], heads: int) -> Float[Array, "b n m e"]:
    """Gives heads an axis of their own."""
    return x.reshape(*x.shape[:2], heads, -1)


def join_heads(x: Float[Array, "b n m e"]) -> Float[Array, "b n d"]:
    """Undoes `split_heads`."""
    return x.reshape(*x.shape[:2], -1)


# XLA's CPU backend has a fast product for one leading axis only: with batch and heads
# folded into one, 197 tokens and 6 heads take a fourth of the time. TPUs and GPUs do
# better without the transposition, and with heads on an axis of their own they can be
# sharded over devices.


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

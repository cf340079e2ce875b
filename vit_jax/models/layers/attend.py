# SPDX-License-Identifier: Apache-2.0
"""softmax(q k^T) v in the form that a platform or the user asks for.

On TPUs the step waits for memory, and products of every query with every key are most
of what attention reads and writes. `compact` keeps them in the dtype of the
computation, once, and neither keeps nor writes the probabilities: the backward pass
computes them again from the logarithm of each row's sum, and takes the sums that the
gradient of a softmax needs from the output (Section 3.1 of arXiv:2205.14135, eq. 4).
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Form = Literal["auto", "plain", "compact", "fused", "flash"]


@jax.custom_vjp
def compact(
    query: Float[Array, "b q m e"],
    key: Float[Array, "b n m e"],
    value: Float[Array, "b n m e"],
) -> Float[Array, "b q m e"]:
    """Returns the values weighted by attention, in their dtype.

    Products are rounded to the dtype of the queries; what comes of them is float32 up
    to the rounding of the probabilities, in which they meet the values.
    """
    return _forward(query, key, value)[0]


def fused(
    query: Float[Array, "b q m e"],
    key: Float[Array, "b n m e"],
    value: Float[Array, "b n m e"],
) -> Float[Array, "b q m e"]:
    """Returns the same by JAX's own function: on GPUs the kernel of cuDNN.

    cuDNN takes dtypes of 16 bits only; the rest, and other platforms, get a form
    without a kernel.
    """
    kernel = jax.default_backend() == "gpu" and query.dtype.itemsize == 2
    return jax.nn.dot_product_attention(
        query, key, value, scale=1.0, implementation="cudnn" if kernel else "xla"
    )


def _forward(query: Array, key: Array, value: Array) -> tuple[Array, tuple]:
    logits = _product("bqme,bnme->bmqn", query, key).astype(query.dtype)
    largest = lax.stop_gradient(jnp.max(logits, axis=-1)).astype(jnp.float32)
    exp = jnp.exp(logits.astype(jnp.float32) - largest[..., None])
    total = jnp.sum(exp, axis=-1)
    weights = (exp / total[..., None]).astype(value.dtype)
    y = _product("bmqn,bnme->bqme", weights, value).astype(value.dtype)
    return y, (query, key, value, logits, largest + jnp.log(total), y)


def _backward(kept: tuple, change: Array) -> tuple[Array, Array, Array]:
    query, key, value, logits, log_total, y = kept
    weights = jnp.exp(logits.astype(jnp.float32) - log_total[..., None])
    d_value = _product("bmqn,bqme->bnme", weights.astype(value.dtype), change)
    d_weights = _product("bqme,bnme->bmqn", change, value)
    # The sum over keys of weights * d_weights.
    sums = jnp.sum(change.astype(jnp.float32) * y.astype(jnp.float32), axis=-1)
    d_logits = weights * (d_weights - sums.swapaxes(1, 2)[..., None])
    d_logits = d_logits.astype(query.dtype)
    d_query = _product("bmqn,bnme->bqme", d_logits, key)
    d_key = _product("bmqn,bqme->bnme", d_logits, query)
    return (
        d_query.astype(query.dtype),
        d_key.astype(key.dtype),
        d_value.astype(value.dtype),
    )


compact.defvjp(_forward, _backward)


def _product(formula: str, a: Array, b: Array) -> Array:
    return jnp.einsum(formula, a, b, preferred_element_type=jnp.float32)

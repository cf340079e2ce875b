# SPDX-License-Identifier: Apache-2.0
"""Dense layers whose products have the form that each platform likes."""

import functools
import math
from typing import Any

import jax
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float


def dense_dot(
    x: Float[Array, "*b"],
    kernel: Float[Array, "*c"],
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Array:
    """Multiplies the last axes of `x` with the first of `kernel`.

    The `dot_general` of a dense layer. On a CPU, tokens of all examples are rows of one
    matrix: the gradient of the kernel is then a product of matrices as they lie, where
    XLA would transpose both in memory before. Elsewhere the axes stay, since tokens of
    an example are tiled in memory and would have to be moved.
    """
    (contracted, _), _ = dimension_numbers
    return _product(x, kernel, len(contracted), precision, preferred_element_type)


Dense = functools.partial(nn.Dense, dot_general=dense_dot)
DenseGeneral = functools.partial(nn.DenseGeneral, dot_general=dense_dot)


# Jitted so that the two branches are traced and differentiated once, not once a layer.
@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _product(x: Array, kernel: Array, axes: int, precision: Any, dtype: Any) -> Array:
    rows, columns = x.shape[: x.ndim - axes], kernel.shape[axes:]

    def plain(x: Array, kernel: Array, axes: int = axes) -> Array:
        last, first = range(x.ndim - axes, x.ndim), range(axes)
        numbers = ((tuple(last), tuple(first)), ((), ()))
        return lax.dot_general(x, kernel, numbers, precision, dtype)

    def flat(x: Array, kernel: Array) -> Array:
        x = x.reshape(math.prod(rows), -1)
        kernel = kernel.reshape(x.shape[1], -1)
        return plain(x, kernel, axes=1).reshape(*rows, *columns)

    return lax.platform_dependent(x, kernel, cpu=flat, default=plain)

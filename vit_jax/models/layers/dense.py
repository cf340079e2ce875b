# SPDX-License-Identifier: Apache-2.0
"""Dense layers whose products have the form that each platform likes."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
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


class FlatDense(nn.Module):
    """A dense layer of flat features whose parameters have more axes than these.

    Kernels of attention have an axis for heads and one for their width, as Google's
    files have them. On TPUs the two would be tiled in memory, and what lies in other
    tiles is moved: weights are, which are small, and features never have these axes.

    Attributes:
      inputs: Axes of the kernel for the features that come in.
      outputs: Axes of the kernel, and of the bias, for those that go out.
      kernel_init: First values of the kernel, as a matrix.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b f"]:
        """Returns `x` times the kernel, plus the bias, in `dtype`."""
        matrix = math.prod(self.inputs), math.prod(self.outputs)

        def init(key: Array, shape: Sequence[int], dtype: DTypeLike) -> Array:
            return self.kernel_init(key, matrix, dtype).reshape(shape)

        shape = (*self.inputs, *self.outputs)
        kernel = self.param("kernel", init, shape, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, self.outputs, self.param_dtype)
        kernel = jnp.asarray(kernel, self.dtype).reshape(matrix)
        numbers = (((x.ndim - 1,), (0,)), ((), ()))
        y = dense_dot(jnp.asarray(x, self.dtype), kernel, numbers)
        return y + jnp.asarray(bias, self.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


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

# SPDX-License-Identifier: Apache-2.0
"""Layer normalisation whose statistics are float32 and cheap on a CPU too."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis (arXiv:1607.06450).

    y = (x - mean) / sqrt(var + eps) * scale + bias, with the population variance taken
    of the centred values: mean(x^2) - mean(x)^2 would lose the digits of nearly
    constant tokens. Everything up to y is float32.

    Attributes:
      eps: Added to the variance.
      dtype: Of the result.
      param_dtype: Of `scale` and `bias`.
      scale_init: First values of `scale`.
    """

    eps: float = 1e-6
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32
    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        """Returns `x` normalised, scaled and shifted, in `dtype`."""
        shape = x.shape[-1:]
        scale = self.param("scale", self.scale_init, shape, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)
        wide = (1,) * (x.ndim - 1) + shape
        x = x.astype(jnp.float32)
        centred = x - row_mean(x)
        factor = lax.rsqrt(row_mean(jnp.square(centred)) + self.eps)
        y = centred * (factor * scale.reshape(wide)) + bias.reshape(wide)
        return y.astype(self.dtype)


# Jitted so that the two branches are traced and differentiated once, not once a layer.
@jax.jit
def row_mean(x: Float[Array, "*b d"]) -> Float[Array, "*b 1"]:
    """Returns the mean over the last axis, which is kept.

    XLA's CPU backend would fuse a plain sum with all that made `x`, back through every
    residual addition, and compute that again for each sum; a product with ones keeps
    `x` in memory and is a fifth faster over a whole training step.
    """
    ones = jnp.ones((x.shape[-1], 1), x.dtype)
    total = lax.platform_dependent(
        x,
        cpu=lambda x: jnp.matmul(x, ones, precision=lax.Precision.HIGHEST),
        default=lambda x: jnp.sum(x, axis=-1, keepdims=True),
    )
    return total / x.shape[-1]

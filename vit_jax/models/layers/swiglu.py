# SPDX-License-Identifier: Apache-2.0
"""The gated perceptron that the largest DINOv2 has in place of the MLP."""

import functools

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.remat import named


class SwiGlu(nn.Module):
    """Dense(silu(gate) * value), with both made by one dense layer (arXiv:2002.05202).

    As in DINOv2 (arXiv:2304.07193): biases everywhere, and the first half of the
    channels of the first layer is the gate.

    Attributes:
      mlp_dim: Width of gate and value, so half that of the first layer. DINOv2's giant
        model has 4096.
      dropout_rate: After the product and after the second layer.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    mlp_dim: int
    dropout_rate: float = 0.0
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*b d"], *, train: bool) -> Float[Array, "*b d"]:
        """Returns what the layers make of each token by itself."""
        dense = functools.partial(
            Dense,
            kernel_init=nn.initializers.xavier_uniform(),
            bias_init=nn.initializers.normal(1e-6),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        dropout = functools.partial(
            nn.Dropout, self.dropout_rate, deterministic=not train
        )
        y = named(dense(2 * self.mlp_dim, name="Dense_0")(x), "mlp")
        gate, value = jnp.split(y, 2, axis=-1)
        y = dropout()(nn.silu(gate) * value)
        return dropout()(dense(x.shape[-1], name="Dense_1")(y))

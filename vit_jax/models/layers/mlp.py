# SPDX-License-Identifier: Apache-2.0
"""The two-layer perceptron of an encoder block, and the two forms of GELU."""

import functools
from collections.abc import Callable, Mapping
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.remat import named

Gelu = Literal["tanh", "erf"]

# They differ by up to 5e-4 an activation, about 1e-3 in the logits of a whole model.
GELU: Mapping[Gelu, Callable[[Array], Array]] = {
    "tanh": functools.partial(nn.gelu, approximate=True),
    "erf": functools.partial(nn.gelu, approximate=False),
}


# Of the layer before a head: tanh in the paper's pre-training, GELU in heads with a
# hidden layer, as regression uses them.
Activation = Literal["tanh", "gelu"]


def activate(x: Array, activation: Activation, gelu: Gelu) -> Array:
    """Applies the activation of the layer before a head."""
    return jnp.tanh(x) if activation == "tanh" else GELU[gelu](x)


class Mlp(nn.Module):
    """Dense, GELU, dense, with dropout after each dense layer.

    Kernels start Xavier uniform and biases at 1e-6 times a normal sample, as in
    Google's code, unless asked otherwise.

    Attributes:
      mlp_dim: Width of the hidden layer.
      dropout_rate: After the GELU and after the second layer.
      gelu: Which form of the activation.
      names: Of the two layers.
      kernel_init: First values of the kernels.
      bias_init: First values of the biases.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    mlp_dim: int
    dropout_rate: float = 0.0
    gelu: Gelu = "tanh"
    names: tuple[str, str] = ("Dense_0", "Dense_1")
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    bias_init: nn.initializers.Initializer = nn.initializers.normal(1e-6)
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*b d"], *, train: bool) -> Float[Array, "*b d"]:
        """Returns what the layers make of each token by itself."""
        dense = functools.partial(
            Dense,
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        dropout = functools.partial(
            nn.Dropout, self.dropout_rate, deterministic=not train
        )
        y = named(dense(self.mlp_dim, name=self.names[0])(x), "mlp")
        y = GELU[self.gelu](y)
        y = dropout()(y)
        y = dense(x.shape[-1], name=self.names[1])(y)
        return dropout()(y)

# SPDX-License-Identifier: Apache-2.0
"""The linear classifier at the end of a model."""

import jax.numpy as jnp
from flax import linen as nn
from jax.nn.initializers import Initializer
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def classify(
    x: Float[Array, "b *n d"],
    num_classes: int,
    *,
    bias: float,
    param_dtype: DTypeLike,
    kernel_init: Initializer = nn.initializers.zeros,
    name: str = "head",
) -> Float[Array, "b *n k"]:
    """Returns float32 logits, by a dense layer of the module that calls it.

    Args:
      x: Features of the images, or of each token.
      num_classes: Number of logits; 0 gives the features.
      bias: First value of the bias.
      param_dtype: Of the parameters.
      kernel_init: First values of the kernel.
      name: Of the layer.
    """
    if not num_classes:
        return x.astype(jnp.float32)
    return nn.Dense(
        num_classes,
        kernel_init=kernel_init,
        bias_init=nn.initializers.constant(bias),
        dtype=jnp.float32,
        param_dtype=param_dtype,
        name=name,
    )(x)

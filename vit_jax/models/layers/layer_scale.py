# SPDX-License-Identifier: Apache-2.0
"""LayerScale: a learned factor for each channel of a residual branch."""

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float


class LayerScale(nn.Module):
    """y = scale * x, with scales that start small (Section 2.1 of arXiv:2103.17239).

    Attributes:
      first: First value of every scale.
      param_dtype: Of the scales.
    """

    first: float
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
        """Returns the branch, scaled, in its dtype."""
        scale = self.param(
            "scale",
            nn.initializers.constant(self.first),
            x.shape[-1:],
            self.param_dtype,
        )
        return x * scale.astype(x.dtype)[None, None]

# SPDX-License-Identifier: Apache-2.0
"""What BiT's ResNets are made of: standardised convolutions and group normalisation.

Their two epsilons, and the place of the first, are part of what weights mean; see
`presets.py`.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

GROUPS = 32  # of every group norm, whatever the width

EpsForm = Literal["std", "var"]
Padding = Literal["SAME", "VALID"] | int


class StdConv(nn.Module):
    """Convolution without bias whose kernel is standardised (arXiv:1903.10520).

    Each output channel of the kernel gets mean 0 and variance 1 before it is used.

    Attributes:
      features: Channels of the output.
      kernel_size: Side of the kernel.
      stride: Step between outputs.
      padding: "SAME" (the larger half behind), or zeros on each side.
      eps: See `standardize`.
      eps_form: See `standardize`.
      dtype: Of the convolution; the kernel is standardised in float32.
      param_dtype: Of the kernel.
    """

    features: int
    kernel_size: int
    stride: int = 1
    padding: Padding = "SAME"
    eps: float = 1e-10
    eps_form: EpsForm = "var"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array | np.ndarray, "b h w c"]
    ) -> Float[Array, "b y x d"]:
        """Returns the convolved maps, in `dtype`."""
        size, padding = self.kernel_size, self.padding
        kernel = self.param(
            "kernel",
            nn.initializers.lecun_normal(),
            (size, size, x.shape[-1], self.features),
            self.param_dtype,
        )
        kernel = standardize(kernel, self.eps, self.eps_form)
        return lax.conv_general_dilated(
            jnp.asarray(x, self.dtype),
            kernel.astype(self.dtype),
            window_strides=(self.stride, self.stride),
            padding=[(padding, padding)] * 2 if isinstance(padding, int) else padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )


# Jitted, like the mean below, so that layers of one shape are traced once.
@functools.partial(jax.jit, static_argnames=("eps", "eps_form"))
def standardize(
    kernel: Float[Array, "y x c d"], eps: float, eps_form: EpsForm
) -> Float[Array, "y x c d"]:
    """Returns the kernel with mean 0 and variance 1 in each output channel, float32.

    Args:
      kernel: The stored kernel.
      eps: What keeps the divisor from zero.
      eps_form: "var" divides by sqrt(var + eps), as BiT does; "std" by
        sqrt(var) + eps, as Google's hybrids do. The variance is the population's.
    """
    kernel = kernel.astype(jnp.float32)
    centred = kernel - jnp.mean(kernel, axis=(0, 1, 2), keepdims=True)
    var = jnp.mean(jnp.square(centred), axis=(0, 1, 2), keepdims=True)
    if eps_form == "var":
        return centred * lax.rsqrt(var + eps)
    return centred / (jnp.sqrt(var) + eps)


class GroupNorm(nn.Module):
    """Group normalisation (arXiv:1803.08494) with 32 groups of neighbouring channels.

    y = (x - mean) / sqrt(var + eps) * scale + bias, mean and population variance over
    the map and the channels of a group, everything up to y in float32.

    Attributes:
      eps: Added to the variance.
      scale_init: First values of `scale`; Google's hybrids start some at 0.
      dtype: Of the result.
      param_dtype: Of `scale` and `bias`.
    """

    eps: float = 1e-5
    scale_init: nn.initializers.Initializer = nn.initializers.ones
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        """Returns `x` normalised, scaled and shifted, in `dtype`."""
        shape = x.shape[-1:]
        scale = self.param("scale", self.scale_init, shape, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, shape, self.param_dtype)
        return _normalize(x, scale, bias, self.eps).astype(self.dtype)


@functools.partial(jax.jit, static_argnames="eps")
def _normalize(
    x: Float[Array, "b h w c"],
    scale: Float[Array, " c"],
    bias: Float[Array, " c"],
    eps: float,
) -> Float[Array, "b h w c"]:
    x = x.astype(jnp.float32)
    centred = x - _group_mean(x)
    factor = lax.rsqrt(_group_mean(jnp.square(centred)) + eps)
    wide = (1, 1, 1, -1)
    return centred * (factor * scale.reshape(wide)) + bias.reshape(wide)


def _group_mean(x: Float[Array, "b h w c"]) -> Float[Array, "b 1 1 c"]:
    """Returns the mean over the map and the channel's group, once for each channel.

    The map is summed before channels are grouped: a TPU would pad an axis of the two
    channels of a group to 128.
    """
    b, _, _, c = x.shape
    groups = jnp.mean(x, axis=(1, 2)).reshape(b, GROUPS, c // GROUPS)
    means = jnp.mean(groups, axis=2, keepdims=True)
    return jnp.broadcast_to(means, groups.shape).reshape(b, 1, 1, c)

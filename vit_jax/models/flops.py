# SPDX-License-Identifier: Apache-2.0
"""What a model costs: multiply-adds of an image, exaFLOPs of a training run.

Matrix products and convolutions are counted from the sizes of a model, without running
or tracing it. Norms, activations and sums, a few per cent of a model, are left out, and
so is the standardising of kernels; a kernel counts whole at the border of a map. The
exaFLOPs of Table 6 of arXiv:2010.11929 come out with two operations for a multiply-add
and with a backward pass of twice the forward pass.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from flax import linen as nn

from vit_jax.models.bit import BiT
from vit_jax.models.hybrid import Hybrid
from vit_jax.models.layers.patches import Size, pair, patch_grid
from vit_jax.models.layers.pyramid import Pyramid, ceil_divide
from vit_jax.models.layers.windows import Pair, Windows
from vit_jax.models.mixer import Mixer
from vit_jax.models.swin import Swin
from vit_jax.models.swin_v2 import SwinV2
from vit_jax.models.vit import ViT

JFT_IMAGES = 303_000_000  # Section 4.1 of the paper

CHANNELS = 3
CPB_WIDTH = 512  # hidden width of the MLP that makes V2's relative positions

ResNetStride = Literal["3x3", "1x1"]


def multiply_adds(
    model: nn.Module, size: Size, *, resnet_stride: ResNetStride = "3x3"
) -> int:
    """Returns the multiply-adds of the forward pass of one image.

    Args:
      model: From `build_model`.
      size: Side, or (height, width), of the image in pixels.
      resnet_stride: Where a residual unit halves the map: on its 3x3 convolution, as
        BiT, hybrids and this package do, or on its first 1x1, as the ResNet of 2015.

    Raises:
      UserError: An image that does not divide into the model's patches.
    """
    height, width = pair(size)
    if isinstance(model, ViT | Hybrid):
        return _vit(model, (height, width), resnet_stride)
    if isinstance(model, BiT):
        maps, total = _resnet(model, (height, width), resnet_stride)
        return total + _head(model, maps)
    return _COUNTS[type(model)](model, (height, width))


def exaflops(
    model: nn.Module,
    images: float,
    size: Size = 224,
    *,
    resnet_stride: ResNetStride = "3x3",
) -> float:
    """Returns what training on so many images costs, forward and backward, in 1e18.

    Args:
      model: From `build_model`.
      images: Images of all epochs together.
      size: See `multiply_adds`.
      resnet_stride: See `multiply_adds`.
    """
    once = multiply_adds(model, size, resnet_stride=resnet_stride)
    return 3 * 2 * once * images / 1e18

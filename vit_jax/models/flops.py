# SPDX-License-Identifier: Apache-2.0
"""What a model costs: multiply-adds of an image, exaFLOPs of a training run.

Matrix products and convolutions are counted from the sizes of a model, which is neither
run nor traced. Norms, activations and sums, a few per cent of a model, are left out, as
is the standardising of kernels; a kernel counts whole at the border of a map. The
exaFLOPs of Table 6 of arXiv:2010.11929 come out with two operations for a multiply-add
and a backward pass that costs twice the forward pass.
"""

import math
from typing import Literal

from flax import linen as nn

from vit_jax.models.axial import AxialViT
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

ResNetStride = Literal["3x3", "1x1"]

_CHANNELS = 3
_CPB_WIDTH = 512  # hidden layer of the MLP for V2's relative positions


def multiply_adds(
    model: nn.Module, size: Size, *, resnet_stride: ResNetStride = "3x3"
) -> int:
    """Returns the multiply-adds of the forward pass of one image.

    Args:
      model: From `build_model`.
      size: Side, or (height, width), of the image in pixels.
      resnet_stride: Which convolution of a residual unit halves the map: the 3x3, as in
        BiT, the hybrids and this package, or the first 1x1, as in arXiv:1512.03385.

    Raises:
      UserError: An image that does not divide into the model's patches and windows.
      TypeError: A model of no family that is counted here.
    """
    size = pair(size)
    if isinstance(model, ViT):
        grid = patch_grid(size, model.patch_size)
        stem = _patches(grid, model.patch_size, _CHANNELS, model.width)
        stem += math.prod(grid) * model.width * model.patch_outputs  # their head
        return stem + _transformer(
            model,
            math.prod(grid),
            heads=2 if model.distillation else 1,
            registers=model.num_registers
            + (
                model.pool == "cls_mean"
                or (model.pool != "cls" and bool(model.class_token))
            ),
            mlp_layers=3 if model.mlp == "swiglu" else 2,
        )
    if isinstance(model, Hybrid):
        grid = patch_grid(size, model.stride)
        _, channels, resnet = _resnet(model, size, resnet_stride)
        stem = _patches(grid, model.patch_size, channels, model.width)
        return resnet + stem + _transformer(model, math.prod(grid))
    if isinstance(model, BiT):
        _, channels, resnet = _resnet(model, size, resnet_stride)
        return resnet + channels * model.num_classes
    if isinstance(model, AxialViT):
        return _axial(model, patch_grid(size, model.patch_size))
    if isinstance(model, Mixer):
        return _mixer(model, patch_grid(size, model.patch_size))
    if isinstance(model, Swin | SwinV2):
        return _swin(model, size)
    raise TypeError(f"multiply-adds of {type(model).__name__} are not counted")


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


def _patches(grid: Pair, patch_size: Size, channels: int, width: int) -> int:
    return math.prod(grid) * math.prod(pair(patch_size)) * channels * width


def _attention(groups: int, queries: int, keys: int, width: int) -> int:
    """Counts queries times keys, and probabilities times values."""
    return 2 * groups * queries * keys * width


def _transformer(
    model: ViT | Hybrid,
    patches: int,
    *,
    heads: int = 1,
    registers: int = 0,
    mlp_layers: int = 2,
) -> int:
    """Counts all that follows the patches: blocks, pooling and heads."""
    d, f = model.width, model.mlp_dim
    n = patches + registers + (heads if model.pool == "cls" else 0)
    block = n * (4 * d * d + mlp_layers * d * f) + _attention(1, n, n, d)
    if model.positions == "relative":
        block += patches * (2 * patches - 1) * d
    total = model.depth * block
    if model.pool == "map":
        # Query and output are of the one probe, and so is the MLP after them.
        total += (2 * patches + 2) * d * d + _attention(1, 1, patches, d) + 2 * d * f
    readouts = patches if model.pool == "none" else heads
    pooled = 2 * d if model.pool == "cls_mean" else d
    features = model.representation_size or pooled
    if model.representation_size is not None:
        total += readouts * pooled * features
    return total + readouts * features * model.num_classes


def _resnet(
    model: Hybrid | BiT, size: Pair, stride: ResNetStride
) -> tuple[Pair, int, int]:
    """Returns the last map's rows and columns, its channels, and the multiply-adds."""
    grid = _halve(size)
    channels = root = 64 * model.width_factor
    total = math.prod(grid) * 7 * 7 * _CHANNELS * channels
    grid = _halve(grid)  # the pooling
    for i, units in enumerate(model.stages):
        width = root * 2**i
        for unit in range(units):
            before, grid = grid, _halve(grid) if i and unit == 0 else grid
            first = grid if stride == "1x1" else before
            total += math.prod(first) * channels * width
            total += math.prod(grid) * (9 * width * width + width * 4 * width)
            if unit == 0:
                total += math.prod(grid) * channels * 4 * width  # the shortcut
            channels = 4 * width
    return grid, channels, total


def _halve(grid: Pair) -> Pair:
    return ceil_divide(grid[0], 2), ceil_divide(grid[1], 2)


def _axial(model: AxialViT, grid: Pair) -> int:
    (h, w), n, d = grid, math.prod(grid), model.width
    dense = n * (4 * d * d + 2 * d * model.mlp_dim)
    block = 2 * dense + _attention(h, w, w, d) + _attention(w, h, h, d)
    total = _patches(grid, model.patch_size, _CHANNELS, d) + model.depth * block
    features = model.representation_size or d
    if model.representation_size is not None:
        total += d * features
    return total + features * model.num_classes


def _mixer(model: Mixer, grid: Pair) -> int:
    n, d = math.prod(grid), model.width
    block = 2 * d * n * model.token_mlp_dim + 2 * n * d * model.mlp_dim
    stem = _patches(grid, model.patch_size, _CHANNELS, d)
    return stem + model.depth * block + d * model.num_classes


def _swin(model: Swin | SwinV2, size: Pair) -> int:
    patch, kind = pair(model.patch_size), model.window_kind
    pyramid = Pyramid(
        pair(model.resolution),
        patch,
        pair(model.window_size),
        len(model.depths),
        tiled=kind != "sliding",
    )
    if not model.pad:
        pyramid.check(size)
    grid = ceil_divide(size[0], patch[0]), ceil_divide(size[1], patch[1])
    d = model.width
    total = _patches(grid, patch, _CHANNELS, d)
    for i, (depth, heads, window) in enumerate(
        zip(model.depths, model.num_heads, pyramid.windows, strict=True)
    ):
        if i:
            grid, d = _halve(grid), 2 * d
            total += math.prod(grid) * 2 * d * d  # four tokens of d / 2 become one
        block = _window_attention(Windows(grid, window, kind), d)
        block += math.prod(grid) * 2 * model.mlp_ratio * d * d
        if isinstance(model, SwinV2):
            # Once a batch, not once an image: a thousandth of the whole.
            offsets = (2 * window[0] - 1) * (2 * window[1] - 1)
            block += offsets * _CPB_WIDTH * (2 + heads)
        total += depth * block
    return total + d * model.num_classes


def _window_attention(windows: Windows, d: int) -> int:
    (h, w), rows = windows.grid, min(windows.size[0], windows.grid[0])
    if windows.kind == "sliding":
        # A row of queries meets all that lies in the rows that its windows reach.
        return 4 * h * w * d * d + _attention(h, w, rows * w, d)
    tokens, n = math.prod(windows.padded), math.prod(windows.size)
    return 4 * tokens * d * d + _attention(windows.groups, n, n, d)

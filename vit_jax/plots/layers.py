# SPDX-License-Identifier: Apache-2.0
"""The layers of a model that attend, and where their tokens lie in the picture."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from flax import linen as nn
from jaxtyping import Float

from vit_jax.errors import UserError
from vit_jax.models.axial import AxialViT
from vit_jax.models.hybrid import Hybrid
from vit_jax.models.layers.axial import AXES, lines_of
from vit_jax.models.layers.patches import pair, patch_grid
from vit_jax.models.layers.pyramid import Pyramid
from vit_jax.models.layers.windows import Windows
from vit_jax.models.swin import Swin
from vit_jax.models.swin_v2 import SwinV2
from vit_jax.models.vit import ViT
from vit_jax.plots import attention
from vit_jax.plots.windows import places

Pair = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Layer:
    """The attention of one layer of a model.

    Attributes:
      name: Such as `block00` or `stage1/block00`.
      grid: Rows and columns of its map of tokens.
      stride: Pixels from one token to the next, down and across.
      before: Tokens before those of the map.
      windows: Who sees whom; None where all tokens do.
    """

    name: str
    grid: tuple[int, int]
    stride: tuple[int, int]
    before: int = 0
    windows: Windows | None = None

    def distances(self, weights: np.ndarray) -> Float[np.ndarray, " m"]:
        """Returns the mean attention distance of each head, in pixels."""
        if self.windows is None:
            inner = weights[:, None, :, self.before :, self.before :]
            where = attention.centres(self.grid, self.stride)[None]
            return attention.mean_distance(inner, where, where)
        queries, keys = places(self.windows)
        stride = np.asarray(self.stride, np.float64)
        return attention.mean_distance(weights, queries * stride, keys * stride)

    def uniform_distance(self) -> float:
        """Returns the distance of attention that is uniform over the map, in pixels."""
        return attention.uniform_distance(self.grid, self.stride)


def find_layers(model: nn.Module, size: Pair, before: int) -> tuple[Layer, ...]:
    """Returns the layers that have attention, the first one first.

    Args:
      model: The model.
      size: Height and width of the pictures.
      before: Tokens before the patches.

    Raises:
      UserError: A model without attention.
    """
    if isinstance(model, ViT | Hybrid):
        grid, stride = patches(model, size)
        numbers = range(model.depth)
        return tuple(Layer(f"block{i:02d}", grid, stride, before) for i in numbers)
    if isinstance(model, Swin | SwinV2):
        return tuple(_window_layers(model, size))
    if isinstance(model, AxialViT):
        return tuple(_axial_layers(model, size))
    raise UserError(
        f"a {type(model).__name__} has no attention to draw; take a ViT, a hybrid or a "
        "Swin, or the kind filters"
    )


def patches(model: ViT | Hybrid | AxialViT, size: Pair) -> tuple[Pair, Pair]:
    """Returns the grid of the patches, and the pixels from one to the next."""
    stride = model.stride if isinstance(model, Hybrid) else pair(model.patch_size)
    return patch_grid(size, stride), stride


def _axial_layers(model: AxialViT, size: Pair) -> Iterator[Layer]:
    grid, stride = patches(model, size)
    for block in range(model.depth):
        for axis in AXES:
            name = f"block{block:02d}/{axis}"
            yield Layer(name, grid, stride, windows=lines_of(grid, axis))


def _window_layers(model: Swin | SwinV2, size: Pair) -> Iterator[Layer]:
    patch, kind = pair(model.patch_size), model.window_kind
    windows = Pyramid(
        pair(model.resolution),
        patch,
        pair(model.window_size),
        len(model.depths),
        tiled=kind != "sliding",
    ).windows
    rows, columns = math.ceil(size[0] / patch[0]), math.ceil(size[1] / patch[1])
    for stage, (depth, window) in enumerate(zip(model.depths, windows, strict=True)):
        if stage:
            rows, columns = math.ceil(rows / 2), math.ceil(columns / 2)
        stride = patch[0] * 2**stage, patch[1] * 2**stage
        for block in range(depth):
            yield Layer(
                f"stage{stage}/block{block:02d}",
                (rows, columns),
                stride,
                windows=Windows((rows, columns), window, kind, block % 2 == 1),
            )

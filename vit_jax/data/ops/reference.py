# SPDX-License-Identifier: Apache-2.0
"""The deterministic image ops in NumPy, without TensorFlow.

Names and arguments are those of `image` and `crop`, which hold the
documentation. A factory returns a function from an array `(h, w, c)` to another.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from vit_jax.data.ops.arguments import (
    Method,
    pad_target,
    pair,
    range_shift,
    statistics,
)
from vit_jax.data.ops.resize_matrix import resize_matrix
from vit_jax.errors import UserError
from vit_jax.registry import Registry

NUMPY_OPS = Registry("op")


@NUMPY_OPS.register()
def resize(
    size: int | Sequence[int], method: Method = "bilinear", antialias: bool = False
):
    """See `image.resize`."""
    target = pair(size, "resize")
    return lambda image: _resize(image, target, method, antialias)


@NUMPY_OPS.register()
def resize_small(size: int, method: Method = "area", antialias: bool = False):
    """See `image.resize_small`."""
    pair(size, "resize_small")

    def run(image: np.ndarray) -> np.ndarray:
        h, w = image.shape[:2]
        short = min(h, w)
        target = [(2 * side * size + short) // (2 * short) for side in (h, w)]
        return _resize(image, (target[0], target[1]), method, antialias)

    return run


@NUMPY_OPS.register()
def central_crop(size: int | Sequence[int]):
    """See `crop.central_crop`."""
    height, width = pair(size, "central_crop")

    def run(image: np.ndarray) -> np.ndarray:
        h, w = image.shape[:2]
        if h < height or w < width:
            raise UserError(
                f"central_crop of {height} x {width} from an image of {h} x {w}; "
                "resize it first, or crop less"
            )
        top, left = (h - height) // 2, (w - width) // 2
        return image[top : top + height, left : left + width]

    return run


@NUMPY_OPS.register()
def pad(
    pixels: int | None = None,
    size: int | Sequence[int] | None = None,
    value: float = 0,
):
    """See `crop.pad`."""
    target = pad_target(pixels, size)

    def run(image: np.ndarray) -> np.ndarray:
        h, w = image.shape[:2]
        height, width = target or (h + 2 * (pixels or 0), w + 2 * (pixels or 0))
        if h > height or w > width:
            raise UserError(
                f"pad to {height} x {width} of an image of {h} x {w}; crop or resize it"
            )
        top, left = (height - h) // 2, (width - w) // 2
        around = ((top, height - h - top), (left, width - w - left), (0, 0))
        return np.pad(image, around, constant_values=value)

    return run


@NUMPY_OPS.register()
def value_range(
    vmin: float = -1.0,
    vmax: float = 1.0,
    in_min: float = 0.0,
    in_max: float = 255.0,
    clip: bool = False,
):
    """See `image.value_range`."""
    shift, factor = range_shift(vmin, vmax, in_min, in_max)

    def run(image: np.ndarray) -> Float[np.ndarray, "h w c"]:
        scaled = (image.astype(np.float32) - shift) * factor
        return np.clip(scaled, np.float32(vmin), np.float32(vmax)) if clip else scaled

    return run


@NUMPY_OPS.register()
def multiply(factor: float):
    """See `image.multiply`."""

    def run(image: np.ndarray) -> np.ndarray:
        levels = image.astype(np.float32) * np.float32(factor)
        if image.dtype != np.uint8:
            return levels
        return np.clip(np.rint(levels), 0, 255).astype(np.uint8)

    return run


@NUMPY_OPS.register()
def normalize(
    mean: str | Sequence[float] = "imagenet", std: str | Sequence[float] | None = None
):
    """See `image.normalize`."""
    mean255, std255 = statistics(mean, std)
    return lambda image: (image.astype(np.float32) - mean255) * (1 / std255)


def _resize(
    image: np.ndarray, size: tuple[int, int], method: Method, antialias: bool
) -> np.ndarray:
    if image.shape[:2] == size:
        return image
    rows = resize_matrix(image.shape[0], size[0], method, antialias)
    columns = resize_matrix(image.shape[1], size[1], method, antialias)
    result = np.einsum("yh,hwc->ywc", rows, image.astype(np.float32), optimize=True)
    result = np.einsum("xw,ywc->yxc", columns, result, optimize=True)
    if image.dtype == np.uint8:
        return np.clip(np.rint(result), 0, 255).astype(np.uint8)
    return result

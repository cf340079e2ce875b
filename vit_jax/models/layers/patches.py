# SPDX-License-Identifier: Apache-2.0
"""Sizes of images, patches and grids of patches.

The embedding itself is a convolution whose stride is its kernel size, which equals
flattening each patch and one linear layer (Eq. 1 of arXiv:2010.11929).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from vit_jax.errors import UserError

Size = int | tuple[int, int]


def pair(size: Size) -> tuple[int, int]:
    """Returns `(rows, columns)` of a size that may be one number for both."""
    return (size, size) if isinstance(size, int) else size


def patch_grid(size: Size, patch_size: Size) -> tuple[int, int]:
    """Returns how many patches an image has: `(rows, columns)`.

    Args:
      size: Of the image, in pixels.
      patch_size: Of a patch, in pixels.

    Raises:
      UserError: A side that the patch does not divide.
    """
    rows, columns = (
        _divide(axis, side, patch)
        for axis, side, patch in zip(
            ("height", "width"), pair(size), pair(patch_size), strict=True
        )
    )
    return rows, columns


def check_image(image: Num[Array | np.ndarray, "b h w c"], patch_size: Size) -> None:
    """Checks that pixels are floating point and divide into patches.

    Raises:
      UserError: Integers, which look like pixels that nobody has normalised, or a side
        that the patch does not divide.
    """
    if not jnp.issubdtype(image.dtype, jnp.floating):
        raise UserError(
            f"the image has dtype {image.dtype}, but a model takes normalised floats; "
            "end the preprocessing with value_range(-1, 1) or what its preset says"
        )
    _, height, width, _ = image.shape
    patch_grid((height, width), patch_size)


def _divide(axis: str, side: int, patch: int) -> int:
    if side % patch or side == 0:
        below, above = side // patch * patch, (side // patch + 1) * patch
        near = f"{below} or {above}" if below else f"{above}"
        raise UserError(
            f"an image of {axis} {side} does not divide into patches of {axis} "
            f"{patch}; resize it to {near}, or choose another patch_size"
        )
    return side // patch

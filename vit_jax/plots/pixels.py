# SPDX-License-Identifier: Apache-2.0
"""Inputs of a model made visible again."""

import numpy as np
from jaxtyping import Num, UInt8

from vit_jax.data.pixel_range import pixel_range


def visible(
    images: Num[np.ndarray, "*n h w c"], ops: str
) -> UInt8[np.ndarray, "*n h w c"]:
    """Returns the pictures that inputs of a model show.

    Args:
      images: As the ops make them.
      ops: The preprocessing; its `normalize` and `value_range` are undone.
    """
    black, white = pixel_range(ops, images.shape[-1])
    scaled = (images - black) / (white - black)
    return np.clip(np.rint(255 * scaled), 0, 255).astype(np.uint8)

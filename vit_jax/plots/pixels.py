# SPDX-License-Identifier: Apache-2.0
"""Inputs of a model made visible again."""

import numpy as np
from jaxtyping import Num, UInt8

from vit_jax.data.ops.reference import NUMPY_OPS
from vit_jax.registry import parse_pipeline

_RANGES = ("normalize", "value_range")


def visible(
    images: Num[np.ndarray, "*n h w c"], ops: str
) -> UInt8[np.ndarray, "*n h w c"]:
    """Returns the pictures that inputs of a model show.

    Args:
      images: As the ops make them.
      ops: The preprocessing; its `normalize` and `value_range` are undone.
    """
    levels = np.array([0, 255], np.uint8)[:, None, None, None]
    black, white = np.broadcast_to(levels, (2, 1, 1, images.shape[-1]))
    for call in parse_pipeline(ops):
        if call.name in _RANGES:
            # Both are linear in each colour, so what becomes of two levels tells all.
            run = NUMPY_OPS.build(call)
            black, white = run(black), run(white)
    black, white = black.astype(np.float64), white.astype(np.float64)
    scaled = (images - black[0, 0]) / (white - black)[0, 0]
    return np.clip(np.rint(255 * scaled), 0, 255).astype(np.uint8)

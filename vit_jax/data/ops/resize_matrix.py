# SPDX-License-Identifier: Apache-2.0
"""Resizing as `tf.image.resize` does it, in NumPy: a matrix for each axis."""

import functools

import numpy as np
from jaxtyping import Float

from vit_jax.data.ops.arguments import Method


@functools.lru_cache(maxsize=32)
def resize_matrix(
    old: int, new: int, method: Method, antialias: bool
) -> Float[np.ndarray, "new old"]:
    """Returns the weights that resize one axis with half-pixel centres.

    Args:
      old: Number of input samples.
      new: Number of output samples.
      method: As `tf.image.resize` defines it; bicubic is Keys' kernel with a = -0.5.
      antialias: Whether bilinear and bicubic widen their kernel when shrinking.

    Returns:
      One row an output sample; rows sum to 1.
    """
    scale = old / new
    place = np.arange(old)
    if method == "area":
        start = np.arange(new)[:, None] * scale
        overlap = np.minimum(place + 1, start + scale) - np.maximum(place, start)
        weights = np.maximum(overlap, 0)
    elif method == "nearest":
        nearest = np.floor((np.arange(new) + 0.5) * scale).astype(int)
        weights = np.eye(old)[np.minimum(nearest, old - 1)]
    else:
        centre = (np.arange(new)[:, None] + 0.5) * scale - 0.5
        if method == "bilinear" and not antialias:
            centre = np.clip(centre, 0, old - 1)
        width = max(scale, 1.0) if antialias else 1.0
        kernel = _triangle if method == "bilinear" else _keys
        weights = kernel(np.abs(place - centre) / width)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)


def _triangle(x: Float[np.ndarray, "new old"]) -> Float[np.ndarray, "new old"]:
    return np.maximum(1 - x, 0)


def _keys(x: Float[np.ndarray, "new old"]) -> Float[np.ndarray, "new old"]:
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))

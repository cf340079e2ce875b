# SPDX-License-Identifier: Apache-2.0
"""Patches that show another embedding than their own (arXiv:2010.11929, B.1.2)."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def replace_patches(
    tokens: Float[Array, "b h w d"],
    mask: Float[Array, " d"],
    source: Int[Array, "b n"],
) -> Float[Array, "b h w d"]:
    """Returns the embedded patches as a corrupted image has them.

    Args:
      tokens: The embedded patches on their grid.
      mask: The learned embedding.
      source: For each patch in raster order, the patch of the same image whose
        embedding it shows, or -1 for `mask`.
    """
    b, h, w, d = tokens.shape
    flat, index = tokens.reshape(b, h * w, d), source[..., None]
    shown = jnp.take_along_axis(flat, jnp.maximum(index, 0), axis=1)
    masked = jnp.broadcast_to(mask.astype(tokens.dtype)[None, None], shown.shape)
    return jnp.where(index < 0, masked, shown).reshape(b, h, w, d)

# SPDX-License-Identifier: Apache-2.0
"""Rotary positions in two dimensions: queries and keys turned by their place."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax.errors import UserError


def rotary_angles(
    height: int, width: int, e: int, *, prefix_tokens: int = 0
) -> Float[np.ndarray, "n f"]:
    """Returns by how much each pair of channels of each token is turned.

    RoPE-Axial (Section 3.2 of arXiv:2403.13298): frequencies omega_k = 100^(-k / f)
    for k = 0 ... f - 1 with f = e / 4, and the angles of the token in column x and row
    y are x omega, then y omega.

    Args:
      height: Rows of the grid.
      width: Columns of the grid.
      e: Width of a head, a multiple of 4.
      prefix_tokens: Tokens before the patches. They have no place and are not turned.

    Raises:
      UserError: Another width.
    """
    if e % 4:
        raise UserError(
            f"rotary2d positions need heads whose width is a multiple of 4, not {e}; "
            "change width or num_heads"
        )
    omega = 100.0 ** -(np.arange(e // 4) / (e // 4))
    y, x = np.mgrid[:height, :width].reshape(2, -1, 1)
    angles = np.concatenate([x * omega, y * omega], axis=1).astype(np.float32)
    return np.pad(angles, ((prefix_tokens, 0), (0, 0)))


def rotate(
    x: Float[Array, "b n m e"], angles: Float[np.ndarray, "n f"]
) -> Float[Array, "b n m e"]:
    """Turns neighbouring channels (0, 1), (2, 3), ... by angles, in float32."""
    b, n, m, e = x.shape
    cos, sin = (wave(angles)[None, :, None] for wave in (np.cos, np.sin))
    pairs = x.astype(jnp.float32).reshape(b, n, m, e // 2, 2)
    first, second = pairs[..., 0], pairs[..., 1]  # (b, n, m, f)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.stack(turned, axis=-1).reshape(x.shape).astype(x.dtype)

# SPDX-License-Identifier: Apache-2.0
"""How arrays lie in a TPU's memory, where the compiler's own choice costs copies."""

import functools

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float


@jax.jit
def image_by_image(x: Float[Array, "b n d"]) -> Float[Array, "b n d"]:
    """Asks a TPU to keep the tokens of an image together; elsewhere does nothing.

    With a multiple of 128 images on a core, the compiler likes to put the images of one
    token together, and attention, which works on one image, then needs a copy of every
    query, key, value, result and gradient: 11 a block in ViT-S/16.
    """
    together = functools.partial(with_layout_constraint, layouts=Layout((0, 1, 2)))
    return lax.platform_dependent(x, tpu=together, default=lambda x: x)

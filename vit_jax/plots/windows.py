# SPDX-License-Identifier: Apache-2.0
"""Where on the map of tokens the queries and keys of Swin's windows lie."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vit_jax.models.layers.windows import Windows


def places(
    windows: Windows,
) -> tuple[Float[np.ndarray, "g q 2"], Float[np.ndarray, "g n 2"]]:
    """Returns row and column of each query and key of each group; NaN for padding."""
    # Rows and columns go through the cutting that the tokens go through. They are
    # counted from 1, so that the zeros of padding tell themselves apart.
    numbers = np.moveaxis(np.indices(windows.grid), 0, -1)[None] + 1.0
    split = windows.split(jnp.asarray(numbers, jnp.float32))
    heads = split[:, :, None]
    queries, keys, _ = windows.spread(heads, heads, heads)
    return _from_zero(queries), _from_zero(keys)


def _from_zero(places: object) -> np.ndarray:
    numbers = np.asarray(places, np.float64)[:, :, 0]
    return np.where(numbers > 0, numbers - 1, np.nan)

# SPDX-License-Identifier: Apache-2.0
"""Exponential moving average of the parameters (Polyak averaging).

The paper averages with decay 0.9999 for its 512-px ImageNet results (arXiv:2010.11929
section 4.1). The average starts as a copy of the first parameters; at that decay the
copy still weighs 90 % after 1000 updates, hence `ema_decay_at` for short runs.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def init_ema(params: Any) -> Any:
    """Returns the average before the first update: a float32 copy of `params`."""
    return jax.tree.map(lambda p: jnp.array(p, dtype=jnp.float32, copy=True), params)


def update_ema(ema: Any, params: Any, decay: float | Float[Array, ""]) -> Any:
    """Returns `decay * ema + (1 - decay) * params`, leaf by leaf in float32.

    Written as `ema + (1 - decay) * (params - ema)`, so that parameters that do not
    change leave the average as it is, bit for bit.
    """
    return jax.tree.map(
        lambda e, p: e + (1.0 - decay) * (p.astype(jnp.float32) - e), ema, params
    )


def ema_decay_at(
    decay: float, updates: int | Int[Array, ""], warmup: bool = False
) -> float | Float[Array, ""]:
    """Returns the decay to use after `updates` earlier updates of the average.

    Args:
      decay: The decay of a long run, such as 0.9999.
      updates: How many times the average was updated before.
      warmup: Whether to use `min(decay, (1 + updates) / (10 + updates))`, which
        forgets the first parameters within some ten updates (the rule of
        TensorFlow's `ExponentialMovingAverage`).
    """
    if not warmup:
        return decay
    return jnp.minimum(decay, (1.0 + updates) / (10.0 + updates))

# SPDX-License-Identifier: Apache-2.0
"""All that a training run is at one moment."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax


class TrainState(flax.struct.PyTreeNode):
    """The state that a step maps to the next and that a checkpoint holds.

    Attributes:
      step: Number of updates done, int32. (No field has an array type: trees of
        shapes and shardings have this form too.)
      params: The model's parameters.
      opt_state: State of the optimizer for `params`.
      ema: Moving average of `params`, or None when the run keeps none.
    """

    step: Any
    params: Any
    opt_state: Any
    ema: Any

    @classmethod
    def create(
        cls, params: Any, tx: optax.GradientTransformation, averaged: bool
    ) -> "TrainState":
        """Returns the state before the first update.

        Args:
          params: The model's parameters.
          tx: The optimizer.
          averaged: Whether to keep a moving average, which starts at the parameters.
        """
        # A float32 copy of its own: one buffer cannot be given away twice.
        ema = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
        return cls(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=tx.init(params),
            ema=ema if averaged else None,
        )

# SPDX-License-Identifier: Apache-2.0
"""One update of the parameters, as a pure function."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from vit_jax.train.state import TrainState

Batch = dict[str, Any]
Update = Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]


def make_update(
    apply: Callable[..., Float[Array, "b ..."]],
    loss: Callable[[Float[Array, "b ..."], Batch], Float[Array, " b"]],
    tx: optax.GradientTransformation,
    *,
    key: jax.Array,
    average: Callable[[Any, Any, jax.Array], Any] | None = None,
    mix: Callable[[jax.Array, Batch], Batch] | None = None,
) -> Update:
    """Makes the function that `jit` compiles for a run.

    All randomness of step s comes from `fold_in(key, s)`, so a step depends on nothing
    but its state and its batch, and a resumed run repeats it exactly.

    Args:
      apply: `(params, image, rngs) -> logits` in training mode.
      loss: `(logits, batch) -> ` loss of each example, in float32.
      tx: The optimizer, its schedule included.
      key: Random key of the run.
      average: `(ema, params, step) -> ema` after `step` updates, or None.
      mix: Changes a batch on the device with a key, such as mixup, or None.

    Returns:
      `(state, batch) -> (state, measurements)`; the measurements are the scalars
      `loss` (mean over the batch, before the update) and `grad_norm` (before
      clipping).
    """

    def mean_loss(params: Any, batch: Batch, rngs: Mapping[str, jax.Array]) -> Any:
        logits = apply(params, batch["image"], rngs)
        return jnp.mean(loss(logits, batch))

    def update(
        state: TrainState, batch: Batch
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        step_key = jax.random.fold_in(key, state.step)
        mix_key, dropout_key, path_key = jax.random.split(step_key, 3)
        if mix is not None:
            batch = mix(mix_key, batch)
        rngs = {"dropout": dropout_key, "drop_path": path_key}
        value, grads = jax.value_and_grad(mean_loss)(state.params, batch, rngs)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        step = state.step + 1
        ema = average(state.ema, params, step) if average is not None else None
        measurements = {"loss": value, "grad_norm": optax.tree.norm(grads)}
        return TrainState(step, params, opt_state, ema), measurements

    return update

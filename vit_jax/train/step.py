# SPDX-License-Identifier: Apache-2.0
"""One update of the parameters, as a pure function."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from vit_jax.sharding import Gathering
from vit_jax.train.state import TrainState

Batch = dict[str, Any]
Update = Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]


def make_update(  # noqa: PLR0913 - the parts of a step
    apply: Callable[..., Float[Array, "b ..."]],
    loss: Callable[[Float[Array, "b ..."], Batch], Float[Array, " b"]],
    tx: optax.GradientTransformation,
    *,
    key: jax.Array,
    average: Callable[[Any, Any, jax.Array], Any] | None = None,
    mix: Callable[[jax.Array, Batch], Batch] | None = None,
    accumulation_steps: int = 1,
    gathering: Gathering | None = None,
) -> Update:
    """Makes the function that `jit` compiles for a run.

    All randomness of step s comes from `fold_in(key, s)`, so a step depends on nothing
    but its state and its batch, and a resumed run repeats it exactly.

    Args:
      apply: `(params, batch, rngs) -> logits` in training mode, or whatever the loss
        compares with the batch.
      loss: `(logits, batch) -> ` loss of each example, in float32.
      tx: The optimizer, its schedule included.
      key: Random key of the run.
      average: `(ema, params, step) -> ema` after `step` updates, or None.
      mix: Changes a batch on the device with a key, such as mixup or the corruption
        of patches, or None.
      accumulation_steps: In how many parts, one after another, a batch goes through
        the model. The gradient is that of the whole batch, the memory that of a part;
        a batch that the parts do not divide is filled up with examples of no weight.
      gathering: For parameters that lie in more parts than a step computes with.

    Returns:
      `(state, batch) -> (state, measurements)`; the measurements are the scalars
      `loss` (mean over the batch, before the update) and `grad_norm` (before
      clipping).
    """

    def sum_loss(
        params: Any, batch: Batch, weight: jax.Array, rngs: Mapping[str, jax.Array]
    ) -> jax.Array:
        logits = apply(params, batch, rngs)
        return jnp.sum(loss(logits, batch) * weight)

    def mean_loss(params: Any, batch: Batch, rngs: Mapping[str, jax.Array]) -> Any:
        logits = apply(params, batch, rngs)
        return jnp.mean(loss(logits, batch))

    def differentiate(function: Any, params: Any, whole: Any, *args: Any) -> Any:
        value, grads = jax.value_and_grad(function)(whole, *args)
        return value, gathering.scatter(grads, params) if gathering else grads

    def gradient(params: Any, batch: Batch, rngs: dict[str, jax.Array]) -> Any:
        whole = gathering.gather(params) if gathering else params
        if accumulation_steps == 1:
            return differentiate(mean_loss, params, whole, batch, rngs)
        size = batch["image"].shape[0]
        parts = _in_parts(
            batch | {"weight": jnp.ones((size,), jnp.float32)}, accumulation_steps
        )

        def add(total: Any, part: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            number, batch = part
            own = {k: jax.random.fold_in(key, number) for k, key in rngs.items()}
            weight = batch.pop("weight")
            result = differentiate(sum_loss, params, whole, batch, weight, own)
            return jax.tree.map(jnp.add, total, result), None

        start = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), params))
        total, _ = jax.lax.scan(add, start, (jnp.arange(accumulation_steps), parts))
        return jax.tree.map(lambda leaf: leaf / size, total)

    def update(
        state: TrainState, batch: Batch
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        step_key = jax.random.fold_in(key, state.step)
        mix_key, dropout_key, path_key = jax.random.split(step_key, 3)
        if mix is not None:
            batch = mix(mix_key, batch)
        rngs = {"dropout": dropout_key, "drop_path": path_key}
        value, grads = gradient(state.params, batch, rngs)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        step = state.step + 1
        ema = average(state.ema, params, step) if average is not None else None
        measurements = {"loss": value, "grad_norm": optax.tree.norm(grads)}
        return TrainState(step, params, opt_state, ema), measurements

    return update


def _in_parts(batch: Batch, count: int) -> Batch:
    """Cuts each array (b, ...) into (count, part, ...), filled up with zeros.

    Example i goes to part i % count, so that what lies on one device stays there.
    """

    def cut(array: jax.Array) -> jax.Array:
        filling = -len(array) % count
        padded = jnp.pad(array, [(0, filling)] + [(0, 0)] * (array.ndim - 1))
        return jnp.swapaxes(padded.reshape(-1, count, *array.shape[1:]), 0, 1)

    return jax.tree.map(cut, batch)

# SPDX-License-Identifier: Apache-2.0
"""The step on a linear model, whose updates can be worked out by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import sharding
from vit_jax.optim import averaging
from vit_jax.train.state import TrainState
from vit_jax.train.step import make_update


def apply(params: Any, batch: dict, rngs: dict) -> jax.Array:
    image = batch["image"]
    keep = jax.random.bernoulli(rngs["dropout"], 0.5, image.shape)
    return jnp.where(keep, image, 0.0) @ params["kernel"]


def plain(params: Any, batch: dict, rngs: dict) -> jax.Array:
    del rngs
    return batch["image"] @ params["kernel"]


def squares(logits: jax.Array, batch: dict) -> jax.Array:
    return jnp.sum(jnp.square(logits - batch["label"][:, None]), axis=-1) / 2


def start(tx: optax.GradientTransformation, averaged: bool = False) -> TrainState:
    return TrainState.create({"kernel": jnp.ones((2, 1))}, tx=tx, averaged=averaged)


BATCH = {
    "image": np.float32([[1, 0], [0, 2], [1, 1], [3, 0]] * 2),
    "label": np.float32([0, 1, 2, 3] * 2),
}


def make(tx: Any, function: Callable = plain, **kwargs: Any) -> Callable:
    return make_update(function, squares, tx, key=jax.random.key(1), **kwargs)


def test_one_sgd_update_is_the_mean_gradient_times_the_rate():
    state, measured = jax.jit(make(optax.sgd(0.1)))(start(optax.sgd(0.1)), BATCH)
    residual = BATCH["image"].sum(-1) - BATCH["label"]
    gradient = (residual[:, None] * BATCH["image"]).mean(0)
    np.testing.assert_allclose(
        state.params["kernel"][:, 0], 1 - 0.1 * gradient, rtol=1e-6
    )
    np.testing.assert_allclose(measured["loss"], (residual**2 / 2).mean(), rtol=1e-6)
    np.testing.assert_allclose(
        measured["grad_norm"], np.linalg.norm(gradient), rtol=1e-6
    )
    assert int(state.step) == 1


@pytest.mark.parametrize(("size", "steps"), [(8, 2), (8, 8), (10, 3), (7, 4)])
def test_accumulated_gradients_are_those_of_the_large_batch(size: int, steps: int):
    # SGD and clipping, which unlike Adam do not hide a factor in the gradient.
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.normal(size=(size, 2)).astype(np.float32),
        "label": rng.normal(size=size).astype(np.float32),
    }
    whole, expected = jax.jit(make(tx))(start(tx), batch)
    parts, measured = jax.jit(make(tx, accumulation_steps=steps))(start(tx), batch)
    np.testing.assert_allclose(
        parts.params["kernel"], whole.params["kernel"], rtol=0, atol=1e-6
    )
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(measured[name], expected[name], rtol=1e-6)


def test_the_loss_of_unequal_parts_is_the_mean_over_examples():
    def apply(params: Any, batch: dict, rngs: dict) -> jax.Array:
        del rngs
        image = batch["image"]
        return image @ params["kernel"] * 0 + image[:, :1]

    def itself(logits: jax.Array, batch: dict) -> jax.Array:
        del batch
        return logits[:, 0]

    tx = optax.sgd(0.1)
    update = make_update(apply, itself, tx, key=jax.random.key(0), accumulation_steps=3)
    batch = {"image": np.stack([np.arange(10.0)] * 2, 1).astype(np.float32)}
    _, measured = jax.jit(update)(start(tx), batch)
    # 0...9 as 4, 3 and 3 examples; a mean of means would be another number.
    assert float(measured["loss"]) == 4.5


def test_each_part_of_a_batch_draws_dropout_of_its_own():
    tx = optax.sgd(0.1)
    same = {"image": np.ones((8, 2), np.float32), "label": np.zeros(8, np.float32)}
    update = make(tx, apply, accumulation_steps=4)
    state, _ = jax.jit(update)(start(tx), same)
    first, second = np.asarray(state.params["kernel"])[:, 0]
    # With one mask for all parts, the gradients would be multiples of a quarter.
    assert first != second


def test_randomness_is_a_function_of_the_step_alone():
    tx = optax.sgd(0.1)
    update = jax.jit(make(tx, apply))
    state = start(tx)
    again, _ = update(state, BATCH)
    first, _ = update(state, BATCH)
    other, _ = update(state.replace(step=jnp.int32(7)), BATCH)
    np.testing.assert_array_equal(first.params["kernel"], again.params["kernel"])
    assert not np.array_equal(first.params["kernel"], other.params["kernel"])


def test_the_average_follows_with_its_decay():
    tx = optax.sgd(0.1)

    def average(ema: Any, params: Any, step: jax.Array) -> Any:
        del step
        return averaging.update_ema(ema, params, 0.9)

    state = start(tx, averaged=True)
    update = jax.jit(make(tx, average=average))
    expected = np.ones((2, 1))
    for _ in range(3):
        state, _ = update(state, BATCH)
        expected = 0.9 * expected + 0.1 * np.asarray(state.params["kernel"])
    np.testing.assert_allclose(state.ema["kernel"], expected, rtol=1e-6)


def test_mixing_sees_the_batch_before_the_model():
    tx = optax.sgd(0.1)

    def mix(key: jax.Array, batch: dict) -> dict:
        del key
        return {**batch, "image": batch["image"] * 0, "label": batch["label"] * 0}

    _, measured = make(tx, mix=mix)(start(tx), BATCH)
    assert float(measured["loss"]) == 0.0


def test_one_and_eight_devices_do_the_same_update():
    tx = optax.adamw(0.1)
    update = make(tx, apply)
    alone, one = jax.jit(update)(start(tx), BATCH)
    mesh = sharding.make_mesh()
    shared, eight = jax.jit(update, out_shardings=sharding.replicated(mesh))(
        jax.device_put(start(tx), sharding.replicated(mesh)),
        jax.device_put(BATCH, sharding.batch_sharding(mesh)),
    )
    np.testing.assert_allclose(
        alone.params["kernel"], shared.params["kernel"], rtol=1e-6
    )
    np.testing.assert_allclose(one["loss"], eight["loss"], rtol=1e-6)


def test_ten_updates_compile_once():
    tx = optax.adamw(0.1)
    traces = []
    update = make(tx)

    @jax.jit
    def counted(state: TrainState, batch: dict) -> tuple:
        traces.append(1)
        return update(state, batch)

    state = start(tx)
    for _ in range(10):
        state, _ = counted(state, BATCH)
    assert len(traces) == 1

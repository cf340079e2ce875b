# SPDX-License-Identifier: Apache-2.0
"""The moving average against literal values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.optim.averaging import ema_decay_at, init_ema, update_ema


def test_constant_parameters_leave_the_average_as_it_is(rng):
    params = {"kernel": jnp.array(rng.normal(size=7), jnp.float32)}
    ema = init_ema(params)
    for _ in range(5):
        ema = update_ema(ema, params, 0.9999)
        np.testing.assert_array_equal(ema["kernel"], params["kernel"])


@pytest.mark.parametrize(
    ("decay", "updates", "weight"),
    [
        (0.9999, 1, 0.9999),
        (0.9999, 10, 0.999000),
        (0.9999, 100, 0.990049),
        (0.9999, 1000, 0.904833),
        (0.9999, 10_000, 0.367861),
        (0.999, 1000, 0.367695),
        (0.999, 10_000, 0.000045),
    ],
)
def test_the_start_weighs_the_literal_share(decay, updates, weight):
    start = {"x": jnp.ones(())}

    def body(_, ema):
        return update_ema(ema, {"x": jnp.zeros(())}, decay)

    ema = jax.jit(lambda e: jax.lax.fori_loop(0, updates, body, e))(init_ema(start))
    # float32 keeps 1 - .9999 to 3e-5 relative, and 10 000 updates add up rounding.
    np.testing.assert_allclose(ema["x"], weight, atol=2e-4)


def test_average_of_bfloat16_parameters_is_float32():
    params = {"x": jnp.ones(3, jnp.bfloat16)}
    ema = update_ema(init_ema(params), params, 0.99)
    assert ema["x"].dtype == jnp.float32


def test_the_average_starts_as_a_copy_and_shares_no_buffer():
    params = {"x": jnp.ones(3)}
    ema = init_ema(params)
    params["x"].delete()
    np.testing.assert_array_equal(ema["x"], np.ones(3))


@pytest.mark.parametrize(
    ("updates", "decay"),
    [(0, 0.1), (1, 0.181818), (10, 0.55), (100, 0.918182), (1000, 0.991089)],
)
def test_warmed_up_decay_gives_the_literal_values(updates, decay):
    np.testing.assert_allclose(
        ema_decay_at(0.9999, updates, warmup=True), decay, atol=1e-6
    )
    np.testing.assert_allclose(
        ema_decay_at(0.9999, jnp.int32(updates), warmup=True), decay, atol=1e-6
    )


def test_warmed_up_decay_ends_at_the_decay():
    before = ema_decay_at(0.9999, 80_000, warmup=True)
    after = ema_decay_at(0.9999, 100_000, warmup=True)
    assert float(before) < float(after) == np.float32(0.9999)


def test_decay_without_warmup_is_constant():
    assert ema_decay_at(0.9999, 0) == 0.9999

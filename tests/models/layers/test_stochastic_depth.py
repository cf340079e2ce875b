# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.stochastic_depth import StochasticDepth, linear_rates


def test_examples_are_dropped_whole_and_the_mean_is_kept():
    x = jnp.ones((20_000, 2, 3))
    key = jax.random.key(0)
    y = StochasticDepth(0.3).apply({}, x, train=True, rngs={"drop_path": key})
    per_example = np.asarray(y).reshape(20_000, -1)
    assert (per_example == per_example[:, :1]).all()
    np.testing.assert_allclose(np.unique(per_example), [0, 1 / 0.7], rtol=1e-6)
    # Five standard errors of the mean of 20 000 draws: 5 sqrt(.3 / .7 / 20000).
    assert abs(per_example[:, 0].mean() - 1) < 0.023


def test_other_streams_do_not_change_the_draw():
    def run(dropout):
        rngs = {"drop_path": jax.random.key(0), "dropout": jax.random.key(dropout)}
        return StochasticDepth(0.5).apply({}, jnp.ones((64, 1)), train=True, rngs=rngs)

    np.testing.assert_array_equal(run(0), run(1))


def test_rate_may_be_an_array():
    x = jnp.ones((64, 2), jnp.bfloat16)
    rngs = {"drop_path": jax.random.key(0)}
    plain = StochasticDepth(0.5).apply({}, x, train=True, rngs=rngs)
    y = StochasticDepth(jnp.asarray(0.5)).apply({}, x, train=True, rngs=rngs)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, plain)


@pytest.mark.parametrize(("rate", "train"), [(0.5, False), (0.0, True), (None, True)])
def test_nothing_is_dropped_in_evaluation_or_at_rate_zero(rate, train):
    x = jnp.ones((64, 1))
    np.testing.assert_array_equal(StochasticDepth(rate).apply({}, x, train=train), x)


def test_rates_grow_linearly_from_zero_to_the_last():
    np.testing.assert_allclose(linear_rates(0.3, 4), [0, 0.1, 0.2, 0.3])
    assert linear_rates(0.3, 1) == [0.0]

# SPDX-License-Identifier: Apache-2.0
"""Learning rates against literal values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.optim.schedules import NAMES, build_schedule

STEPS = [0, 1, 5, 9, 10, 11, 32, 55, 78, 99, 100]
COSINE = [0, 0.1, 0.5, 0.9, 1, 0.999695, 0.859670, 0.5, 0.140330, 0.000305, 0]


def test_cosine_gives_the_literal_values():
    schedule = build_schedule("cosine", lr=1.0, total_steps=100, warmup_steps=10)
    rates = [float(schedule(step)) for step in STEPS]
    np.testing.assert_allclose(rates, COSINE, atol=1e-6)


def test_linear_gives_the_literal_values():
    schedule = build_schedule(
        "linear", lr=1.0, total_steps=100, warmup_steps=10, linear_end=1e-5
    )
    rates = [float(schedule(step)) for step in (5, 10, 55, 99, 100)]
    np.testing.assert_allclose(rates, [0.5, 1, 0.500005, 0.011121, 1e-5], atol=1e-6)


def test_linear_ends_at_zero_unless_told_otherwise():
    assert float(build_schedule("linear", lr=1.0, total_steps=10)(10)) == 0.0


def test_rsqrt_falls_with_its_timescale_after_the_warmup():
    schedule = build_schedule("rsqrt", lr=1.0, total_steps=50_000, warmup_steps=100)
    rates = [float(schedule(step)) for step in (50, 100, 10_100, 30_100)]
    np.testing.assert_allclose(rates, [0.5, 1, 0.707107, 0.5], atol=1e-6)


def test_rsqrt_takes_another_timescale():
    schedule = build_schedule("rsqrt", lr=2.0, total_steps=1000, timescale=100)
    np.testing.assert_allclose(float(schedule(300)), 1.0, atol=1e-6)


def test_constant_rises_and_stays():
    schedule = build_schedule("constant", lr=0.3, total_steps=10, warmup_steps=2)
    rates = [float(schedule(step)) for step in (0, 1, 2, 9, 10)]
    np.testing.assert_allclose(rates, [0, 0.15, 0.3, 0.3, 0.3], atol=1e-6)


def test_cooldown_falls_linearly_to_zero_at_the_end():
    schedule = build_schedule("constant", lr=1.0, total_steps=100, cooldown_steps=20)
    rates = [float(schedule(step)) for step in (79, 80, 85, 99, 100, 101)]
    np.testing.assert_allclose(rates, [1, 1, 0.75, 0.05, 0, 0], atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("total_steps", "warmup_steps"), [(100, 0), (100, 100), (100, 150), (0, 0), (0, 5)]
)
def test_edges_are_finite_and_never_above_the_peak(name, total_steps, warmup_steps):
    schedule = build_schedule(
        name, lr=1.0, total_steps=total_steps, warmup_steps=warmup_steps
    )
    rates = np.array([float(schedule(step)) for step in range(102)])
    assert np.all(np.isfinite(rates))
    assert np.all((rates >= 0) & (rates <= 1))


def test_first_update_without_warmup_has_the_peak():
    assert float(build_schedule("cosine", lr=0.5, total_steps=10)(0)) == 0.5


def test_warmup_longer_than_the_run_keeps_rising():
    schedule = build_schedule("cosine", lr=1.0, total_steps=100, warmup_steps=200)
    np.testing.assert_allclose(float(schedule(99)), 0.495, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_host_and_device_agree_and_neither_compiles_again(name):
    schedule = build_schedule(
        name, lr=1e-3, total_steps=100, warmup_steps=10, cooldown_steps=5
    )
    traces = []

    @jax.jit
    def on_device(step):
        traces.append(step)
        return schedule(step)

    for step in STEPS:
        host = schedule(step)
        assert isinstance(host, np.generic)
        np.testing.assert_allclose(on_device(jnp.int32(step)), host, atol=1e-9)
    assert len(traces) == 1


def test_unknown_schedule_names_the_nearest():
    with pytest.raises(UserError, match="unknown schedule 'cosin'; did you mean 'cosi"):
        build_schedule("cosin", lr=1.0, total_steps=1)


@pytest.mark.parametrize(
    ("option", "owner"), [("linear_end", "linear"), ("timescale", "rsqrt")]
)
def test_option_of_another_schedule_is_refused(option, owner):
    with pytest.raises(UserError, match=f"{option} belongs to schedule '{owner}'"):
        build_schedule("cosine", lr=1.0, total_steps=1, **{option: 1.0})


@pytest.mark.parametrize(
    "option", ["lr", "total_steps", "warmup_steps", "cooldown_steps", "linear_end"]
)
def test_negative_numbers_are_refused(option):
    arguments = {"lr": 1.0, "total_steps": 1} | {option: -1}
    with pytest.raises(UserError, match=f"{option} is -1; use a number that is 0"):
        build_schedule("linear", **arguments)


def test_timescale_of_zero_is_refused():
    with pytest.raises(UserError, match="timescale is 0; use a number of steps above"):
        build_schedule("rsqrt", lr=1.0, total_steps=1, timescale=0)

# SPDX-License-Identifier: Apache-2.0
"""The contract of every optimizer, and the arithmetic of ours."""

import chex
import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.optim import build_optimizer
from vit_jax.optim.transforms import TRANSFORMS, known_names

OTHERS = ["lion", "lamb", "adafactor", "radam", "rmsprop", "scale_by_yogi"]


def small_params(value: float = 1.0) -> dict:
    return {
        "cls": jnp.full((1, 1, 2), value),
        "head": {"kernel": jnp.full((2, 3), value), "bias": jnp.full((3,), value)},
        "norm": {"scale": jnp.full((2,), value)},
    }


def one_update(optimizer, params, grads):
    updates, _ = optimizer.tx.update(grads, optimizer.tx.init(params), params)
    return optax.apply_updates(params, updates)


def constant(params, **kwargs):
    arguments = {"lr": 0.1, "schedule": "constant", "total_steps": 10} | kwargs
    return build_optimizer(params, **arguments)


@pytest.mark.parametrize("name", [*TRANSFORMS, *OTHERS])
def test_every_optimizer_finds_the_minimum_without_compiling_twice(name):
    target = jnp.array([[1.0, -2.0], [0.5, 3.0]])
    params = {"kernel": jnp.zeros((2, 2))}
    lr = {"radam": 0.3, "scale_by_yogi": 0.3, "lamb": 0.3, "adafactor": 0.5}.get(
        name, 0.1
    )
    optimizer = build_optimizer(
        params, name=name, lr=lr, total_steps=300, warmup_steps=5
    )

    traces = []

    @jax.jit
    def step(params, state):
        traces.append(name)
        grads = jax.grad(lambda p: jnp.mean((p["kernel"] - target) ** 2))(params)
        updates, state = optimizer.tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    state = optimizer.tx.init(params)
    for _ in range(300):
        params, state = step(params, state)
    np.testing.assert_allclose(params["kernel"], target, atol=0.1)
    assert len(traces) == 1


@pytest.mark.parametrize("name", [*TRANSFORMS, *OTHERS])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_optimizer_keeps_the_dtype(name, dtype):
    params = jax.tree.map(lambda p: p.astype(dtype), small_params())
    optimizer = constant(params, name=name, weight_decay=0.1, clip_norm=1.0)
    state = jax.eval_shape(optimizer.tx.init, params)
    updates, new_state = jax.eval_shape(optimizer.tx.update, params, state, params)
    chex.assert_trees_all_equal_dtypes(updates, params)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, new_state)


@pytest.mark.parametrize("name", ["adamw", "lamb", "lion"])
def test_plain_and_frozen_dictionaries_give_equal_updates(name):
    params, grads = small_params(2.0), small_params(0.5)
    rules = {
        "name": name,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
        "lr_rules": [("head/.*", 0.5), (".*", 1.0)],
        "freeze_rules": [("cls", True), (".*", False)],
    }
    frozen_dict = flax.core.freeze(params)
    plain = one_update(constant(params, **rules), params, grads)
    frozen = one_update(
        constant(frozen_dict, **rules), frozen_dict, flax.core.freeze(grads)
    )
    chex.assert_trees_all_equal(plain, flax.core.unfreeze(frozen))


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd", "lion", "scale_by_rms"])
def test_zero_gradients_shrink_the_kernels_alone(name):
    params = small_params(2.0)
    grads = jax.tree.map(jnp.zeros_like, params)
    optimizer = constant(params, name=name, lr=1.0, weight_decay=0.1)
    assert optimizer.decayed == ("head/kernel",)
    flat = trees.flatten(one_update(optimizer, params, grads))
    np.testing.assert_allclose(flat.pop("head/kernel"), np.full((2, 3), 1.8), rtol=1e-6)
    for leaf in flat.values():
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, 2.0))


def test_decay_is_multiplied_by_the_learning_rate_of_the_step():
    # The paper's convention: update 3 of 10 warm-up steps has rate lr * 2 / 10.
    params = {"kernel": jnp.ones(1)}
    optimizer = constant(params, lr=0.5, weight_decay=0.1, warmup_steps=10)
    grads, state = {"kernel": jnp.zeros(1)}, optimizer.tx.init(params)
    shrinks = []
    for _ in range(3):
        updates, state = optimizer.tx.update(grads, state, params)
        shrinks.append(float(updates["kernel"][0]))
    np.testing.assert_allclose(shrinks, [0, -0.5 * 0.1 * 0.1, -0.5 * 0.2 * 0.1])


def test_adamw_equals_two_steps_in_float64():
    p0 = np.array([[1.0, -2.0, 0.5]])
    gradients = [np.array([[0.3, -0.1, 2.0]]), np.array([[-0.2, 0.4, 1.0]])]
    lr, decay, b1, b2, eps = 0.01, 0.3, 0.8, 0.95, 1e-6
    expected, m, v = p0.copy(), np.zeros_like(p0), np.zeros_like(p0)
    for t, g in enumerate(gradients, start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        expected -= lr * (step + decay * expected)

    params = {"kernel": jnp.array(p0, jnp.float32)}
    optimizer = constant(params, lr=lr, weight_decay=decay, b1=b1, b2=b2, eps=eps)
    state = optimizer.tx.init(params)
    for g in gradients:
        grads = {"kernel": jnp.array(g, jnp.float32)}
        updates, state = optimizer.tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params["kernel"], expected, rtol=1e-6)


def test_lamb_decays_inside_its_trust_ratio():
    # Zero gradients: the direction is decay * p, and the trust ratio |p| / |decay * p|
    # makes it p, whatever the decay; decoupled decay would leave p * (1 - lr * decay).
    params = {"kernel": jnp.full((2, 2), 2.0)}
    optimizer = constant(params, name="lamb", lr=0.5, weight_decay=0.1)
    after = one_update(optimizer, params, jax.tree.map(jnp.zeros_like, params))
    np.testing.assert_allclose(after["kernel"], np.full((2, 2), 1.0), rtol=1e-5)


def test_sgd_moves_by_learning_rate_times_gradient():
    params = {"kernel": jnp.zeros(2)}
    after = one_update(
        constant(params, name="sgd"), params, {"kernel": jnp.array([1.0, -3.0])}
    )
    np.testing.assert_allclose(after["kernel"], [-0.1, 0.3])


def test_momentum_adds_the_decayed_direction():
    params, grads = {"kernel": jnp.zeros(1)}, {"kernel": jnp.ones(1)}
    optimizer = constant(params, name="sgd", lr=1.0, momentum=0.9)
    state = optimizer.tx.init(params)
    moves = []
    for _ in range(3):
        updates, state = optimizer.tx.update(grads, state, params)
        moves.append(float(updates["kernel"][0]))
    np.testing.assert_allclose(moves, [-1, -1.9, -2.71], rtol=1e-6)


def test_update_numbers_follow_the_schedule():
    params, grads = {"kernel": jnp.zeros(1)}, {"kernel": jnp.ones(1)}
    optimizer = build_optimizer(
        params, name="sgd", lr=1.0, total_steps=100, warmup_steps=10
    )
    state, rates = optimizer.tx.init(params), {}
    for s in range(12):
        updates, state = optimizer.tx.update(grads, state, params)
        rates[s] = -float(updates["kernel"][0])
    got = [rates[s] for s in (0, 1, 5, 9, 10, 11)]
    np.testing.assert_allclose(got, [0, 0.1, 0.5, 0.9, 1, 0.999695], atol=1e-6)
    np.testing.assert_allclose(float(optimizer.schedule(11)), rates[11], atol=1e-7)


def test_clipping_scales_the_global_norm_before_the_optimizer():
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
    clipped = one_update(
        constant(params, name="sgd", lr=1.0, clip_norm=1.0), params, grads
    )
    np.testing.assert_allclose([clipped["a"][0], clipped["b"][0]], [-0.6, -0.8])
    loose = one_update(
        constant(params, name="sgd", lr=1.0, clip_norm=5.1), params, grads
    )
    np.testing.assert_allclose([loose["a"][0], loose["b"][0]], [-3.0, -4.0])


def test_clipping_does_not_count_frozen_parameters():
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    grads = {"a": jnp.array([3.0]), "b": jnp.array([400.0])}
    optimizer = constant(
        params,
        name="sgd",
        lr=1.0,
        clip_norm=1.5,
        freeze_rules=[("b", True), (".*", False)],
    )
    after = one_update(optimizer, params, grads)
    np.testing.assert_allclose([after["a"][0], after["b"][0]], [-1.5, 0.0])


def test_frozen_parameters_stay_and_hold_no_moments():
    params, grads = small_params(), small_params(0.5)
    optimizer = constant(
        params, weight_decay=0.1, freeze_rules=[("head/.*", False), (".*", True)]
    )
    assert optimizer.frozen == ("cls", "norm/scale")
    assert optimizer.decayed == ("head/kernel",)
    after = one_update(optimizer, params, grads)
    np.testing.assert_array_equal(after["cls"], params["cls"])
    np.testing.assert_array_equal(after["norm"]["scale"], params["norm"]["scale"])
    assert not np.array_equal(after["head"]["bias"], params["head"]["bias"])
    names = trees.flatten(optimizer.tx.init(params))
    assert not [name for name in names if "cls" in name or "norm" in name]


def test_learning_rate_factors_apply_by_name():
    params = {"body": {"kernel": jnp.ones(1)}, "head": {"kernel": jnp.ones(1)}}
    optimizer = constant(
        params,
        name="sgd",
        weight_decay=1.0,
        lr_rules=[("head/.*", 10.0), (".*", 0.5)],
    )
    after = one_update(optimizer, params, jax.tree.map(jnp.zeros_like, params))
    np.testing.assert_allclose(after["body"]["kernel"], [0.95])
    np.testing.assert_allclose(after["head"]["kernel"], [0.0], atol=1e-7)


def test_first_moment_takes_another_dtype_by_name():
    params = {"kernel": jnp.ones(2)}
    state = constant(params, mu_dtype="bfloat16").tx.init(params)
    dtypes = {name: leaf.dtype for name, leaf in trees.flatten(state).items()}
    assert dtypes["0/mu/kernel"] == jnp.bfloat16
    assert dtypes["0/nu/kernel"] == jnp.float32


def test_optimizer_is_built_from_shapes_alone():
    shapes = jax.eval_shape(small_params)
    optimizer = constant(shapes, weight_decay=0.1)
    assert optimizer.decayed == ("head/kernel",)


def test_schedule_takes_options():
    params = {"kernel": jnp.zeros(1)}
    schedule = {"name": "rsqrt", "timescale": 100}
    optimizer = build_optimizer(params, lr=1.0, schedule=schedule, total_steps=1000)
    np.testing.assert_allclose(float(optimizer.schedule(300)), 0.5, atol=1e-6)
    assert schedule == {"name": "rsqrt", "timescale": 100}


def test_every_known_name_moves_downhill():
    params = {"kernel": jnp.ones((2, 2))}
    for name in known_names():
        optimizer = constant(params, name=name, weight_decay=0.1)
        with jax.numpy_rank_promotion("allow"):  # some of optax's rely on it
            after = one_update(optimizer, params, params)
        assert np.all(np.isfinite(after["kernel"])), name
        assert np.all(after["kernel"] < 1.0), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "adamW"}, "unknown optimizer 'adamW'; did you mean 'adamw'"),
        ({"name": "lbfgs"}, "unknown optimizer 'lbfgs'"),
        (
            {"beta1": 0.5},
            "unknown option of optimizer adamw 'beta1'; did you mean 'b1'",
        ),
        ({"weight_decays": 0.5}, "'weight_decays'; did you mean 'weight_decay'"),
        ({"name": "lion", "mask": None}, "unknown option of optimizer lion 'mask'"),
        ({"name": "adamw", "mu_dtype": "float31"}, "'adamw' refuses its options"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; use a number of 0 or more"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0; use a number above 0, or None"),
        ({"schedule": "cos"}, "unknown schedule 'cos'"),
        ({"schedule": {"timescale": 9}}, "has no name; add name="),
        (
            {"schedule": {"name": "rsqrt", "timescales": 9}},
            "unknown schedule option 'timescales'; did you mean 'timescale'",
        ),
        (
            {"decay_rules": [(".*kernel", True)]},
            "3 parameters match no rule for weight decay: cls, head/bias, norm/scale",
        ),
        ({"lr_rules": [("cls", 1.0)]}, "match no rule for learning rate factor"),
        ({"freeze_rules": [("cls", True)]}, "match no rule for freezing"),
        ({"freeze_rules": [(".*", True)]}, "freeze every parameter"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        constant(small_params(), **arguments)

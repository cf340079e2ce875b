# SPDX-License-Identifier: Apache-2.0
"""Forms of attention against each other and against float64."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.models.layers import attend as attend_lib
from vit_jax.models.layers.attend import attend, fused, plain
from vit_jax.models.layers.flash import flash
from vit_jax.models.layers.short import short

SHAPE, HEADS = (2, 7, 12), 3  # b, n, d


def draw(count, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(0, 1, SHAPE), dtype) for _ in range(count)]


def differentiate(function, query, key, value, factor):
    def loss(*args):
        y = function(*args, heads=HEADS)
        return jnp.sum(y.astype(jnp.float32) * factor)

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(query, key, value)


def test_plain_equals_float64():
    query, key, value = draw(3)
    q, k, v = (
        np.asarray(x, np.float64).reshape(2, 7, 3, 4) for x in (query, key, value)
    )
    logits = np.einsum("bqme,bnme->bmqn", q, k)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = np.einsum("bmqn,bnme->bqme", weights, v).reshape(SHAPE)
    found = plain(query, key, value, heads=HEADS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_fused_equals_plain_in_float32_with_gradients():
    arrays = draw(4)
    expected, d_expected = differentiate(plain, *arrays)
    found, d_found = differentiate(fused, *arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for ours, theirs in zip(d_found, d_expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["auto", "short", "flash"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_for_tpus_are_plain_elsewhere_bit_for_bit(form, dtype, as_users):
    if jax.default_backend() == "tpu":
        pytest.skip("about the other platforms")
    arrays = draw(3, dtype)

    def run(function, **options):
        function = functools.partial(function, heads=HEADS, **options)
        return jax.jit(function, compiler_options=as_users)(*arrays)

    expected, found = run(plain), run(attend, form=form)
    np.testing.assert_array_equal(
        found.astype(jnp.float32), expected.astype(jnp.float32)
    )


FIELDS = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
IMAGE = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8, 3)).astype(np.float32)


def gradient_of(attention, **fields):
    model = build_model(
        "ViT-Ti/4", num_classes=3, attention=attention, **FIELDS, **fields
    )
    params = jax.eval_shape(model.init, jax.random.key(0), IMAGE)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(0, 0.3, p.shape), p.dtype), params
    )

    def loss(params):
        return jnp.sum(model.apply({"params": params}, IMAGE)[0] ** 2)

    return jax.jit(jax.grad(loss)), params


def products(text):
    return len(re.findall(r" dot\(|custom-call\([^\n]*matmul", text))


def test_auto_costs_on_a_cpu_what_plain_does():
    if jax.default_backend() != "cpu":
        pytest.skip("about the form for CPUs")
    counts = []
    for form in ("plain", "auto"):
        grad, params = gradient_of(form)
        counts.append(products(grad.lower(params).compile().as_text()))
    assert counts[0] == counts[1] > 10


@pytest.mark.parametrize("form", ["fused", "short", "flash"])
def test_every_form_trains_a_model_alike(form):
    expected, params = gradient_of("plain")
    found = gradient_of(form)[0](params)
    expected = trees.flatten(expected(params))
    scale = max(float(jnp.abs(leaf).max()) for leaf in expected.values())
    for name, leaf in trees.flatten(found).items():
        np.testing.assert_allclose(
            leaf, expected[name], rtol=1e-3, atol=1e-5 * scale, err_msg=name
        )


@pytest.mark.parametrize(
    ("kernel", "fields"),
    [
        (short, {}),
        (short, {"scan": True, "remat": "full"}),
        (flash, {}),
        pytest.param(flash, {"scan": True, "remat": "full"}, marks=pytest.mark.slow),
    ],
)
def test_kernels_give_a_model_the_same_gradients(monkeypatch, kernel, fields):
    """Interpreted, in the place of what other platforms than TPUs compute."""
    grad, params = gradient_of(kernel.__name__, **fields)
    expected = trees.flatten(grad(params))
    interpreted = functools.partial(kernel, interpret=True)
    monkeypatch.setattr(attend_lib, "plain", interpreted)
    jax.clear_caches()
    grad, _ = gradient_of(kernel.__name__, **fields)
    scale = max(float(jnp.abs(leaf).max()) for leaf in expected.values())
    for name, leaf in trees.flatten(grad(params)).items():
        np.testing.assert_allclose(
            leaf, expected[name], rtol=1e-3, atol=1e-5 * scale, err_msg=name
        )


def test_an_unknown_form_is_named():
    with pytest.raises(UserError, match="attention 'flsh'"):
        gradient_of("flsh")

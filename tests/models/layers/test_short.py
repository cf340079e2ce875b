# SPDX-License-Identifier: Apache-2.0
"""The kernel for short sequences, interpreted, against float64 and the plain form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from vit_jax import sharding
from vit_jax.errors import UserError
from vit_jax.models.layers import short as short_lib
from vit_jax.models.layers.short import short, takes

interpreted = functools.partial(short, interpret=True)


def draw(b, q, n, d, heads, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = [(b, q, d), (b, n, d), (b, n, d), (b, q, d)]
    query, *rest = [jnp.asarray(rng.normal(0, 1, s), dtype) for s in shapes]
    return [query * (d // heads) ** -0.5, *rest]


def in_double_precision(query, key, value, change, heads):
    """Returns the result and the gradients, each written out as an equation."""
    q, k, v, c = (
        np.asarray(x, np.float64).reshape(*x.shape[:2], heads, -1)
        for x in (query, key, value, change)
    )
    logits = np.einsum("bqme,bnme->bmqn", q, k)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    d_weights = np.einsum("bqme,bnme->bmqn", c, v)
    inner = (weights * d_weights).sum(-1, keepdims=True)
    d_logits = weights * (d_weights - inner)
    found = (
        np.einsum("bmqn,bnme->bqme", weights, v),
        np.einsum("bmqn,bnme->bqme", d_logits, k),
        np.einsum("bmqn,bqme->bnme", d_logits, q),
        np.einsum("bmqn,bqme->bnme", weights, c),
    )
    return [x.reshape(*x.shape[:2], -1) for x in found]


def differentiate(function, query, key, value, change):
    y, pull = jax.vjp(function, query, key, value)
    return y, *pull(change)


def assert_alike(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = (np.asarray(a, np.float32) for a in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("tokens", "d", "heads", "dtype", "tolerance"),
    [
        ((197, 197), 256, 4, "float32", 1e-5),  # two heads a register
        ((50, 50), 192, 3, "float32", 1e-5),  # the last register half full
        ((50, 50), 640, 8, "float32", 1e-5),  # heads of 80 lie in two registers each
        ((20, 20), 256, 2, "float32", 1e-5),  # heads of whole registers
        ((20, 20), 16, 2, "float32", 1e-5),  # all in a part of one
        ((9, 33), 128, 2, "float32", 1e-5),  # other keys than queries
        ((197, 197), 128, 2, "bfloat16", 1e-2),
    ],
)
def test_the_kernel_equals_the_equations(tokens, d, heads, dtype, tolerance):
    arrays = draw(2, *tokens, d, heads, dtype)
    function = functools.partial(interpreted, heads=heads)
    found = jax.jit(functools.partial(differentiate, function))(*arrays)
    assert all(leaf.dtype == dtype for leaf in found)
    assert_alike(found, in_double_precision(*arrays, heads), tolerance)


@pytest.mark.tpu
@pytest.mark.parametrize(("d", "heads"), [(768, 12), (192, 3), (1280, 16)])
@pytest.mark.parametrize("tokens", [197, 577])
def test_the_kernel_equals_the_equations_on_a_tpu(tokens, d, heads):
    if jax.default_backend() != "tpu":
        pytest.skip("no TPU is here")
    arrays = draw(2, tokens, tokens, d, heads, jnp.bfloat16)
    function = functools.partial(short, heads=heads)
    found = jax.jit(functools.partial(differentiate, function))(*arrays)
    assert_alike(found, in_double_precision(*arrays, heads), 2e-2)


@pytest.mark.parametrize("tokens", [256, 300, 385])  # the last: 3 * 128 + 1
def test_many_queries_meet_the_keys_in_parts(monkeypatch, tokens):
    monkeypatch.setattr(short_lib, "_layout", lambda *_: (128, 128, 1))
    arrays = draw(1, tokens, tokens, 256, 4)
    function = functools.partial(interpreted, heads=4)
    found = jax.jit(functools.partial(differentiate, function))(*arrays)
    assert_alike(found, in_double_precision(*arrays, 4), 1e-5)


def test_large_products_do_not_overflow():
    query, key, value, change = draw(1, 20, 20, 128, 2)
    function = functools.partial(interpreted, heads=2)
    found = differentiate(function, 100 * query, 100 * key, value, change)
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in found)


def test_heads_do_not_see_one_another():
    arrays = draw(1, 20, 20, 256, 4)
    function = functools.partial(interpreted, heads=4)
    other = [x.at[:, :, 64:128].multiply(3) for x in arrays]
    expected = differentiate(function, *arrays)
    for ours, theirs in zip(differentiate(function, *other), expected, strict=True):
        same = np.asarray(ours == theirs).all(axis=(0, 1)).reshape(4, 64).all(axis=1)
        np.testing.assert_array_equal(same, [True, False, True, True])


def test_devices_keep_their_images_and_heads():
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    place = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "tensor"))
    arrays = draw(4, 20, 20, 256, 4)
    placed = [jax.device_put(a, place) for a in arrays]
    function = functools.partial(interpreted, heads=4)
    run = jax.jit(functools.partial(differentiate, function))
    compiled = run.lower(*placed).compile()
    text = compiled.as_text()
    assert not [op for op in ("all-gather", "all-reduce", "all-to-all") if op in text]
    found = compiled(*placed)
    assert all(y.sharding.is_equivalent_to(place, 3) for y in found)
    assert_alike(found, in_double_precision(*arrays, 4), 1e-5)


@pytest.mark.parametrize(
    ("tokens", "d", "heads", "expected"),
    [
        (197, 768, 12, True),
        (257, 1280, 16, True),
        (577, 1280, 16, True),
        (1025, 1024, 16, True),
        (1370, 1280, 16, False),
        (4097, 768, 12, False),
    ],
)
def test_rows_of_products_must_fit_into_fast_memory(
    monkeypatch, tokens, d, heads, expected
):
    monkeypatch.setattr(short_lib, "chip_of", lambda _: "TPU v3")
    x = jax.ShapeDtypeStruct((8, tokens, d), jnp.bfloat16)
    told = []
    jax.eval_shape(lambda q, k: told.append(takes(q, k, heads)) or q, x, x)
    assert told == [expected]
    if not expected:
        with pytest.raises(UserError, match=f"{tokens} tokens of {d} channels are too"):
            jax.eval_shape(functools.partial(short, heads=heads), x, x, x)


def test_only_tpus_are_known_to_run_it():
    query, key, *_ = draw(1, 20, 20, 128, 2)
    assert takes(query, key, 2) is (jax.default_backend() == "tpu")

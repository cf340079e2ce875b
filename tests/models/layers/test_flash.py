# SPDX-License-Identifier: Apache-2.0
"""The kernel for TPUs, interpreted on other platforms, against the plain form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from vit_jax import sharding
from vit_jax.errors import UserError
from vit_jax.models.layers.attend import attend, plain as plain_lib
from vit_jax.models.layers.flash import flash, pays
from vit_jax.tpu.kernels import find_kernels

HEADS = 2
interpreted = functools.partial(flash, heads=HEADS, interpret=True)
plain = functools.partial(plain_lib, heads=HEADS)


def draw(shape, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    query, *rest = [jnp.asarray(rng.normal(0, 1, shape), dtype) for _ in range(4)]
    return [query * (shape[-1] // HEADS) ** -0.5, *rest]


def differentiate(function, query, key, value, factor):
    y, pull = jax.vjp(function, query, key, value)
    return y, *pull(factor)


def assert_alike(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = (np.asarray(a, np.float32) for a in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("tokens", "head_width", "dtype", "tolerance"),
    [
        (50, 16, "float32", 1e-5),
        pytest.param(50, 80, "float32", 1e-5, marks=pytest.mark.slow),
        pytest.param(128, 64, "float32", 1e-5, marks=pytest.mark.slow),  # no filling
        pytest.param(197, 64, "float32", 1e-5, marks=pytest.mark.slow),
        # Gradients of the plain form are rounded to bfloat16 more often: 2^-8 each.
        pytest.param(197, 64, "bfloat16", 1e-2, marks=pytest.mark.slow),
    ],
)
def test_the_kernel_equals_plain_with_gradients(tokens, head_width, dtype, tolerance):
    arrays = draw((1, tokens, 2 * head_width), dtype)
    found = jax.jit(functools.partial(differentiate, interpreted))(*arrays)
    assert found[0].dtype == dtype
    assert_alike(found, differentiate(plain, *arrays), tolerance)


def test_long_sequences_are_several_blocks(monkeypatch):
    monkeypatch.setattr("vit_jax.models.layers.flash._BLOCK", 4 * 128)
    query, key, value, _ = draw((1, 130, 16))
    found = jax.jit(interpreted)(query[:, :3], key, value)
    assert_alike([found], [plain(query[:, :3], key, value)], 1e-5)


def test_devices_keep_their_images_and_heads():
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    place = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "tensor"))
    arrays = draw((4, 20, 16))
    placed = [jax.device_put(a, place) for a in arrays]
    run = jax.jit(functools.partial(differentiate, interpreted))
    compiled = run.lower(*placed).compile()
    text = compiled.as_text()
    assert not [op for op in ("all-gather", "all-reduce", "all-to-all") if op in text]
    found = compiled(*placed)
    assert all(y.sharding.is_equivalent_to(place, 3) for y in found)
    assert_alike(found, differentiate(plain, *arrays), 1e-5)


def test_what_does_not_divide_is_computed_by_all():
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    arrays = draw((2, 20, 16))
    place = NamedSharding(mesh, PartitionSpec())
    placed = [jax.device_put(a, place) for a in arrays]
    found = jax.jit(functools.partial(differentiate, interpreted))(*placed)
    assert_alike(found, differentiate(plain, *arrays), 1e-5)


def on(kind, tokens, axes=("data", "fsdp", "tensor"), d=128):
    """Returns queries of a batch that lies on devices of a kind."""
    device = jax.sharding.Mesh(jax.devices()[:1], "x").abstract_mesh.abstract_device
    device = type(device)(device_kind=kind, num_cores=1, platform="tpu")
    mesh = AbstractMesh((4, 1, 1), axes, (AxisType.Auto,) * 3, abstract_device=device)
    place = NamedSharding(mesh, PartitionSpec(axes[0]))
    return jax.ShapeDtypeStruct((8, tokens, d), jnp.bfloat16, sharding=place)


@pytest.mark.parametrize(
    ("kind", "tokens", "expected"),
    [
        ("TPU v3", 1025, False),
        ("TPU v4", 197, False),
        ("TPU v4", 1025, True),
        ("TPU v6 lite", 1370, True),
    ],
)
def test_it_pays_for_long_sequences_on_new_chips(kind, tokens, expected):
    told = []
    query = on(kind, tokens)
    jax.eval_shape(jax.jit(lambda q, k: told.append(pays(q, k)) or q), query, query)
    assert told == [expected]


@pytest.mark.parametrize(
    ("kind", "tokens", "d", "heads", "expected"),
    [
        ("TPU v3", 197, 768, 12, "short"),
        ("TPU v3", 1025, 1024, 16, "short"),
        ("TPU v3", 1370, 1280, 16, "plain"),
        ("TPU v4", 197, 768, 12, "short"),
        ("TPU v4", 1370, 1280, 16, "splash"),
        ("TPU v5 lite", 1370, 1280, 16, "short"),  # It has more fast memory.
        ("TPU v5 lite", 9217, 1280, 16, "splash"),
    ],
)
def test_auto_takes_the_kernel_that_is_made_for_the_sequence(
    kind, tokens, d, heads, expected
):
    query = on(kind, tokens, d=d)
    run = functools.partial(attend, heads=heads, form="auto")
    kernels = find_kernels(jax.jit(run).trace(query, query, query).jaxpr)
    names = {kernel.name.partition("_")[0] for kernel in kernels} or {"plain"}
    assert names == {expected}


def test_auto_leaves_meshes_that_it_does_not_know():
    query = on("TPU v4", 1025, ("x", "y", "z"))
    run = functools.partial(attend, heads=HEADS, form="auto")
    assert not list(find_kernels(jax.jit(run).trace(query, query, query).jaxpr))


def test_an_old_chip_is_refused():
    query = on("TPU v3", 197)
    run = functools.partial(attend, heads=HEADS, form="flash")
    with pytest.raises(UserError, match=r"from v4 on, and this is a TPU v3; use"):
        jax.eval_shape(run, query, query, query)

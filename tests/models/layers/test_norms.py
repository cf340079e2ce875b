# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.norms import LayerNorm, row_mean


@pytest.mark.parametrize(
    ("eps", "first", "third"),
    [
        (1e-12, 0.6325, 1.2649),
        (1e-6, 0.5345, 1.0690),
        (1e-5, 0.2828, 0.5657),
        (1e-3, 0.0316, 0.0632),
    ],
)
def test_epsilon_gives_the_literal_values(eps, first, third):
    x = jnp.asarray([[1.0, -1.0, 2.0, -2.0]]) * 1e-3
    params = {"scale": jnp.ones(4), "bias": jnp.zeros(4)}
    y = LayerNorm(eps).apply({"params": params}, x)
    np.testing.assert_allclose(y, [[first, -first, third, -third]], atol=5e-5)


def test_small_variance_on_a_large_mean_keeps_its_digits():
    rng = np.random.default_rng(0)
    x = (100 + 0.01 * rng.normal(size=(8, 64))).astype(np.float32)
    params = {"scale": jnp.ones(64), "bias": jnp.zeros(64)}
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    y = LayerNorm(1e-6).apply({"params": params}, jnp.asarray(x))
    # A float32 near 100 has steps of 7.6e-6, here 1/1300 of the spread.
    np.testing.assert_allclose(y, expected, atol=2e-3)


def test_statistics_of_bfloat16_tokens_are_float32():
    rng = np.random.default_rng(0)
    x = jnp.asarray(8 + rng.normal(size=(4, 256)), jnp.bfloat16)
    params = {"scale": jnp.full(256, 1.5), "bias": jnp.full(256, 0.25)}
    wide = np.asarray(x, np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    y = LayerNorm(dtype=jnp.bfloat16).apply({"params": params}, x)
    assert y.dtype == jnp.bfloat16
    # One rounding of the result to 8 bits, no other.
    np.testing.assert_allclose(
        np.asarray(y, np.float64), 1.5 * expected + 0.25, rtol=2**-8, atol=1e-3
    )


def test_mean_of_a_row_and_its_gradient_are_the_plain_ones():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 7)), jnp.float32)
    np.testing.assert_allclose(row_mean(x), x.mean(-1, keepdims=True), atol=1e-6)
    grad = jax.grad(lambda x: jnp.sum(row_mean(x) ** 2))(x)
    plain = jax.grad(lambda x: jnp.sum(x.mean(-1) ** 2))(x)
    np.testing.assert_allclose(grad, plain, atol=1e-6)


def test_only_the_cpu_program_sums_rows_by_a_product():
    x = jax.ShapeDtypeStruct((2, 3, 8), jnp.float32)
    traced = jax.jit(row_mean).trace(x)
    assert "dot_general" in traced.lower(lowering_platforms=("cpu",)).as_text()
    for platform in ("tpu", "cuda"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "dot_general" not in text
        assert "stablehlo.reduce" in text

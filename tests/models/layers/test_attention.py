# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.models.layers.attend import mix, scores, softmax
from vit_jax.models.layers.attention import MultiHeadAttention

B, Q, N, M, E = 2, 3, 5, 4, 6


def draw(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def test_scores_and_gradients_equal_a_loop_over_heads():
    query, key = draw(B, Q, M, E), draw(B, N, M, E, seed=1)
    expected = np.stack(
        [[query[b, :, m] @ key[b, :, m].T for m in range(M)] for b in range(B)]
    )
    np.testing.assert_allclose(scores(query, key), expected, rtol=1e-5, atol=1e-5)

    weight = draw(B, M, Q, N, seed=2)
    d_query, d_key = jax.grad(
        lambda query, key: jnp.sum(scores(query, key) * weight), (0, 1)
    )(query, key)
    for b in range(B):
        for m in range(M):
            np.testing.assert_allclose(
                d_query[b, :, m], weight[b, m] @ key[b, :, m], rtol=1e-4, atol=1e-5
            )
            np.testing.assert_allclose(
                d_key[b, :, m], weight[b, m].T @ query[b, :, m], rtol=1e-4, atol=1e-5
            )


def test_mix_and_gradients_equal_a_loop_over_heads():
    weights, value = draw(B, M, Q, N), draw(B, N, M, E, seed=1)
    mixed = mix(weights, value)
    factor = draw(B, Q, M, E, seed=2)
    d_weights, d_value = jax.grad(
        lambda weights, value: jnp.sum(mix(weights, value) * factor), (0, 1)
    )(weights, value)
    for b in range(B):
        for m in range(M):
            v, f, w = value[b, :, m], factor[b, :, m], weights[b, m]
            np.testing.assert_allclose(mixed[b, :, m], w @ v, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(d_weights[b, m], f @ v.T, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(d_value[b, :, m], w.T @ f, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [scores, mix])
def test_products_map_over_another_axis(function):
    a = draw(7, B, M, Q, N) if function is mix else draw(7, B, Q, M, E)
    b = draw(7, B, N, M, E, seed=1)
    mapped = jax.vmap(function)(a, b)
    one_by_one = jnp.stack([function(x, y) for x, y in zip(a, b, strict=True)])
    np.testing.assert_allclose(mapped, one_by_one, rtol=1e-5, atol=1e-5)


def test_bfloat16_products_are_summed_in_float32():
    query = draw(1, 1, 1, 4096, dtype=jnp.bfloat16)
    key = draw(1, 2, 1, 4096, seed=1, dtype=jnp.bfloat16)
    exact = (
        np.asarray(query, np.float64)[0, :, 0] @ np.asarray(key, np.float64)[0, :, 0].T
    )
    result = scores(query, key)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result[0, 0], exact, rtol=1e-4)
    assert mix(result.astype(jnp.bfloat16), key).dtype == jnp.bfloat16


def test_only_the_cpu_program_folds_heads_into_the_batch():
    query = jax.ShapeDtypeStruct((B, Q, M, E), jnp.float32)
    key = jax.ShapeDtypeStruct((B, N, M, E), jnp.float32)
    traced = jax.jit(scores).trace(query, key)
    cpu = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "batching_dims = [0] x [0]" in cpu
    for platform in ("tpu", "cuda"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "batching_dims = [0, 2] x [0, 2]" in text
        # The other form is not even in the program.
        assert text.count("dot_general") == 1


def test_attention_equals_numpy_in_double_precision():
    rng = np.random.default_rng(0)
    d = M * E
    params = {
        name: {"kernel": rng.normal(size=(d, M, E)), "bias": rng.normal(size=(M, E))}
        for name in ("query", "key", "value")
    }
    params["out"] = {"kernel": rng.normal(size=(M, E, d)), "bias": rng.normal(size=d)}
    params = jax.tree.map(lambda leaf: leaf / 4, params)
    x, context = rng.normal(size=(B, Q, d)), rng.normal(size=(B, N, d))

    def project(name, x):
        kernel, bias = params[name]["kernel"], params[name]["bias"]
        return np.tensordot(x, kernel, 1) + bias

    query, key, value = project("query", x), project("key", context), None
    value = project("value", context)
    expected, probabilities = np.zeros((B, Q, d)), np.zeros((B, M, Q, N))
    for b in range(B):
        for m in range(M):
            logits = query[b, :, m] @ key[b, :, m].T / np.sqrt(E)
            weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            probabilities[b, m] = weights
            expected[b] += weights @ value[b, :, m] @ params["out"]["kernel"][m]
    expected += params["out"]["bias"]

    as_float32 = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    y, weights = MultiHeadAttention(M).apply(
        {"params": as_float32},
        jnp.asarray(x, jnp.float32),
        jnp.asarray(context, jnp.float32),
        train=False,
    )
    np.testing.assert_allclose(weights, probabilities, atol=1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_heads_that_do_not_divide_the_width_are_refused():
    x = jnp.zeros((1, 2, 10))
    with pytest.raises(UserError, match="width 10 is no multiple of num_heads 4"):
        MultiHeadAttention(4).init(jax.random.key(0), x, x, train=False)


def attention_params(d, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {name: ((d, M, E), (M, E)) for name in ("query", "key", "value")}
    shapes["out"] = ((M, E, d), (d,))
    return {
        name: {
            "kernel": rng.normal(0, 0.3, kernel).astype(np.float32),
            "bias": rng.normal(0, 0.3, bias).astype(np.float32),
        }
        for name, (kernel, bias) in shapes.items()
    }


def probabilities(params, x, change=lambda q, k: (q, k), extra=0.0):
    query, key = (
        np.tensordot(x, params[name]["kernel"], 1) + params[name]["bias"]
        for name in ("query", "key")
    )
    query, key = change(query, key)
    logits = np.einsum("bqme,bnme->bmqn", query, key) / np.sqrt(E) + extra
    weights = np.exp(logits)
    return weights / weights.sum(-1, keepdims=True)


def test_queries_and_keys_are_normalised_head_by_head():
    d, x = M * E, np.asarray(draw(B, N, M * E))
    params = attention_params(d)
    scale = {
        name: {"scale": np.full(E, value, "f4"), "bias": np.full(E, 0.1, "f4")}
        for name, value in (("query_ln", 1.5), ("key_ln", 0.7))
    }

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        x = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return x * scale[name]["scale"] + scale[name]["bias"]

    expected = probabilities(
        params, x, lambda q, k: (norm(q, "query_ln"), norm(k, "key_ln"))
    )
    module = MultiHeadAttention(M, qk_norm=True)
    variables = {"params": {**params, **scale}}
    _, weights = module.apply(variables, jnp.asarray(x), jnp.asarray(x), train=False)
    np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_relative_scores_are_those_of_the_scaled_query():
    d, x = M * E, np.asarray(draw(B, N, M * E))
    params = attention_params(d)
    patches = N - 1
    embedding = np.asarray(draw(2 * patches - 1, M, E, seed=2))
    query = np.tensordot(x, params["query"]["kernel"], 1) + params["query"]["bias"]
    extra = np.zeros((B, M, N, N))
    for q in range(patches):
        for k in range(patches):
            extra[:, :, 1 + q, 1 + k] = np.einsum(
                "bme,me->bm", query[:, 1 + q], embedding[patches - 1 - (q - k)]
            ) / np.sqrt(E)
    module = MultiHeadAttention(M, relative_after=1)
    variables = {"params": {**params, "relative": {"embedding": embedding}}}
    _, weights = module.apply(variables, jnp.asarray(x), jnp.asarray(x), train=False)
    np.testing.assert_allclose(
        weights, probabilities(params, x, extra=extra), atol=1e-5
    )


def test_softmax_and_its_gradient_are_the_plain_ones():
    logits = 20 * draw(B, M, Q, N)
    wide = np.asarray(logits, np.float64)
    expected = np.exp(wide - wide.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    y, pull = jax.vjp(jax.jit(softmax), logits)
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-9)
    np.testing.assert_allclose(y.sum(-1), np.ones((B, M, Q)), rtol=1e-6)
    change = np.asarray(draw(B, M, Q, N, seed=1), np.float64)
    inner = (expected * change).sum(-1, keepdims=True)
    (gradient,) = pull(jnp.asarray(change, jnp.float32))
    np.testing.assert_allclose(gradient, expected * (change - inner), atol=1e-6)


def test_softmax_of_large_and_of_masked_scores_is_finite():
    logits = jnp.asarray([[[[1e4, 1e4, -jnp.inf], [-1e4, 0.0, -1e9]]]])
    expected = [[[[0.5, 0.5, 0], [0, 1, 0]]]]
    np.testing.assert_array_equal(jax.jit(softmax)(logits), expected)


def test_only_the_cpu_program_computes_exponentials_twice():
    traced = jax.jit(softmax).trace(jax.ShapeDtypeStruct((B, M, Q, N), jnp.float32))
    text = {
        platform: traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "tpu", "cuda")
    }
    count = {platform: lines.count("stablehlo.exp") for platform, lines in text.items()}
    assert count == {"cpu": 2, "tpu": 1, "cuda": 1}

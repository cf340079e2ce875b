# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.dense import Dense, DenseGeneral, FlatDense

SHAPES = {
    "dense": (Dense(4), (2, 3, 5), (5, 4), "bnd,df->bnf"),
    "of one matrix": (Dense(4), (3, 5), (5, 4), "nd,df->nf"),
    "of a map": (Dense(4), (2, 3, 2, 5), (5, 4), "bhwd,df->bhwf"),
    "into parts": (DenseGeneral((3, 2, 4)), (6, 7, 5), (5, 3, 2, 4), "xnd,dtme->xntme"),
    "out of axes": (
        DenseGeneral(6, axis=(-2, -1)),
        (2, 7, 3, 4),
        (3, 4, 6),
        "xnme,med->xnd",
    ),
    "into heads": (FlatDense((5,), (3, 4)), (2, 7, 5), (5, 3, 4), "bnd,dme->bnme"),
    "out of heads": (FlatDense((3, 4), (6,)), (2, 7, 12), (3, 4, 6), "bnme,med->bnd"),
}


def draw(*shape, seed=0):
    values = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(values, jnp.float32)


@pytest.mark.parametrize("case", SHAPES)
def test_products_and_gradients_are_those_of_einsum(case):
    module, shape, kernel_shape, formula = SHAPES[case]
    x, kernel = draw(*shape), draw(*kernel_shape, seed=1)
    axes = formula.split("->")[0].split(",")
    inputs = len(set(axes[0]) & set(axes[1]))
    bias = draw(*kernel_shape[inputs:], seed=3)

    def apply(x, kernel):
        return module.apply({"params": {"kernel": kernel, "bias": bias}}, x)

    def einsum(x, kernel):
        if "out of heads" in case:
            x = x.reshape(2, 7, 3, 4)
        y = jnp.einsum(formula, x, kernel)
        return y.reshape(2, 7, 12) if "into heads" in case else y

    y, pull = jax.vjp(jax.jit(apply), x, kernel)
    shift = np.asarray(bias.reshape(-1) if "heads" in case else bias)
    expected, expected_pull = jax.vjp(einsum, x, kernel)
    np.testing.assert_allclose(np.asarray(y) - shift, expected, rtol=1e-5, atol=1e-5)
    change = draw(*expected.shape, seed=2)
    for ours, theirs in zip(pull(change), expected_pull(change), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_only_the_cpu_program_makes_tokens_rows_of_one_matrix():
    module = Dense(4, use_bias=False)
    x = jax.ShapeDtypeStruct((2, 3, 5), jnp.float32)
    params = {"kernel": jax.ShapeDtypeStruct((5, 4), jnp.float32)}
    apply = jax.jit(lambda params, x: module.apply({"params": params}, x))
    traced = apply.trace(params, x)
    cpu = traced.lower(lowering_platforms=("cpu",)).as_text()
    assert "(tensor<6x5xf32>, tensor<5x4xf32>) -> tensor<6x4xf32>" in cpu
    for platform in ("tpu", "cuda"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "(tensor<2x3x5xf32>, tensor<5x4xf32>) -> tensor<2x3x4xf32>" in text
        assert text.count("dot_general") == 1


def test_parameters_start_as_those_of_a_matrix():
    x, key = jnp.zeros((1, 5)), jax.random.key(0)
    flat = FlatDense((5,), (3, 4)).init(key, x)["params"]
    matrix = Dense(12).init(key, x)["params"]
    assert flat["kernel"].shape == (5, 3, 4)
    np.testing.assert_array_equal(flat["kernel"].reshape(5, 12), matrix["kernel"])
    assert flat["bias"].shape == (3, 4)

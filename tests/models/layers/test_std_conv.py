# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.std_conv import GroupNorm, StdConv, standardize


def kernel_of(values):
    return jnp.asarray(values, jnp.float32).reshape(4, 1, 1, 1)


@pytest.mark.parametrize(
    ("unit", "eps", "eps_form", "expected"),
    [
        (1e-3, 1e-5, "std", [-1.3297, -0.4432, 0.4432, 1.3297]),
        (1e-3, 1e-10, "var", [-1.3416, -0.4472, 0.4472, 1.3416]),
        (1e-3, 1e-8, "var", [-1.3363, -0.4454, 0.4454, 1.3363]),
        (1e-3, 1e-6, "var", [-1, -0.3333, 0.3333, 1]),
        (1e-5, 1e-5, "std", [-0.7082, -0.2361, 0.2361, 0.7082]),
        (1e-5, 1e-10, "var", [-1, -0.3333, 0.3333, 1]),
        (1e-5, 1e-8, "var", [-0.1491, -0.0497, 0.0497, 0.1491]),
    ],
)
def test_both_forms_of_epsilon_give_the_literal_values(unit, eps, eps_form, expected):
    kernel = standardize(kernel_of([unit, 2 * unit, 3 * unit, 4 * unit]), eps, eps_form)
    np.testing.assert_allclose(kernel.reshape(4), expected, atol=1e-4)


def test_each_output_channel_is_standardised_by_itself():
    rng = np.random.default_rng(0)
    kernel = rng.normal(2, 3, (3, 3, 4, 5)) * np.arange(1, 6)
    standard = standardize(jnp.asarray(kernel, jnp.float32), 1e-10, "var")
    np.testing.assert_allclose(standard.mean((0, 1, 2)), np.zeros(5), atol=1e-5)
    np.testing.assert_allclose(standard.std((0, 1, 2)), np.ones(5), atol=1e-5)


def test_scale_and_offset_of_a_kernel_do_not_matter():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(1, 5, 5, 2)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(3, 3, 2, 4)), jnp.float32)
    conv = StdConv(4, 3)
    plain = conv.apply({"params": {"kernel": kernel}}, x)
    other = conv.apply({"params": {"kernel": 7 * kernel + 3}}, x)
    np.testing.assert_allclose(plain, other, atol=1e-4)


@pytest.mark.parametrize(("padding", "offset"), [("SAME", 0), (1, 1)])
def test_same_pads_behind_where_one_pixel_pads_both_sides(padding, offset):
    # Stride 2 on 6 x 6: SAME adds one row and column behind, so that windows begin at
    # 0, 2, 4; a border of one on all sides lets them begin at -1, 1, 3.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 6, 6, 1)).astype(np.float32)
    kernel = rng.normal(size=(3, 3, 1, 1)).astype(np.float32)
    conv = StdConv(1, 3, stride=2, padding=padding)
    result = conv.apply({"params": {"kernel": kernel}}, x)
    standard = (kernel - kernel.mean()) / kernel.std()
    padded = np.pad(x[0, :, :, 0], ((offset, 2), (offset, 2)))
    for row in range(3):
        for column in range(3):
            window = padded[2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            expected = (window * standard[:, :, 0, 0]).sum()
            np.testing.assert_allclose(result[0, row, column, 0], expected, atol=1e-4)


def test_group_norm_equals_its_formula():
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, (2, 3, 4, 64))
    scale, bias = rng.normal(size=(2, 64))
    groups = x.reshape(2, 3, 4, 32, 2)
    centred = groups - groups.mean((1, 2, 4), keepdims=True)
    expected = centred / np.sqrt((centred**2).mean((1, 2, 4), keepdims=True) + 0.1)
    expected = expected.reshape(x.shape) * scale + bias
    params = {"scale": jnp.float32(scale), "bias": jnp.float32(bias)}
    y = GroupNorm(0.1).apply({"params": params}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_statistics_of_bfloat16_maps_are_float32():
    rng = np.random.default_rng(0)
    x = jnp.asarray(100 + rng.normal(size=(1, 8, 8, 32)), jnp.bfloat16)
    params = {"scale": jnp.ones(32), "bias": jnp.zeros(32)}
    wide = np.asarray(x, np.float64)
    centred = wide - wide.mean((1, 2), keepdims=True)
    expected = centred / np.sqrt((centred**2).mean((1, 2), keepdims=True) + 1e-5)
    y = GroupNorm(dtype=jnp.bfloat16).apply({"params": params}, x)
    assert y.dtype == jnp.bfloat16
    # One rounding of the result to 8 bits, no other.
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=2**-8)


def test_kernel_is_standardised_in_float32_whatever_is_computed_in():
    rng = np.random.default_rng(0)
    kernel = jnp.asarray(1 + 1e-3 * rng.normal(size=(1, 1, 32, 8)), jnp.float32)
    x = jnp.asarray(rng.normal(size=(1, 2, 2, 32)), jnp.float32)
    variables = {"params": {"kernel": kernel}}
    full = StdConv(8, 1).apply(variables, x)
    half = StdConv(8, 1, dtype=jnp.bfloat16).apply(variables, x)
    assert half.dtype == jnp.bfloat16
    # Rounded first, a kernel whose values differ by 1e-3 would be constant.
    assert np.abs(half - full).max() < 0.1 < np.abs(full).max()


def test_one_channel_may_be_constant():
    kernel = jnp.ones((1, 1, 4, 2))
    for eps_form in ("std", "var"):
        result = standardize(kernel, 1e-5, eps_form)
        np.testing.assert_array_equal(result, jnp.zeros_like(kernel))


def test_initial_kernel_has_the_variance_of_its_inputs():
    params = StdConv(64, 3).init(jax.random.key(0), jnp.zeros((1, 4, 4, 32)))["params"]
    assert float(params["kernel"].std()) == pytest.approx((9 * 32) ** -0.5, rel=0.05)

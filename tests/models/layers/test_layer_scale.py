# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.layers.layer_scale import LayerScale


def test_each_channel_has_its_factor():
    x = jnp.arange(12, dtype=jnp.bfloat16).reshape(2, 2, 3)
    params = {"scale": jnp.asarray([1.0, 2.0, 0.5])}
    y = LayerScale(1e-5).apply({"params": params}, x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, x * jnp.asarray([[[1, 2, 0.5]]], jnp.bfloat16))


def test_factors_start_at_the_first_value():
    params = LayerScale(1e-5).init(jax.random.key(0), jnp.zeros((1, 2, 3)))
    np.testing.assert_array_equal(params["params"]["scale"], np.full(3, 1e-5, "f4"))

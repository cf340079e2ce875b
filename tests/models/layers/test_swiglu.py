# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np

from vit_jax.models.layers.swiglu import SwiGlu


def test_swiglu_equals_numpy():
    rng = np.random.default_rng(0)
    params = {
        name: {
            "kernel": rng.normal(size=shape).astype(np.float32),
            "bias": rng.normal(size=shape[1]).astype(np.float32),
        }
        for name, shape in {"Dense_0": (4, 12), "Dense_1": (6, 4)}.items()
    }
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    both = x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
    gate, value = both[..., :6], both[..., 6:]
    hidden = gate / (1 + np.exp(-gate)) * value
    expected = hidden @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
    y = SwiGlu(6).apply({"params": params}, jnp.asarray(x), train=False)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)

# SPDX-License-Identifier: Apache-2.0
import math

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models.layers.mlp import GELU, Mlp

POINTS = [-1.0, -0.5, 0.5, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (
            "erf",
            [-0.1586553, -0.1542688, 0.3457312, 0.8413447, 1.9544997, 2.9959503],
        ),
        (
            "tanh",
            [-0.1588080, -0.1542860, 0.3457140, 0.8411920, 1.9545977, 2.9963626],
        ),
    ],
)
def test_gelu_has_the_literal_values_of_its_form(form, values):
    np.testing.assert_allclose(GELU[form](jnp.asarray(POINTS)), values, atol=2e-7)


@pytest.mark.parametrize("form", ["erf", "tanh"])
def test_mlp_equals_numpy(form):
    rng = np.random.default_rng(0)
    draw = {"Dense_0": (4, 6), "Dense_1": (6, 4)}
    params = {
        name: {
            "kernel": rng.normal(size=shape).astype(np.float32),
            "bias": rng.normal(size=shape[1]).astype(np.float32),
        }
        for name, shape in draw.items()
    }
    x = rng.normal(size=(2, 3, 4)).astype(np.float32)
    hidden = x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]
    if form == "erf":
        factor = np.vectorize(lambda z: 0.5 * (1 + math.erf(z / math.sqrt(2))))(hidden)
    else:
        inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
        factor = 0.5 * (1 + np.tanh(inner))
    expected = hidden * factor @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]
    y = Mlp(6, gelu=form).apply({"params": params}, jnp.asarray(x), train=False)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)

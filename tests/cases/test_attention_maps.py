# SPDX-License-Identifier: Apache-2.0
"""Attention maps are there where they are asked for, and cost the logits nothing."""

import jax
import numpy as np
import pytest

from tests.cases import tiny
from vit_jax.models import build_model, stacking
from vit_jax.plots import attention

TOKENS = 5  # a class token and 2 x 2 patches


@pytest.mark.parametrize("scan", [False, True])
def test_maps_of_the_first_and_the_last_layer(rng: np.random.Generator, scan: bool):
    made = tiny.checkpoint({**tiny.MODEL, "depth": 3})
    model = build_model(**made.model, scan=scan)
    image = rng.normal(size=(2, tiny.SIDE, tiny.SIDE, 3)).astype(np.float32)
    params = stacking.stack_blocks(made.params) if scan else made.params
    apply = jax.jit(model.apply, static_argnames="return_attention")
    plain, without = apply({"params": params}, image)
    logits, out = apply({"params": params}, image, return_attention=True)
    np.testing.assert_allclose(logits, plain, rtol=0, atol=1e-6)
    assert not any("attention_weights" in name for name in without)
    for name in ("block00/attention_weights", "block02/attention_weights"):
        maps = np.asarray(out[name])
        assert maps.shape == (2, 2, TOKENS, TOKENS)
        np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)
        assert maps.min() >= 0
        # Of this image and this layer: no constant stands in for them.
        assert maps[0].std() > 1e-3
        assert np.abs(maps[0] - maps[1]).max() > 1e-3
    first, last = (np.asarray(out[f"block0{i}/attention_weights"]) for i in (0, 2))
    assert np.abs(first - last).max() > 1e-3


def test_rollout_of_identities_is_the_identity():
    eye = np.broadcast_to(np.eye(TOKENS), (2, 3, TOKENS, TOKENS))
    for residual in (True, False):
        found = attention.rollout([eye] * 4, residual=residual)
        np.testing.assert_allclose(found, eye[:, 0], atol=1e-12)


def test_rollout_multiplies_layers_and_puts_the_residual_in(rng: np.random.Generator):
    # Two layers of two heads, by hand: the mean over heads, half of it the token
    # itself, the later layer on the left.
    layers = [rng.dirichlet(np.ones(3), size=(1, 2, 3)) for _ in range(2)]
    one, two = (0.5 * layer[0].mean(0) + 0.5 * np.eye(3) for layer in layers)
    np.testing.assert_allclose(attention.rollout(layers)[0], two @ one, atol=1e-12)
    plain = layers[1][0].mean(0) @ layers[0][0].mean(0)
    found = attention.rollout(layers, residual=False)[0]
    np.testing.assert_allclose(found, plain, atol=1e-12)

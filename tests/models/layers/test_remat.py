# SPDX-License-Identifier: Apache-2.0
"""Computing blocks again changes neither parameters nor gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.build.blueprint import _check_layout
from vit_jax.errors import UserError
from vit_jax.models import build_model

SWIN = {
    "width": 8,
    "depths": (2,),
    "num_heads": (2,),
    "window_size": 2,
    "resolution": 16,
    "patch_size": 4,
}
FAMILIES = {
    "Swin-T": SWIN,
    "SwinV2-T": SWIN,
    "Mixer-B/4": {"width": 8, "depth": 1, "token_mlp_dim": 8, "mlp_dim": 16},
    "Axial-ViT-B/8": {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 16},
}
IMAGE = np.random.default_rng(0).uniform(-1, 1, (2, 16, 16, 3)).astype(np.float32)


def gradient_of(name, **fields):
    model = build_model(name, num_classes=3, **FAMILIES[name], **fields)
    params = jax.eval_shape(model.init, jax.random.key(0), IMAGE)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(0, 0.3, p.shape), p.dtype), params
    )

    def loss(params):
        logits, _ = model.apply(
            {"params": params}, IMAGE, train=True, rngs={"drop_path": jax.random.key(0)}
        )
        return jnp.sum(logits**2)

    return jax.grad(loss), params


@pytest.mark.parametrize("name", FAMILIES)
def test_computing_blocks_again_gives_the_same_gradients(name):
    plain, params = gradient_of(name, drop_path_rate=0.3)
    again, same = gradient_of(name, drop_path_rate=0.3, remat="names:mlp")
    assert jax.tree.structure(params) == jax.tree.structure(same)
    assert "remat" not in str(jax.make_jaxpr(plain)(params))
    assert "remat" in str(jax.make_jaxpr(again)(params))
    expected = trees.flatten(jax.jit(plain)(params))
    scale = max(float(jnp.abs(leaf).max()) for leaf in expected.values())
    for key, leaf in trees.flatten(jax.jit(again)(params)).items():
        np.testing.assert_allclose(
            leaf, expected[key], rtol=1e-4, atol=1e-6 * scale, err_msg=key
        )


@pytest.mark.parametrize(
    ("name", "key", "able"),
    [("BiT-R50x1", "remat", "vit, hybrid, mixer, swin"), ("Swin-T", "scan", "vit")],
)
def test_a_family_that_cannot_is_named(name, key, able):
    with pytest.raises(
        UserError, match=f"config.mesh.{key} is for the families {able}"
    ):
        _check_layout(name, key)

# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import pytest

from vit_jax import trees
from vit_jax.convert.identify.parameters import parameter_shapes
from vit_jax.models import build_model

TINY = {"width": 16, "depth": 3, "num_heads": 2, "mlp_dim": 32}
SWIN = {
    "width": 16,
    "depths": (1, 3),
    "num_heads": (2, 4),
    "patch_size": 2,
    "window_size": 2,
    "resolution": 8,
}
LAYERS = {"position_injection": "every_layer", "layer_scale": 1.0}


@pytest.mark.parametrize(
    ("name", "fields", "size"),
    [
        ("ViT-Ti/4", {**TINY, "pool": "map", "num_registers": 2}, (8, 8)),
        ("ViT-Ti/4", {**TINY, **LAYERS, "resolution": (8, 32)}, (8, 32)),
        ("ViT-Ti/4", {**TINY, "scan": True, "positions": "relative"}, (8, 8)),
        ("Axial-ViT-S/4", {**TINY, "resolution": (8, 16)}, (8, 16)),
        ("Axial-ViT-S/4", {**TINY, "scan": True}, (8, 8)),
        ("R26+ViT-S/32", {**TINY, "stages": (1, 2, 3)}, (16, 16)),
        ("R26+ViT-S/32", {**TINY, "stages": (), "patch_size": 2}, (8, 8)),
        ("BiT-R50x1", {"stages": (1, 2, 3)}, (16, 16)),
        ("BiT-R50x1", {"stages": (11,)}, (8, 8)),
        (
            "Mixer-S/4",
            {"width": 16, "depth": 12, "token_mlp_dim": 8, "mlp_dim": 32},
            (8, 8),
        ),
        ("Swin-T", {**SWIN, "absolute_positions": True}, (8, 8)),
        ("SwinV2-T", SWIN, (8, 8)),
        ("SwinV2-T", {**SWIN, "extra_norm_every": 2, "depths": (2, 5)}, (8, 8)),
        ("SwinV2-T", {**SWIN, "extra_norm_every": 4}, (8, 8)),
    ],
    ids=str,
)
def test_shapes_are_those_of_the_whole_model(name, fields, size):
    model = build_model(name, num_classes=3, **fields)
    whole = model.clone(scan=False) if fields.get("scan") else model
    image = jax.ShapeDtypeStruct((1, *size, 3), jnp.float32)
    params = jax.eval_shape(whole.init, jax.random.key(0), image)["params"]
    expected = {name: leaf.shape for name, leaf in trees.flatten(params).items()}
    assert parameter_shapes(model, (*size, 3)) == expected

# SPDX-License-Identifier: Apache-2.0
"""A tiny checkpoint of each family of models, with weights of which none is zero."""

import numpy as np

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.models import build_model, stacking

SIZES = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
SWIN = {
    "width": 16,
    "depths": (1, 1),
    "num_heads": (2, 2),
    "patch_size": 2,
    "window_size": 2,
    "resolution": 8,
}
FORMS = {
    "vit": {"name": "ViT-Ti/4", **SIZES},
    "hybrid": {"name": "R26+ViT-S/32", **SIZES, "stages": (1,)},
    "axial-vit": {"name": "Axial-ViT-Ti/4", **SIZES},
    "bit": {"name": "BiT-R50x1", "stages": (1,)},
    "mixer": {
        "name": "Mixer-S/4",
        "width": 16,
        "depth": 1,
        "token_mlp_dim": 8,
        "mlp_dim": 32,
    },
    "swin": {"name": "Swin-T", **SWIN},
    "swin-v2": {"name": "SwinV2-T", **SWIN},
    "dinov2": {"name": "ViT-Ti/4", **SIZES, "preset": "dinov2"},
    "scanned": {"name": "ViT-Ti/4", **SIZES, "depth": 2, "scan": True},
    "bfloat16": {"name": "ViT-Ti/4", **SIZES, "dtype": "bfloat16"},
}
"""A model of each family by its name, and some that are built otherwise."""


def make(form: str, **overrides) -> Checkpoint:
    """Makes a checkpoint of the form, for images of 8 x 12 pixels."""
    import jax
    import jax.numpy as jnp

    fields = {"num_classes": 3, **FORMS[form], **overrides}
    height, width = (8, 8) if "swin" in form else (8, 12)
    image = jax.ShapeDtypeStruct((1, height, width, 3), jnp.float32)
    looped = build_model(**{**fields, "scan": False} if "scan" in fields else fields)
    shapes = jax.eval_shape(looped.init, jax.random.key(0), image)["params"]
    rng = np.random.default_rng(1)

    def draw(name, leaf):
        values = rng.normal(1.0 if name.endswith("scale") else 0.0, 0.2, leaf.shape)
        return values.astype(leaf.dtype)

    params = trees.map_with_name(draw, shapes)
    return Checkpoint(
        params=stacking.stack_blocks(params) if "scan" in fields else params,
        model=fields,
        image_shape=(height, width, 3),
        preprocessing="decode|resize(8)|value_range(-1, 1)",
        class_names=("ant", "bee", "cat")[: fields["num_classes"]],
    )


def images(checkpoint: Checkpoint, batch: int) -> np.ndarray:
    """Images that the checkpoint takes."""
    rng = np.random.default_rng(batch)
    shape = (batch, *checkpoint.image_shape)
    return rng.uniform(-1, 1, shape).astype(np.float32)


def logits(checkpoint: Checkpoint, image: np.ndarray, **overrides) -> np.ndarray:
    """What the model gives, in float32."""
    import jax

    model = build_model(**{**checkpoint.model, **overrides})
    params = jax.tree.map(jax.numpy.asarray, checkpoint.params)
    y, _ = jax.jit(model.apply)({"params": params}, image)
    return np.asarray(y, np.float32)

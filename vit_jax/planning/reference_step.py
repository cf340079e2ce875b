# SPDX-License-Identifier: Apache-2.0
"""The training step that compiled benchmarks compare between programs and versions.

Data parallel on all cores of a slice: bfloat16 computation, float32 parameters, no
dropout, one linear head of 1,000 classes, softmax loss, AdamW with a bfloat16 first
moment and decoupled decay, gradients clipped to a norm of 1, nothing computed again.
"""

from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import losses, sharding
from vit_jax.models import build_model
from vit_jax.optim import build_optimizer
from vit_jax.tpu import compiler, cost
from vit_jax.tpu.compiler import Slice
from vit_jax.tpu.cost import Cost
from vit_jax.train.state import TrainState
from vit_jax.train.step import make_update

NUM_CLASSES = 1000


def compile_reference(
    name: str,
    *,
    images_per_core: int,
    resolution: int,
    slice_: Slice,
    shard_update: bool = True,
    **overrides: Any,
) -> tuple[Cost, Any]:
    """Compiles the reference step of a model.

    Args:
      name: Of the model.
      images_per_core: Images a step on each core.
      resolution: Side of the images in pixels.
      slice_: What to compile for.
      shard_update: Whether parameters and moments are split over the cores.
      **overrides: Fields of the model.

    Returns:
      What it costs, and the compiled program.

    Raises:
      UserError: An unknown model or field.
      OutOfMemoryError: It does not fit.
    """
    mesh = sharding.make_mesh(devices=slice_.devices)
    fields = {"num_classes": NUM_CLASSES, "dtype": "bfloat16", **overrides}
    model = build_model(name, **fields)
    image = jnp.zeros((1, resolution, resolution, 3))
    shapes = jax.eval_shape(
        lambda key: model.init(key, image, train=False)["params"], jax.random.key(0)
    )
    tx = build_optimizer(
        shapes,
        lr=1e-3,
        total_steps=10**6,
        weight_decay=0.1,
        clip_norm=1.0,
        mu_dtype="bfloat16",
    ).tx
    state = jax.eval_shape(
        lambda params: TrainState.create(params, tx=tx, averaged=False), shapes
    )
    places = sharding.tree_shardings(state, mesh, over_data=shard_update)
    state = jax.tree.map(_placed, state, places)
    size, on_batch = images_per_core * mesh.size, sharding.batch_sharding(mesh)
    images = jax.ShapeDtypeStruct((size, *image.shape[1:]), image.dtype)
    labels = jax.ShapeDtypeStruct((size,), jnp.int32)
    batch = {"image": _placed(images, on_batch), "label": _placed(labels, on_batch)}

    def apply(params: Any, batch: Any, rngs: Any) -> jax.Array:
        image = batch["image"]
        return model.apply({"params": params}, image, train=True, rngs=rngs)[0]

    update = make_update(
        apply,
        losses.build_loss(),
        tx,
        key=jax.random.key(0),
        gathering=sharding.make_gathering(
            shapes, mesh, None, "bfloat16", over_data=shard_update
        ),
    )
    traced, compiled, seconds = compiler.compile_for_tpu(
        update, (state, batch), donate_argnums=0, out_shardings=(places, None)
    )
    core = slice_.chip.core
    return cost.measure(traced, compiled, core, mesh.size, seconds), compiled


def _placed(leaf: Any, place: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

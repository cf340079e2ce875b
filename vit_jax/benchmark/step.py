# SPDX-License-Identifier: Apache-2.0
"""Training steps of a model with 1,000 classes, on a batch that lies on the device."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh

from vit_jax import losses, models, sharding
from vit_jax.benchmark import timing
from vit_jax.models import flops
from vit_jax.optim import build_optimizer
from vit_jax.train.state import TrainState
from vit_jax.train.step import make_update

NUM_CLASSES = 1000


def measure(
    name: str,
    *,
    batch_size: int,
    resolution: int,
    dtype: str,
    steps: int,
    overrides: Mapping[str, Any],
) -> dict[str, Any]:
    """Times steps of AdamW on all devices.

    `tflops_per_second` are those of the model, three times the forward pass in
    operations of two for a multiply-add, whatever the program computes again.

    Args:
      name: Of the model.
      batch_size: Images a step over all devices.
      resolution: Side of the images in pixels.
      dtype: Of the computation.
      steps: How many to time, after the first.
      overrides: Fields of the model.

    Raises:
      UserError: An unknown model, or a batch that the devices cannot share.
    """
    mesh = sharding.make_mesh()
    sharding.check_batch_size(batch_size, mesh, "--batch_size")
    fields = {"num_classes": NUM_CLASSES, "dtype": dtype, **overrides}
    model = models.build_model(name, **fields)
    state, tx = make_state(model, resolution, mesh)
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))

    def apply(params: Any, batch: Any, rngs: Any) -> jax.Array:
        image = batch["image"]
        return model.apply({"params": params}, image, train=True, rngs=rngs)[0]

    rng = np.random.default_rng(0)
    shape = (batch_size, resolution, resolution, 3)
    batch = {
        "image": rng.standard_normal(shape, np.float32),
        "label": rng.integers(0, NUM_CLASSES, batch_size, np.int32),
    }
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    update = jax.jit(
        make_update(apply, losses.build_loss(), tx, key=jax.random.key(0)),
        donate_argnums=0,
        out_shardings=(sharding.replicated(mesh), None),
    )

    def step() -> None:
        nonlocal state
        state, measured = update(state, batch)
        jax.block_until_ready(measured)

    first, seconds = timing.time_calls(step, steps)
    rate = timing.rate(seconds, batch_size)
    operations = 6 * flops.multiply_adds(model, resolution)
    return {
        "model": name,
        "parameters": num_parameters,
        "resolution": resolution,
        "dtype": fields["dtype"],
        "overrides": dict(overrides),
        **rate,
        "tflops_per_second": round(rate["images_per_second"] * operations / 1e12, 3),
        "first_step_seconds": round(first, 3),
        "devices": jax.device_count(),
        "device": jax.devices()[0].device_kind,
    }


def make_state(
    model: nn.Module, resolution: int, mesh: Mesh
) -> tuple[TrainState, optax.GradientTransformation]:
    """Makes the state of AdamW before the first step, whole on every device.

    Args:
      model: The model.
      resolution: Side of its images in pixels.
      mesh: The devices.

    Returns:
      The state and its optimizer.
    """
    image = np.zeros((1, resolution, resolution, 3), np.float32)

    def init(key: jax.Array) -> Any:
        return model.init(key, image, train=False)["params"]

    key = jax.random.key(0)
    shapes = jax.eval_shape(init, key)
    tx = build_optimizer(shapes, lr=1e-3, total_steps=10**6, weight_decay=0.1).tx
    create = jax.jit(
        lambda key: TrainState.create(init(key), tx=tx, averaged=False),
        out_shardings=sharding.replicated(mesh),
    )
    return create(key), tx

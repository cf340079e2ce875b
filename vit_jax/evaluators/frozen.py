# SPDX-License-Identifier: Apache-2.0
"""A checkpoint made ready to be evaluated on the devices of this machine."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import sharding
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.evaluators.subject import Subject
from vit_jax.models import build_model, catalog, presets


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A model with its weights and its preprocessing.

    Attributes:
      subject: The model.
      params: The weights, float32, on every device.
      ops: How pictures are made into its inputs.
    """

    subject: Subject
    params: Any
    ops: str


def freeze(
    checkpoint: Checkpoint,
    mesh: Mesh,
    *,
    resolution: int | None = None,
    ops: str | None = None,
) -> Frozen:
    """Builds the model of a checkpoint and puts its weights on the devices.

    Args:
      checkpoint: What to build.
      mesh: The device mesh.
      resolution: Side of the images, where that is not the checkpoint's own; a
        position table is then resized by the method of the weights' origin.
      ops: The preprocessing; None takes that of the checkpoint, or for another
        resolution that of the weights' origin.

    Raises:
      UserError: The preprocessing is unknown, or the model cannot be built.
    """
    fields: dict[str, Any] = dict(checkpoint.model)
    image_shape = checkpoint.image_shape
    name = str(fields.get("preset") or catalog.find(fields["name"]).preset)
    preset = presets.find(name)
    if resolution is not None:
        image_shape = (resolution, resolution, image_shape[2])
        ops = ops or preset.evaluation_ops(resolution)
    model = build_model(**fields)
    if image_shape != checkpoint.image_shape and hasattr(model, "resize_positions"):
        model = build_model(**{**fields, "resize_positions": preset.position_resize})
    ops = ops or checkpoint.preprocessing
    if ops is None:
        raise UserError(
            "the checkpoint tells no preprocessing; give it, such as "
            f"--ops='{preset.evaluation_ops(image_shape[0])}'"
        )
    params = jax.tree.map(_as_float32, checkpoint.params)
    params = jax.device_put(params, sharding.replicated(mesh))
    return Frozen(Subject(model, params, image_shape), params, ops)


def _as_float32(leaf: Any) -> Any:
    leaf = np.asarray(leaf)
    return leaf.astype(np.float32) if jax.numpy.issubdtype(leaf.dtype, "f") else leaf

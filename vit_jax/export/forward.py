# SPDX-License-Identifier: Apache-2.0
"""What every exported file holds: the forward function, and a description of it."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from jax import export

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import build_model, stacking

INPUT, OUTPUT = "image", "logits"
MAX_BYTES = 2**31 - 2**24
"""Most bytes of weights: the files count in 31 bits, and hold a little beside."""


def forward(
    checkpoint: Checkpoint, form: str, **overrides: Any
) -> tuple[Callable[[jax.Array], jax.Array], jax.ShapeDtypeStruct]:
    """Returns the function from images to float32 logits, and what it takes.

    Args:
      checkpoint: Model and weights, which the function holds.
      form: What it becomes, for the message.
      **overrides: Fields of the model that the export needs otherwise.

    Raises:
      UserError: Weights that are too large for one file, or a model without logits.
    """
    checkpoint = _unscanned(checkpoint)
    model = build_model(**{**checkpoint.model, **overrides})
    if not checkpoint.model["num_classes"]:
        raise UserError(
            f"the checkpoint has no head, so there are no logits to write as {form}; "
            "fine-tune it first"
        )
    size = sum(leaf.nbytes for leaf in trees.flatten(checkpoint.params).values())
    if size > MAX_BYTES:
        raise UserError(
            f"the weights have {size / 1e9:.1f} GB, and one {form} file holds at most "
            f"{MAX_BYTES / 1e9:.1f} GB; export a smaller model"
        )

    params = jax.tree.map(jnp.asarray, checkpoint.params)

    def logits(image: jax.Array) -> jax.Array:
        y, _ = model.apply({"params": params}, image, train=False)
        return y.astype(jnp.float32)

    (batch,) = export.symbolic_shape("b")
    shape = (batch, *checkpoint.image_shape)
    return logits, jax.ShapeDtypeStruct(shape, jnp.float32)


def _unscanned(checkpoint: Checkpoint) -> Checkpoint:
    """Takes apart the blocks that a run with `mesh.scan` keeps as one array."""
    if "encoderblock" not in checkpoint.params.get("Transformer", {}):
        return checkpoint
    return dataclasses.replace(
        checkpoint,
        params=stacking.unstack_blocks(checkpoint.params),
        model={**checkpoint.model, "scan": False},
    )


def write(
    path: str, data: bytes, checkpoint: Checkpoint, more: Mapping[str, Any]
) -> None:
    """Writes a file, and `PATH.json` beside it.

    Args:
      path: The file.
      data: What it holds.
      checkpoint: What it was made of.
      more: What the form adds to the description.

    Raises:
      UserError: A folder that cannot be written.
    """
    size = ", ".join(map(str, checkpoint.image_shape))
    description = {
        **more,
        "input": f"{INPUT}: float32 (b, {size}), preprocessed",
        "output": f"{OUTPUT}: float32 (b, {checkpoint.model['num_classes']})",
        **checkpoint.description(),
    }
    text = json.dumps(description, indent=2) + "\n"
    try:
        for name, content in ((path, data), (f"{path}.json", text.encode())):
            target = epath.Path(name).expanduser()
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.part")
            partial.write_bytes(content)
            partial.replace(target)
    except OSError as err:
        raise UserError(
            f"cannot write {path}: {err.strerror or err}; give another path"
        ) from err

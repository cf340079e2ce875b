# SPDX-License-Identifier: Apache-2.0
"""Our own file: safetensors with our names, and the description as metadata."""

import json
import os
from collections.abc import Mapping

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.checkpoints.files import TensorFile, write_safetensors
from vit_jax.errors import UserError

KEY = "vit_jax"


def matches(metadata: Mapping[str, str]) -> bool:
    """Whether the metadata of a file is that of ours."""
    return KEY in metadata


def read(file: TensorFile) -> Checkpoint:
    """Makes a checkpoint of the content of a file of ours.

    Raises:
      UserError: The description in it is damaged or does not say enough.
    """
    try:
        description = json.loads(file.metadata[KEY])
        keys = {str(key): value for key, value in description.items()}
    except (ValueError, AttributeError) as err:
        raise UserError(
            f"the description in the file's metadata, {KEY!r}, is damaged ({err}); "
            "convert the original again"
        ) from err
    params = trees.unflatten(file.tensors)
    return Checkpoint.from_description(keys, params, f"the metadata {KEY!r}")


def write(
    checkpoint: Checkpoint, path: str | os.PathLike[str], *, overwrite: bool = False
) -> None:
    """Writes a file of ours.

    Raises:
      UserError: The file exists and may not be replaced, or cannot be written.
    """
    text = json.dumps(checkpoint.description(), sort_keys=True)
    write_safetensors(
        path, trees.flatten(checkpoint.params), {KEY: text}, overwrite=overwrite
    )

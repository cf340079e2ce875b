# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as StableHLO, in the file format of `jax.export`.

    function = jax.export.deserialize(open("model.stablehlo", "rb").read())
    logits = function.call(image)

JAX reads it for six months at least, see the compatibility that `jax.export` promises.
"""

from collections.abc import Sequence

import jax
from jax import export

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.export.forward import forward, write

PLATFORMS = ("cpu", "cuda", "tpu")


def export_stablehlo(
    checkpoint: Checkpoint, path: str, platforms: Sequence[str] = PLATFORMS
) -> None:
    """Writes a checkpoint as a file that runs with JAX alone.

    The function takes preprocessed images, float32 (b, h, w, 3) for any b, and gives
    logits, float32 (b, k). Each platform gets the forms that are fast on it.

    Args:
      checkpoint: Model and weights.
      path: The file; its description goes to `PATH.json`.
      platforms: Where it is to run, of `PLATFORMS` and whatever else JAX names.

    Raises:
      UserError: Weights that are too large for one file, a model without logits, or a
        folder that cannot be written.
    """
    function, image = forward(checkpoint, "stablehlo")
    exported = export.export(jax.jit(function), platforms=list(platforms))(image)
    more = {
        "form": "stablehlo",
        "platforms": list(platforms),
        "jax": jax.__version__,
        "calling_convention": exported.calling_convention_version,
    }
    write(path, bytes(exported.serialize()), checkpoint, more)

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as ONNX, through the package jax2onnx.

It is not among our requirements, because it asks for an older Orbax than ours, though
it does without: `INSTALL` gets it beside ours.
"""

import importlib
import logging as python_logging
from typing import Any

import jax

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.export.forward import INPUT, OUTPUT, forward, write
from vit_jax.export.plain_graph import evaluate

INSTALL = "pip install '.[onnx]' && pip install --no-deps jax2onnx==0.17.1"
OPSET = 23
"""Version of the operators; ONNX Runtime knows it since 1.22 (May 2025)."""


def export_onnx(checkpoint: Checkpoint, path: str) -> None:
    """Writes a checkpoint as an ONNX file.

    It has one input `image`, preprocessed images, float32 (b, h, w, 3) for any b, and
    one output `logits`, float32 (b, k). It computes in float32 whatever the model's
    own dtype is, as ONNX Runtime has few other operators for a CPU.

    Args:
      checkpoint: Model and weights.
      path: The file; its description goes to `PATH.json`.

    Raises:
      UserError: jax2onnx is not installed, weights that are too large for one file, a
        model without logits, or a folder that cannot be written.
    """
    jax2onnx = _import()
    function, image = forward(checkpoint, "onnx", dtype="float32")
    # Traced before jax2onnx replaces functions of Flax by its own.
    graph = jax.make_jaxpr(function)(image)
    model = jax2onnx.to_onnx(
        lambda image: evaluate(graph, image)[0],
        inputs=[image],
        model_name=checkpoint.model["name"],
        opset=OPSET,
        input_names=[INPUT],
        output_names=[OUTPUT],
    )
    more = {"form": "onnx", "opset": OPSET, "jax": jax.__version__}
    write(path, model.SerializeToString(), checkpoint, more)


def _import() -> Any:
    # It tells of every example of its own that it cannot import, and of shapes.
    for name in ("jax2onnx", "onnx_ir"):
        python_logging.getLogger(name).setLevel(python_logging.ERROR)
    try:
        return importlib.import_module("jax2onnx")
    except ImportError as err:
        raise UserError(
            f"export to onnx needs the extra onnx ({err}); run: {INSTALL}"
        ) from err

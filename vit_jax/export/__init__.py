# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as one file that runs without this package.

`export_stablehlo` writes what JAX reads, `export_onnx` what ONNX Runtime and others
read. Either holds the forward function with its weights, for any number of images of
the checkpoint's size. `PATH.json` beside it says what the numbers mean.
"""

from vit_jax.export.onnx import export_onnx
from vit_jax.export.stablehlo import export_stablehlo

__all__ = ["export_onnx", "export_stablehlo"]

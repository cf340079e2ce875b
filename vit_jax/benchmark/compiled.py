# SPDX-License-Identifier: Apache-2.0
"""The reference step of a model, compiled for a TPU slice on a machine without TPUs."""

from collections.abc import Mapping
from typing import Any

from vit_jax import planning
from vit_jax.errors import UserError
from vit_jax.models import build_model, flops
from vit_jax.planning.reference_step import NUM_CLASSES
from vit_jax.tpu import compiler


def measure(
    name: str,
    *,
    images_per_core: int,
    resolution: int,
    topology: str,
    shard_update: bool,
    overrides: Mapping[str, Any],
    program: str | None,
) -> dict[str, Any]:
    """Compiles the step; `compiler.set_up` must have come before JAX was imported.

    Args:
      name: Of the model.
      images_per_core: Images a step on each core.
      resolution: Side of the images in pixels.
      topology: The slice.
      shard_update: Whether parameters and moments are split over the cores.
      overrides: Fields of the model.
      program: File for the program's text, or None.

    Raises:
      UserError: An unknown model, field or slice, or a step that does not fit.
    """
    slice_ = compiler.open_slice(topology)
    try:
        cost, compiled = planning.compile_reference(
            name,
            images_per_core=images_per_core,
            resolution=resolution,
            slice_=slice_,
            shard_update=shard_update,
            **overrides,
        )
    except compiler.OutOfMemoryError as err:
        raise UserError(
            f"{name} with {images_per_core} images a core {err}; use fewer"
        ) from err
    if program:
        with open(program, "w", encoding="utf-8") as file:
            file.write(compiled.as_text())
    model = build_model(name, **{"num_classes": NUM_CLASSES, **overrides})
    images = images_per_core * len(slice_.devices)
    optimal = cost.compiler_seconds
    return {
        "model": name,
        "images_per_core": images_per_core,
        "topology": topology,
        "cores": len(slice_.devices),
        "overrides": dict(overrides),
        "shard_update": shard_update,
        "roofline_ms": None if optimal is None else round(1000 * optimal, 2),
        "compute_ms": round(1000 * cost.roofline.compute, 2),
        "hbm_mb_per_image": round(cost.hbm_bytes / images_per_core / 1e6, 1),
        "temp_gb": round(cost.temp_bytes / 1e9, 3),
        "argument_gb": round(cost.argument_bytes / 1e9, 3),
        "multiply_adds_per_image": cost.flops // 2 // images,
        "forward_multiply_adds": flops.multiply_adds(model, resolution),
        "collectives": {k: list(v) for k, v in cost.collectives.items()},
        "compile_seconds": round(cost.compile_seconds, 1),
    }

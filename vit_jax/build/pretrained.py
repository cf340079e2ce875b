# SPDX-License-Identifier: Apache-2.0
"""Starting a run from a checkpoint: the section `init` of a config.

The checkpoint brings its architecture, its numerics and its normalisation of pixels;
the config adds a head for its own classes, another resolution, dropout and so on.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.config import section_call
from vit_jax.convert import load_checkpoint
from vit_jax.errors import UserError
from vit_jax.models import catalog, presets, stacking
from vit_jax.registry import parse_pipeline

Shape = tuple[int, int, int]

NORMALIZE = "{normalize}"
"""Stands in an op string for the normalisation that the checkpoint was trained with."""

# What belongs to a head and its classes is not taken from a checkpoint.
_OF_HEADS = (
    "num_classes",
    "patch_outputs",
    "representation_size",
    "representation_activation",
    "head_bias",
    "resolution",
)


@dataclasses.dataclass(frozen=True)
class Pretrained:
    """A checkpoint to start from.

    Attributes:
      checkpoint: The weights.
      reset: Patterns of whole names of parameters that start anew.
    """

    checkpoint: Checkpoint
    reset: Sequence[str]


def load(section: Mapping[str, Any] | None) -> Pretrained | None:
    """Reads the checkpoint that the section `init` names, if there is one.

    Raises:
      UserError: An unknown field, or a checkpoint that cannot be read.
    """
    return section_call(_load, section, "init") if section else None


def _load(
    *,
    checkpoint: str | None = None,
    preset: str | None = None,
    reset: Sequence[str] = ("head(_dist)?/.*",),
) -> Pretrained:
    """Reads a checkpoint.

    Args:
      checkpoint: A CHECKPOINT, see README.md.
      preset: Numerics of a file that does not tell them.
      reset: Patterns of names that start anew; the kernel of the head then is zero.
    """
    if checkpoint is None:
        raise UserError(
            "config.init.checkpoint is missing; name the weights to start from with "
            "--init=CHECKPOINT"
        )
    return Pretrained(load_checkpoint(checkpoint, preset), tuple(reset))


def fill(fields: Mapping[str, Any], start: Pretrained | None) -> dict[str, Any]:
    """Fills in what the config leaves to the checkpoint.

    Args:
      fields: The config as plain dictionaries.
      start: What the run starts from.

    Returns:
      The config with a whole `model` section and op strings without `{normalize}`.

    Raises:
      UserError: The config leaves something open, and there is no checkpoint.
    """
    result = dict(fields)
    if start is None:
        _refuse_open_fields(fields)
        return result
    given = {k: v for k, v in (fields.get("model") or {}).items() if v is not None}
    source = start.checkpoint.model
    own = {key: value for key, value in source.items() if key not in _OF_HEADS}
    if given.get("name", source["name"]) == source["name"]:
        for key in sorted(own.keys() & given.keys() - {"name"}):
            if own[key] != given[key]:
                logging.warning(
                    "config.model.%s is %r, but the checkpoint has %r; the config's is "
                    "used",
                    key,
                    given[key],
                    own[key],
                )
        given = own | given
    result["model"] = given | {"num_classes": given.get("num_classes")}
    normalization = _normalization(start.checkpoint)

    def fill_ops(section: Mapping[str, Any], name: str) -> dict[str, Any]:
        ops = section.get("ops")
        if not isinstance(ops, str):
            return dict(section)
        ops = ops.replace(NORMALIZE, normalization)
        _warn_of_other_pixels(ops, normalization, name)
        return {**section, "ops": ops}

    result["data"] = fill_ops(fields.get("data") or {}, "data")
    result["evaluators"] = {
        name: fill_ops(section, f"evaluators.{name}")
        for name, section in (fields.get("evaluators") or {}).items()
    }
    return result


def apply(
    start: Pretrained,
    params: Any,
    model: Mapping[str, Any],
    image_shape: Shape,
    frozen: Collection[str] = (),
) -> Any:
    """Puts the checkpoint's weights in the place of the first parameters.

    Args:
      start: What to start from.
      params: Parameters as the model initialises them, on their devices.
      model: The section `model` of the config.
      image_shape: (height, width, channels) of the images to train on.
      frozen: Names of the parameters that are not trained.

    Returns:
      The parameters, in the same places; what was not taken as it was is logged.

    Raises:
      UserError: Weights that have no place in the model, or too few of them, or
        parameters that start anew and are frozen.
    """
    from vit_jax.checkpoints import adapt

    target = trees.flatten(params)
    source = start.checkpoint.model
    preset = source.get("preset") or catalog.find(source["name"]).preset
    loaded = start.checkpoint.params
    if any("encoderblock/" in name for name in target):
        loaded = stacking.stack_blocks(loaded)
    adapted, report = adapt.adapt(
        trees.flatten(loaded),
        target,
        position_resize=presets.find(preset).position_resize,
        reset=start.reset,
        grids=(
            _grid(source, start.checkpoint.image_shape),
            _grid(model, image_shape),
        ),
    )
    logging.info("weights from the checkpoint: %s", report.summary())
    anew = report.names("re-initialised")
    if stuck := [name for name in anew if name in frozen]:
        raise UserError(
            f"config.optimizer.freeze_rules freeze {', '.join(stuck[:3])}, which start "
            "anew and so would never learn anything; train what starts anew, or take "
            "it from the checkpoint (config.init.reset says what starts anew)"
        )
    for name in anew:
        if name in ("head/kernel", "head_dist/kernel"):
            # Zero, so that the first predictions favour no class (section 3.2 of
            # arXiv:2010.11929), whatever the family draws when it starts from scratch.
            adapted[name] = np.zeros(target[name].shape, target[name].dtype)
    leaves = [
        jax.device_put(adapted[name], leaf.sharding) for name, leaf in target.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def _grid(model: Mapping[str, Any], image_shape: Shape) -> tuple[int, int] | None:
    """Returns rows and columns of patches; None where there are no patches."""
    height, width, _ = image_shape
    variant = catalog.find(model["name"])
    fields = {**variant.fields, **model}
    if variant.family not in ("vit", "hybrid", "axial-vit"):
        return None
    patch = fields.get("patch_size", 1)
    rows, columns = patch if isinstance(patch, tuple | list) else (patch, patch)
    if "stages" in fields and variant.family == "hybrid":
        # The root halves the image twice, and each stage after the first once.
        stride = 4 * 2 ** max(len(fields["stages"]) - 1, 0)
        rows, columns = rows * stride, columns * stride
    return height // rows, width // columns


def _normalization(checkpoint: Checkpoint) -> str:
    """Returns the ops of a checkpoint's preprocessing that scale pixels."""
    ops = [part.strip() for part in (checkpoint.preprocessing or "").split("|")]
    scaling = [op for op in ops if _scales(op)]
    if not scaling:
        raise UserError(
            "the checkpoint does not tell how its pixels are normalised; name its "
            "numerics with config.init.preset"
        )
    return "|".join(scaling)


def _scales(op: str) -> bool:
    return op.startswith(("value_range", "normalize"))


def _warn_of_other_pixels(ops: str, normalization: str, name: str) -> None:
    found = [op.strip() for op in ops.split("|") if _scales(op.strip())]
    if parse_pipeline("|".join(found)) != parse_pipeline(normalization):
        logging.warning(
            "config.%s.ops normalises pixels with %s, but the checkpoint was trained "
            "with %s; the config's is used",
            name,
            " and ".join(found) or "nothing",
            normalization,
        )


def _refuse_open_fields(fields: Mapping[str, Any]) -> None:
    sections = [fields.get("data") or {}, *(fields.get("evaluators") or {}).values()]
    open_ops = any(NORMALIZE in str(section.get("ops")) for section in sections)
    if open_ops or (fields.get("model") or {}).get("name") is None:
        raise UserError(
            "the config leaves its model or its normalisation to a checkpoint, and "
            "none is given; use vit_jax.finetune with --init=CHECKPOINT"
        )

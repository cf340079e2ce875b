# SPDX-License-Identifier: Apache-2.0
"""Writing a folder of transformers."""

import json
import os
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from flax import linen as nn

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.checkpoints.files import SAFETENSORS, write_safetensors
from vit_jax.convert import rules
from vit_jax.convert.huggingface.entries import config_of
from vit_jax.convert.huggingface.layouts import Tensors, rules_of, with_prefix
from vit_jax.convert.huggingface.processor import processor_of
from vit_jax.convert.huggingface.reading import CONFIG, DESCRIPTION, PROCESSOR
from vit_jax.convert.huggingface.target import check_sizes, layout_for
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog


def tensors(checkpoint: Checkpoint) -> Tensors:
    """Returns a checkpoint's arrays by the names that transformers has on disk.

    Raises:
      UserError: A model that transformers does not have.
    """
    kind, model = _target(checkpoint)
    return _tensors(checkpoint, kind, model)


def write(checkpoint: Checkpoint, directory: str | os.PathLike[str]) -> None:
    """Writes a folder that `AutoModelForImageClassification` or `AutoModel` opens.

    A trunk, with `num_classes=0`, is for `AutoModel`. preprocessor_config.json is left
    out, with a warning, where none does what the preprocessing does.

    Raises:
      UserError: A model that transformers does not have, or a folder that is not empty
        or cannot be written.
    """
    kind, model = _target(checkpoint)
    arrays = _tensors(checkpoint, kind, model)
    files = {CONFIG: config_of(checkpoint, kind, model, arrays)}
    try:
        files[PROCESSOR] = processor_of(checkpoint.preprocessing or "")
    except UserError as err:
        logging.warning("%s left out: %s", PROCESSOR, err)
    folder = epath.Path(directory)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; give another")
    # Whole or not at all: it has its name once everything is in it.
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        text = json.dumps(checkpoint.description(), sort_keys=True)
        metadata = {"format": "pt", DESCRIPTION: text}
        write_safetensors(part / SAFETENSORS, arrays, metadata)
        for name, content in files.items():
            (part / name).write_text(json.dumps(content, indent=2) + "\n")
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
    except OSError as err:
        raise UserError(
            f"cannot write {folder}: {err.strerror or err}; free space there or give "
            "another folder"
        ) from err
    finally:
        if part.exists():
            part.rmtree()


def _target(checkpoint: Checkpoint) -> tuple[str, nn.Module]:
    model = build_model(**checkpoint.model)
    row = catalog.find(checkpoint.model["name"])
    preset = checkpoint.model.get("preset") or row.preset
    kind = layout_for(row.family, model, preset)
    check_sizes(kind, model, checkpoint.image_shape)
    return kind, model


def _tensors(checkpoint: Checkpoint, kind: str, model: Any) -> Tensors:
    flat = trees.flatten(checkpoint.params)
    if kind.startswith("dinov2") and model.layer_scale is None:
        ones = np.ones(model.width, flat["cls"].dtype)
        scales = [f"LayerScale_{j}/scale" for j in (0, 1)]
        blocks = [f"Transformer/encoderblock_{i}" for i in range(model.depth)]
        flat |= {f"{block}/{scale}": ones for block in blocks for scale in scales}
    gated = getattr(model, "mlp", None) == "swiglu"
    heads = getattr(model, "num_heads", None)
    what = f"transformers' {kind}"
    arrays = rules.to_theirs(rules_of(kind, gated), flat, heads, what)
    if kind.startswith("dinov2"):
        # Its training masks patches; ours does not, and evaluation does not either.
        mask = np.zeros((1, model.width), flat["cls"].dtype)
        arrays["embeddings.mask_token"] = mask
    return with_prefix(kind, arrays) if model.num_classes else arrays

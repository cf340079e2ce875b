# SPDX-License-Identifier: Apache-2.0
"""Reading a folder of transformers.

What config.json and preprocessor_config.json tell wins over the preset. In a folder of
ours the description beside the arrays tells the rest.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.checkpoints.files import read_directory
from vit_jax.convert import rules
from vit_jax.convert.huggingface.config import Told, read_config
from vit_jax.convert.huggingface.layouts import (
    LAYOUTS,
    Tensors,
    disk_names,
    layout_of,
    rules_of,
)
from vit_jax.convert.huggingface.processor import evaluation_ops
from vit_jax.convert.identify import identify
from vit_jax.convert.identify.shapes import Pair
from vit_jax.errors import UserError
from vit_jax.models import build_model, presets

CONFIG = "config.json"
PROCESSOR = "preprocessor_config.json"
# Key of our description in the metadata; not that of our own files, whose names of
# arrays are others.
DESCRIPTION = "vit_jax_description"
# Their models take images of one size; the others resize positions or have none.
_ONE_SIZE = ("vit", "deit", "siglip", "siglip_vision_model", "vit-hybrid")
_RESIZE = {"dinov2": "bicubic", "dinov2_with_registers": "bicubic-antialias"}
_TABLE = "embeddings.position_embeddings"
_DISTILLATION = "embeddings.distillation_token"


def matches(directory: str | os.PathLike[str]) -> bool:
    """Whether a folder has the config.json of transformers."""
    config = epath.Path(directory) / CONFIG
    return config.exists() and "model_type" in _json(config)


def read(directory: str | os.PathLike[str], preset: str | None = None) -> Checkpoint:
    """Reads a folder.

    Args:
      directory: With config.json, the weights, and preprocessor_config.json, without
        which the preset's preprocessing is taken.
      preset: Key of `presets.PRESETS` whose numerics and preprocessing are to be taken
        in place of the folder's own.

    Raises:
      UserError: A file that is missing or damaged, or another kind of model.
    """
    folder = epath.Path(directory)
    config = _json(folder / CONFIG)
    kind = layout_of(config, str(folder / CONFIG))
    told = read_config(kind, config, str(folder / CONFIG))
    file = read_directory(directory)
    arrays = disk_names(kind, file.tensors)
    gated = any(".weights_in." in name for name in arrays)
    if kind == "deit" and "classifier.weight" in arrays:
        kind, arrays = "vit", _with_register(arrays)
    what = f"transformers' {kind}"
    flat = rules.to_ours(rules_of(kind, gated), arrays, told.heads, what)

    described = None if preset else _described(file.metadata)
    ops, image = (None, None) if preset else _preprocessing(folder, kind, told)
    known = described.model if described else {}
    fields = _fields(kind, told, known, "head/kernel" in flat)
    if preset:
        fields = _without_numerics(fields, preset)
    if described and image is None and kind not in _ONE_SIZE:
        image = described.image_shape[:2]
    if kind in _RESIZE and image not in (None, told.size):
        fields |= {"resolution": told.size, "resize_positions": _RESIZE[kind]}
    size = told.size or image
    given = None if size is None else (*size, 3)
    chosen = preset or known.get("preset") or LAYOUTS[kind].preset
    model, shape = identify(flat, preset=chosen, image_shape=given, fields=fields)
    if described and build_model(**known) == build_model(**model):
        # In the words that it was written with; JSON has made tuples lists.
        model = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
    if image is not None:
        shape = (*image, shape[2])
    if ops is None and described:
        ops = described.preprocessing
    elif ops is None and shape[0] == shape[1]:
        ops = presets.find(chosen).evaluation_ops(shape[0])
    names = told.class_names
    names = names if names and len(names) == model["num_classes"] else None
    return Checkpoint(trees.unflatten(flat), model, shape, ops, names, told.loss)


def _json(path: epath.Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as err:
        raise UserError(
            f"no file {path}; give a folder as save_pretrained() writes it"
        ) from err
    except (OSError, ValueError) as err:
        raise UserError(
            f"{path} is damaged ({err}); download or write it again"
        ) from err
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no dictionary; download or write it again")
    return content


def _described(metadata: Mapping[str, str]) -> Checkpoint | None:
    """Returns the description that `write` put beside the arrays, if it did."""
    if DESCRIPTION not in metadata:
        return None
    try:
        content = json.loads(metadata[DESCRIPTION])
        entries = {str(key): value for key, value in content.items()}
    except (ValueError, AttributeError) as err:
        raise UserError(
            f"the description in the metadata, {DESCRIPTION!r}, is damaged ({err}); "
            "write the folder again"
        ) from err
    return Checkpoint.from_description(entries, {}, f"the metadata {DESCRIPTION!r}")


def _preprocessing(
    folder: epath.Path, kind: str, told: Told
) -> tuple[str | None, Pair | None]:
    """Returns the folder's ops, if it has any, and the size of what they make."""
    path = folder / PROCESSOR
    if not path.exists():
        return None, None
    ops, size = evaluation_ops(_json(path), kind, str(path))
    if kind in _ONE_SIZE and size not in (None, told.size):
        raise UserError(
            f"{path} makes images of {size}, but the model takes {told.size} only; "
            "mend one of the two, or remove that file for the preset's preprocessing"
        )
    return ops, size


def _fields(
    kind: str, told: Told, described: Mapping[str, Any], has_head: bool
) -> dict[str, Any]:
    """Returns what is known of the model's fields besides its arrays."""
    # Files hold blocks one by one, whatever the model that wrote them did.
    other = ("name", "num_classes", "preset", "scan")
    fields = {k: v for k, v in described.items() if k not in other} | told.fields
    if kind in _RESIZE:
        fields["pool"] = "cls_mean" if has_head else fields.get("pool", "cls")
    elif kind == "siglip" and has_head:
        fields["pool"] = "mean"
    return fields


def _without_numerics(fields: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """Takes out what the preset says, which was asked for in the folder's place."""
    wanted = presets.find(preset).fields
    other = {k: v for k, v in fields.items() if wanted.get(k, v) != v}
    if other:
        logging.warning(
            "the folder says %s, preset %s %s; the preset is taken",
            ", ".join(f"{key}={value!r}" for key, value in other.items()),
            preset,
            ", ".join(f"{key}={wanted[key]!r}" for key in other),
        )
    return {k: v for k, v in fields.items() if k not in other}


def _with_register(arrays: Tensors) -> Tensors:
    """Makes a register of DeiT's distillation token where nothing reads it.

    A register has no row in the table of positions, so the token's is added to it.
    """
    logging.info("the distillation token has no head; it is read as a register")
    table, token = arrays[_TABLE], arrays[_DISTILLATION]
    rest = {k: v for k, v in arrays.items() if k not in (_TABLE, _DISTILLATION)}
    return rest | {
        _TABLE: np.delete(table, 1, axis=1),
        "embeddings.register_tokens": token + table[:, 1:2],
    }

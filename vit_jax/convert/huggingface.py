# SPDX-License-Identifier: Apache-2.0
"""Folders of Hugging Face's transformers: config.json and model.safetensors.

`huggingface_layouts.py` has the layouts and their tables of names,
`huggingface_config.py` what config.json tells, `huggingface_target.py` what can be
written, `huggingface_processor.py` the preprocessing.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging
from etils import epath
from flax import linen as nn

from vit_jax import trees
from vit_jax.checkpoints import native
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.checkpoints.files import SAFETENSORS, read_directory, write_safetensors
from vit_jax.convert import rules
from vit_jax.convert.huggingface_config import LOSSES, Told, read_config
from vit_jax.convert.huggingface_layouts import (
    LAYOUTS,
    Tensors,
    disk_names,
    layout_of,
    rules_of,
    with_prefix,
)
from vit_jax.convert.huggingface_processor import evaluation_ops, processor_of
from vit_jax.convert.huggingface_target import (
    check_sizes,
    label_entries,
    layout_for,
    size_entries,
)
from vit_jax.convert.identify import identify
from vit_jax.convert.shapes import Pair
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, presets

CONFIG = "config.json"
PROCESSOR = "preprocessor_config.json"
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

    described = {} if preset else _described(file.metadata)
    ops, image = (None, None) if preset else _preprocessing(folder, kind, told)
    fields = _fields(kind, told, described.get("model") or {}, "head/kernel" in flat)
    chosen = preset or (described.get("model") or {}).get("preset")
    chosen = chosen or LAYOUTS[kind].preset
    if preset:
        fields = _without_numerics(fields, preset)
    if image != told.size and kind in _RESIZE and image and told.size:
        fields |= {"resolution": told.size, "resize_positions": _RESIZE[kind]}
    size = told.size or image or described.get("image_shape", ())[:2]
    given = (size[0], size[1], 3) if size else None
    model, shape = identify(flat, preset=chosen, image_shape=given, fields=fields)
    if image is not None:
        shape = (*image, shape[2])
    ops = ops or described.get("preprocessing")
    if ops is None and shape[0] == shape[1]:
        ops = presets.find(chosen).evaluation_ops(shape[0])
    names = told.class_names
    names = names if names and len(names) == model["num_classes"] else None
    return Checkpoint(trees.unflatten(flat), model, shape, ops, names, told.loss)


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
    files = {CONFIG: _config(checkpoint, kind, model, arrays)}
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
        metadata = {"format": "pt", native.KEY: text}
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


def _described(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Returns the description that `write` put beside the arrays, if it did."""
    try:
        content = json.loads(metadata.get(native.KEY, "{}"))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


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


def _target(checkpoint: Checkpoint) -> tuple[str, nn.Module]:
    model = build_model(**checkpoint.model)
    row = catalog.find(checkpoint.model["name"])
    preset = checkpoint.model.get("preset") or row.preset
    kind = layout_for(row.family, model, preset)
    check_sizes(kind, model, checkpoint.image_shape)
    return kind, model


def _tensors(checkpoint: Checkpoint, kind: str, model: Any) -> Tensors:
    flat = trees.flatten(checkpoint.params)
    if kind in _RESIZE and model.layer_scale is None:
        ones = np.ones(model.width, flat["cls"].dtype)
        scales = [f"LayerScale_{j}/scale" for j in (0, 1)]
        blocks = [f"Transformer/encoderblock_{i}" for i in range(model.depth)]
        flat |= {f"{block}/{scale}": ones for block in blocks for scale in scales}
    gated = getattr(model, "mlp", None) == "swiglu"
    heads = getattr(model, "num_heads", None)
    what = f"transformers' {kind}"
    arrays = rules.to_theirs(rules_of(kind, gated), flat, heads, what)
    if kind in _RESIZE:
        # Its training masks patches; ours does not, and evaluation does not either.
        mask = np.zeros((1, model.width), flat["cls"].dtype)
        arrays["embeddings.mask_token"] = mask
    return with_prefix(kind, arrays) if model.num_classes else arrays


def _config(
    checkpoint: Checkpoint, kind: str, model: Any, arrays: Tensors
) -> dict[str, Any]:
    layout = LAYOUTS[kind]
    architecture = (layout.heads if model.num_classes else layout.trunks)[0]
    entries = size_entries(kind, model, checkpoint.image_shape)
    if kind == "siglip":
        inner = entries | {"model_type": "siglip_vision_model"}
        entries = {"vision_config": inner}
    dtypes = {array.dtype.name for array in arrays.values()}
    config = {
        "architectures": [architecture],
        "model_type": kind,
        "dtype": dtypes.pop() if len(dtypes) == 1 else "float32",
        **entries,
    }
    if model.num_classes:
        config |= label_entries(checkpoint.class_names, model.num_classes)
        config["problem_type"] = LOSSES[checkpoint.loss]
    return config

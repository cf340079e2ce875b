# SPDX-License-Identifier: Apache-2.0
"""Files of arrays by name, told apart by their content: npz, safetensors, torch.

What the names mean is another matter: see `vit_jax/convert`.
"""

import dataclasses
import difflib
import io
import json
import os
import zipfile

import numpy as np
from absl import logging
from etils import epath

from vit_jax.checkpoints import npz, safetensors_file, torch_file
from vit_jax.checkpoints.npz import write_npz
from vit_jax.checkpoints.recognise import Form, form_of
from vit_jax.checkpoints.safetensors_file import write_safetensors
from vit_jax.errors import UserError

__all__ = [
    "TensorFile",
    "read_directory",
    "read_sharded",
    "read_tensors",
    "write_npz",
    "write_safetensors",
]

# What torch's wrappers of a model put before every name.
_WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")
# The image tower in a model of images and texts (open_clip).
_TOWER = "visual.trunk."

SAFETENSORS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TORCH = "pytorch_model.bin"


@dataclasses.dataclass(frozen=True)
class TensorFile:
    """What a file of weights holds.

    Attributes:
      tensors: Arrays by the names that the file gives them.
      metadata: Texts by name; only safetensors has them.
      form: What kind of file it was.
    """

    tensors: dict[str, np.ndarray]
    metadata: dict[str, str]
    form: Form


def read_tensors(path: str | os.PathLike[str]) -> TensorFile:
    """Reads every array of a file.

    Prefixes that wrappers of torch put before every name are taken off, and of a model
    with an image tower (`visual.trunk.`) the tower is taken; the log says so.

    Args:
      path: A file, local or in a bucket (`gs://...`); its suffix does not matter.

    Returns:
      The arrays, in the order of the file, and the metadata.

    Raises:
      UserError: There is no such file, or it is cut short, damaged, or something else.
    """
    origin = os.fspath(path)
    file = _read(origin)
    return dataclasses.replace(file, tensors=_without_prefixes(file.tensors, origin))


def read_directory(directory: str | os.PathLike[str]) -> TensorFile:
    """Reads the weights in a folder of the Hugging Face layout.

    Raises:
      UserError: The folder has no weights that can be read.
    """
    folder = epath.Path(directory)
    if (folder / SAFETENSORS).exists():
        return read_tensors(folder / SAFETENSORS)
    if (folder / INDEX).exists():
        return read_sharded(folder)
    if (folder / TORCH).exists():
        return read_tensors(folder / TORCH)
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; give one that has {SAFETENSORS}")
    names = sorted(entry.name for entry in folder.iterdir())
    shown = ", ".join(names[:8]) or "nothing"
    raise UserError(
        f"{folder} has none of {SAFETENSORS}, {INDEX} and {TORCH} (it has {shown}); "
        "weights in other forms, such as tf_model.h5, are not read: save them with "
        "save_pretrained()"
    )


def read_sharded(directory: str | os.PathLike[str]) -> TensorFile:
    """Reads weights that are spread over several safetensors files.

    Args:
      directory: A folder with `model.safetensors.index.json` and the files it names.

    Raises:
      UserError: The index is damaged, or a file or an array that it names is missing.
    """
    folder = epath.Path(directory)
    try:
        index = json.loads((folder / INDEX).read_text())["weight_map"]
        places = {str(name): str(shard) for name, shard in index.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise UserError(
            f"{folder / INDEX} is missing or damaged ({err}); download it again"
        ) from err
    found: dict[str, np.ndarray] = {}
    metadata: dict[str, str] = {}
    for shard in sorted(set(places.values())):
        if "/" in shard or "\\" in shard:
            raise UserError(
                f"{folder / INDEX} names {shard!r}, which is not in its folder; "
                "download the whole folder again"
            )
        part = _read(os.fspath(folder / shard))
        found |= part.tensors
        metadata |= part.metadata
    missing = [name for name in places if name not in found]
    if missing:
        raise UserError(
            f"{len(missing)} arrays are missing that {folder / INDEX} names, such as "
            f"{missing[0]} in {places[missing[0]]}; download the whole folder again"
        )
    tensors = _without_prefixes(found, os.fspath(folder))
    return TensorFile(tensors, metadata, "safetensors")


def _read(origin: str) -> TensorFile:
    metadata: dict[str, str] = {}
    with _open(origin) as file:
        form = form_of(file, origin)
        if form == "npz":
            with zipfile.ZipFile(file) as archive:
                tensors = npz.read(archive, origin)
        elif form == "safetensors":
            tensors, metadata = safetensors_file.read(file, origin)
        else:
            tensors = torch_file.read(file, origin)
    if not tensors:
        raise UserError(f"{origin} holds no arrays; give a file of weights")
    return TensorFile(tensors, metadata, form)


def _open(path: str) -> io.BufferedIOBase:
    try:
        if "://" in path:
            return io.BytesIO(epath.Path(path).read_bytes())
        return open(os.path.expanduser(path), "rb")
    except FileNotFoundError as err:
        raise UserError(f"no file {path}{_neighbours(path)}") from err
    except IsADirectoryError as err:
        raise UserError(f"{path} is a folder; name a file in it") from err
    except OSError as err:
        raise UserError(
            f"cannot read {path}: {err.strerror or err}; check its permissions"
        ) from err


def _neighbours(path: str) -> str:
    folder, name = os.path.split(os.path.expanduser(path))
    try:
        close = difflib.get_close_matches(name, os.listdir(folder or "."), 3, 0.5)
    except OSError:
        return f"; there is no folder {folder} either"
    return f"; did you mean {' or '.join(close)}?" if close else "; check the name"


def _without_prefixes(
    tensors: dict[str, np.ndarray], origin: str
) -> dict[str, np.ndarray]:
    prefix = next(
        (p for p in _WRAPPER_PREFIXES if all(name.startswith(p) for name in tensors)),
        None,
    )
    if prefix is not None:
        logging.info("%s: took %r off every name", origin, prefix)
        bare = {name.removeprefix(prefix): array for name, array in tensors.items()}
        return _without_prefixes(bare, origin)
    tower = {
        name.removeprefix(_TOWER): array
        for name, array in tensors.items()
        if name.startswith(_TOWER)
    }
    if not tower:
        return tensors
    logging.info(
        "%s: took the image tower, %d of %d arrays (%s...)",
        origin,
        len(tower),
        len(tensors),
        _TOWER,
    )
    return tower

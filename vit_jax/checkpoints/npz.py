# SPDX-License-Identifier: Apache-2.0
"""Archives of NumPy arrays by name, `.npz`, as Google publishes weights.

NumPy has no bfloat16 of its own: it writes two opaque bytes a number, dtype `V2`.
"""

import os
import zipfile
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from absl import logging

from vit_jax.checkpoints.recognise import AGAIN, ZIP_DAMAGE
from vit_jax.checkpoints.whole_file import whole_file
from vit_jax.errors import UserError

_SUFFIX = ".npy"
# The time that NumPy gives to members, the earliest that a zip file can hold.
_TIME = (1980, 1, 1, 0, 0, 0)


def read(archive: zipfile.ZipFile, origin: str) -> dict[str, np.ndarray]:
    """Reads every array of an archive.

    Args:
      archive: An open archive that has members `NAME.npy`.
      origin: The file's name, for errors.

    Returns:
      The arrays by name, in the order of the archive; opaque pairs of bytes are
      bfloat16.

    Raises:
      UserError: A damaged member, or one that is no plain array.
    """
    tensors: dict[str, np.ndarray] = {}
    opaque = 0
    for member in archive.infolist():
        name = member.filename.removesuffix(_SUFFIX)
        if name == member.filename:
            logging.info("%s: left out %s, which is no array", origin, name)
            continue
        tensors[name] = array = _read_member(archive, member, f"{name} in {origin}")
        if array.dtype == np.dtype("V2"):
            tensors[name] = array.view(ml_dtypes.bfloat16)
            opaque += 1
    if opaque:
        logging.info("%s: %d arrays of dtype V2 are read as bfloat16", origin, opaque)
    return tensors


def _read_member(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, what: str
) -> np.ndarray:
    try:
        with archive.open(member) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except ZIP_DAMAGE as err:
        if "allow_pickle=False" in str(err):
            raise UserError(
                f"{what} is an array of Python objects, which can run code when it is "
                "read, so it is refused; save plain arrays of numbers"
            ) from err
        reason = " ".join(str(err).split())[:200]
        raise UserError(f"{what} is damaged ({reason}); {AGAIN}") from err
    if array.dtype.kind == "V" and array.dtype != np.dtype("V2"):
        raise UserError(
            f"{what} has the dtype {array.dtype}, which NumPy does not know; save it "
            "as float32"
        )
    return array


def write_npz(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray],
    *,
    overwrite: bool = False,
) -> None:
    """Writes the file that `np.savez(path, **tensors)` writes, array after array.

    Equal arrays give equal bytes. At most one array is copied at a time.

    Args:
      path: The file, of any suffix.
      tensors: Arrays by name, written in this order; slashes are fine.
      overwrite: Whether an existing file may be replaced.

    Raises:
      UserError: The file exists or cannot be written.
    """
    with (
        whole_file(path, overwrite=overwrite) as file,
        zipfile.ZipFile(file, "w") as archive,
    ):
        for name, tensor in tensors.items():
            member = zipfile.ZipInfo(name + _SUFFIX, _TIME)
            array: Any = np.asarray(tensor, order="C")
            with archive.open(member, "w", force_zip64=True) as out:
                np.lib.format.write_array(out, array, allow_pickle=False)

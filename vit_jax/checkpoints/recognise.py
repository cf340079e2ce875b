# SPDX-License-Identifier: Apache-2.0
"""What a file is, by its content: weights that can be read, or something else.

Half of the files that cannot be loaded are not what their name says: a web page saved
as weights, a pointer of Git LFS, a download that stopped.
"""

import io
import os
import zipfile
import zlib
from typing import Literal

from vit_jax.errors import UserError

Form = Literal["npz", "safetensors", "torch"]

# What reading a damaged zip archive can raise: the sizes, places, version and marks of
# encryption that it finds are then arbitrary bytes.
ZIP_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)

AGAIN = "download or copy it again"
_USE = "give an .npz, .safetensors or torch file, or the workdir of a run"

# First bytes, what such a file is, what to do.
_FIRST_BYTES: tuple[tuple[bytes, str, str], ...] = (
    (
        b"version https://git-lfs",
        "a pointer of Git LFS in place of the weights",
        "fetch them with 'git lfs pull'",
    ),
    (b"\x1f\x8b", "packed by gzip", "unpack it with gunzip"),
    (b"BZh", "packed by bzip2", "unpack it with bunzip2"),
    (b"\xfd7zXZ\0", "packed by xz", "unpack it with unxz"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", "unpack it with unzstd"),
    (
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file, as Keras and older TensorFlow write",
        "give the weights as .npz or .safetensors",
    ),
    (b"\x93NUMPY", "a single array (.npy)", _USE),
    (
        b"model_checkpoint_path",
        "the list of checkpoints of TensorFlow",
        "give the weights as .npz or .safetensors",
    ),
    (b"{", "JSON text", "give the file of the weights, or the folder that has both"),
)
_TORCH_LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP = (b"PK\3\4", b"PK\5\6")
# The end of a LevelDB table, in which TensorFlow keeps the index of a checkpoint.
_TABLE_END = bytes.fromhex("57fb808b247547db")
# Maps of MessagePack, of 1 to 15, up to 2^16 or up to 2^32 entries.
_MSGPACK_MAPS = (*range(0x81, 0x90), 0xDE, 0xDF)
_LONGEST_HEADER = 100_000_000  # as in the library of safetensors


def form_of(file: io.BufferedIOBase, origin: str) -> Form:
    """Returns the form of a file of weights.

    Args:
      file: The open file; it is at its start again afterwards.
      origin: The file's name, for errors.

    Raises:
      UserError: A file that is none, named for what it is.
    """
    head = file.read(64)
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    tail = file.read(8)
    file.seek(0)
    if not head:
        raise UserError(f"{origin} is empty; {AGAIN}")
    if head.startswith(_ZIP):
        return _form_of_zip(file, head, size, origin)
    if head.startswith(_TORCH_LEGACY):
        return "torch"
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and length <= _LONGEST_HEADER:
        return "safetensors"
    what, remedy = _something_else(head, tail)
    raise UserError(f"{origin} is {what}; {remedy}")


def _form_of_zip(file: io.BufferedIOBase, head: bytes, size: int, origin: str) -> Form:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except ZIP_DAMAGE as err:
        raise UserError(
            f"{origin} is a zip archive (.npz or .pth) that is cut short or damaged, "
            f"of {size:,} bytes; {AGAIN}"
        ) from err
    finally:
        file.seek(0)
    if any(name.rsplit("/")[-1] == "data.pkl" for name in names):
        return "torch"
    if any(name.endswith(".npy") for name in names):
        return "npz"
    shown = ", ".join(names[:3]) or "nothing"
    raise UserError(
        f"{origin} is a zip archive without arrays (it has {shown}); unpack it, or "
        f"{_USE}"
    )


def _something_else(head: bytes, tail: bytes) -> tuple[str, str]:
    """Returns what a file is that holds no weights, and what to do."""
    for first, what, remedy in _FIRST_BYTES:
        if head.startswith(first):
            return what, remedy
    if head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<"):
        return "a saved web page", "download the file that the page offers"
    if tail == _TABLE_END:
        return (
            "the index of a TensorFlow checkpoint",
            "give the weights as .npz or .safetensors",
        )
    if head[0] == 0x80 and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return (
            "a Python pickle, which can run code and is not loaded",
            "save plain arrays with np.savez, or the tensors with safetensors",
        )
    if head[0] in _MSGPACK_MAPS:
        return (
            "a MessagePack file, as Flax writes",
            "restore it with flax.serialization and save it with np.savez",
        )
    return f"of no known form (it begins with {head[:8]!r})", _USE

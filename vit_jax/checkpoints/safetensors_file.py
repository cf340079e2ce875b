# SPDX-License-Identifier: Apache-2.0
"""Files of arrays by name, `.safetensors`: a JSON header, then the raw numbers.

The format is eight bytes with the length of the header, the header and the data
(https://huggingface.co/docs/safetensors). Reading maps the file into memory: an array
costs none until it is used.
"""

import io
import json
import math
import mmap
import operator
import os
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.checkpoints.whole_file import whole_file
from vit_jax.errors import UserError

_DTYPES: Mapping[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_METADATA = "__metadata__"
_ALIGNMENT = 8


def read(
    file: io.BufferedIOBase, origin: str
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads every array and the metadata.

    Args:
      file: The open file, from its start.
      origin: The file's name, for errors.

    Returns:
      The arrays by name in the order of the header, and the metadata. The arrays are
      views of the file; what is written into them does not reach it.

    Raises:
      UserError: A file that is cut short or otherwise not of this format.
    """
    if isinstance(file, io.BytesIO):
        content: Any = bytearray(file.getvalue())
    else:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = _ALIGNMENT + int.from_bytes(content[:_ALIGNMENT], "little")
    if start > len(content):
        raise _cut_short(origin, len(content), start)
    try:
        header = json.loads(bytes(content[_ALIGNMENT:start]))
        metadata = {k: str(v) for k, v in header.pop(_METADATA, {}).items()}
        places = {name: _place(fields) for name, fields in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise UserError(
            f"the header of {origin} is not that of a safetensors file ({err}); "
            "download or copy it again"
        ) from err
    end = start + max((stop for _, _, _, stop in places.values()), default=0)
    if end > len(content):
        raise _cut_short(origin, len(content), end)
    tensors = {
        name: np.frombuffer(content, dtype, math.prod(shape), start + first).reshape(
            shape
        )
        for name, (dtype, shape, first, _) in places.items()
    }
    return tensors, metadata


def _place(fields: Mapping[str, Any]) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """Returns dtype, shape, first byte and last of an array, which must agree."""
    if fields["dtype"] not in _DTYPES:
        raise ValueError(f"unknown dtype {fields['dtype']}")
    dtype, shape = _DTYPES[fields["dtype"]], tuple(map(operator.index, fields["shape"]))
    first, stop = map(operator.index, fields["data_offsets"])
    if first < 0 or min(shape, default=0) < 0:
        raise ValueError("a negative size")
    if stop - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{stop - first} bytes for an array of shape {shape}")
    return dtype, shape, first, stop


def _cut_short(origin: str, has: int, wanted: int) -> UserError:
    return UserError(
        f"{origin} is cut short: it has {has:,} bytes, and its header speaks of "
        f"{wanted:,}; download or copy it again"
    )


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Writes arrays and metadata, array after array.

    Equal arrays give equal bytes: as in the format's own library, larger numbers come
    first, so that every array is aligned, then names decide. At most one array is
    copied at a time.

    Args:
      path: The file, of any suffix.
      tensors: Arrays by name.
      metadata: Texts by name.
      overwrite: Whether an existing file may be replaced.

    Raises:
      UserError: An array whose dtype the format does not have, a file that exists or
        one that cannot be written.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {}
    if metadata:
        header[_METADATA] = dict(sorted(metadata.items()))
    end = 0
    for name in names:
        first, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": _dtype_name(name, tensors[name]),
            "shape": tensors[name].shape,
            "data_offsets": (first, end),
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with whole_file(path, overwrite=overwrite) as file:
        file.write(len(text).to_bytes(_ALIGNMENT, "little"))
        file.write(text)
        for name in names:
            dtype = tensors[name].dtype.newbyteorder("<")
            plain = np.ascontiguousarray(tensors[name], dtype)
            file.write(plain.reshape(-1).view(np.uint8).data)


def _dtype_name(name: str, tensor: np.ndarray) -> str:
    dtype = tensor.dtype.newbyteorder("<")
    if dtype not in _NAMES:
        raise UserError(
            f"safetensors files cannot hold {name}, whose dtype is {dtype}; allowed "
            f"are {', '.join(map(str, _NAMES))}"
        )
    return _NAMES[dtype]

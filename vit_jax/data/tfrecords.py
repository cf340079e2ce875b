# SPDX-License-Identifier: Apache-2.0
"""Finds examples in TFRecord files, without reading their images.

A TFRecord file holds, for each record, its length (8 bytes), a CRC (4), the data and
another CRC (4), see tensorflow/core/lib/io/record_writer.h. CRCs are not checked here.
"""

import array
import contextlib
import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from etils import epath

from vit_jax.data.protobuf import (
    BYTES,
    Buffer,
    bytes_ranges,
    example_features,
    numbers,
)
from vit_jax.data.tables import Table, Texts, is_remote
from vit_jax.errors import UserError

_HEADER = 12
_FOOTER = 4


def index_examples(
    paths: Sequence[str], image: str, label: str
) -> tuple[Table, np.ndarray, list[int]]:
    """Looks up where the image of every example lies, and its label.

    Args:
      paths: TFRecord files of `tf.train.Example` messages.
      image: Name of the feature that holds one encoded image.
      label: Name of the feature that holds one number.

    Returns:
      The table of the images, the labels (int32 or float32) and the number of examples
      in each file.

    Raises:
      UserError: A file that cannot be read or is cut, or an example without exactly one
        image and one label.
    """
    offset, length = array.array("q"), array.array("q")
    labels: list[int | float] = []
    counts: list[int] = []
    for path in paths:
        with open_buffer(path) as buffer:
            for start, stop in record_ranges(buffer, path):
                example = Example(buffer, start, stop, f"{path}@{start}")
                first, last = example.image_range(image)
                offset.append(first)
                length.append(last - first)
                labels.append(example.label(label))
        counts.append(len(offset) - sum(counts))
    table = Table(
        root="",
        paths=Texts(paths),
        file_index=np.repeat(np.arange(len(paths), dtype=np.int32), counts),
        offset=np.array(offset),
        length=np.array(length),
    )
    return table, stack_labels(labels), counts


def stack_labels(labels: Iterable[int | float]) -> np.ndarray:
    """Returns int32 class ids, or float32 targets where any label is a fraction."""
    stacked = np.array(list(labels))
    integers = np.issubdtype(stacked.dtype, np.integer)
    return stacked.astype(np.int32 if integers else np.float32)


class Example:
    """A `tf.train.Example` message, whose features are looked up by name.

    Args:
      buffer: The bytes that hold it.
      start: Its first byte.
      stop: Its end.
      name: What messages call it.

    Raises:
      UserError: Bytes that are no such message.
    """

    def __init__(self, buffer: Buffer, start: int, stop: int, name: str):
        self._buffer = buffer
        self._name = name
        try:
            self._values = example_features(buffer, start, stop)
        except ValueError as err:
            raise UserError(
                f"{name} is no tf.train.Example ({err}); write the file again"
            ) from err

    def image_range(self, feature: str) -> tuple[int, int]:
        """Returns first byte and end of the one text that a feature holds.

        Raises:
          UserError: No such feature, or not exactly one text in it.
        """
        value = self._values.get(feature)
        texts = []
        if value is not None and value.kind == BYTES:
            texts = bytes_ranges(self._buffer, value)
        if len(texts) != 1:
            raise self._error(feature, f"{len(texts)} texts, not one encoded image")
        return texts[0]

    def label(self, feature: str) -> int | float:
        """Returns the one number that a feature holds.

        Raises:
          UserError: No such feature, or not exactly one number in it.
        """
        value = self._values.get(feature)
        found = []
        if value is not None and value.kind != BYTES:
            found = numbers(self._buffer, value)
        if len(found) != 1:
            raise self._error(feature, f"{len(found)} numbers, not one")
        return found[0]

    def _error(self, feature: str, found: str) -> UserError:
        return UserError(
            f"{self._name} has in its feature {feature!r} {found}; its features are "
            f"{', '.join(sorted(self._values))}: say which to read with "
            "@image=...;label=..."
        )


@contextlib.contextmanager
def open_buffer(path: str) -> Iterator[Buffer]:
    """Opens a file as bytes: mapped where it is local, else read whole.

    Raises:
      UserError: A file that cannot be read or is empty.
    """
    try:
        if is_remote(path):
            yield epath.Path(path).read_bytes()
            return
        with (
            open(path, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer,
        ):
            yield buffer
    except (OSError, ValueError) as err:
        if isinstance(err, UserError):
            raise
        raise UserError(f"cannot read {path}: {err}; copy the file again") from err


def record_ranges(buffer: Buffer, path: str) -> Iterator[tuple[int, int]]:
    """Yields first byte and end of the data of each record.

    Raises:
      UserError: A file that is cut, compressed or no TFRecord file.
    """
    place, size = 0, len(buffer)
    while place < size:
        start = place + _HEADER
        stop = size + 1
        if start <= size:
            stop = start + struct.unpack_from("<Q", buffer, place)[0]
        if stop + _FOOTER > size:
            raise UserError(
                f"{path} ends inside the record at byte {place}: it is cut, compressed "
                "or no TFRecord file; copy it again, or write it uncompressed"
            )
        yield start, stop
        place = stop + _FOOTER

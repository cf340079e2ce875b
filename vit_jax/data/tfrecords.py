# SPDX-License-Identifier: Apache-2.0
"""Finds examples in TFRecord files and features in `tf.train.Example` messages.

Only the places of values are looked up, and only the few bytes that lead to them are
touched, so that a shard is indexed without reading its images. Formats: TFRecord is
length (8 bytes), CRC (4), data, CRC (4) for each record, see
tensorflow/core/lib/io/record_writer.h; messages are in the wire format of
https://protobuf.dev/programming-guides/encoding, with the field numbers of
tensorflow/core/example/{example,feature}.proto. CRCs are not checked here.
"""

import array
import contextlib
import mmap
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath

from vit_jax.data.tables import Table, Texts, is_remote
from vit_jax.errors import UserError

Buffer = bytes | mmap.mmap

BYTES, FLOATS, INTS = 1, 2, 3
"""Field numbers of the lists in `tf.train.Feature`."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types."""
_HEADER = 12
_FOOTER = 4


class Value(NamedTuple):
    """Where the list of a feature lies in its buffer, and of which kind it is."""

    kind: int
    start: int
    stop: int


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


def example_features(buffer: Buffer, start: int, stop: int) -> dict[str, Value]:
    """Returns where the features of a `tf.train.Example` lie, by name.

    Raises:
      ValueError: Bytes that are no such message.
    """
    features: dict[str, Value] = {}
    for _, _, first, last in _fields(buffer, start, stop):
        for _, _, entry, entry_end in _fields(buffer, first, last):
            parts = {
                number: (begin, end)
                for number, _, begin, end in _fields(buffer, entry, entry_end)
            }
            if 1 not in parts or 2 not in parts:
                continue
            name = bytes(buffer[slice(*parts[1])]).decode()
            for kind, _, begin, end in _fields(buffer, *parts[2]):
                features[name] = Value(kind, begin, end)
    return features


def bytes_ranges(buffer: Buffer, value: Value) -> list[tuple[int, int]]:
    """Returns first byte and end of each text in a list of bytes."""
    return [field[2:] for field in _fields(buffer, value.start, value.stop)]


def numbers(buffer: Buffer, value: Value) -> list[int] | list[float]:
    """Returns the numbers in a list of integers or floats, packed or not."""
    if value.kind == FLOATS:
        data = b"".join(
            bytes(buffer[begin:end])
            for _, _, begin, end in _fields(buffer, value.start, value.stop)
        )
        return np.frombuffer(data, "<f4").tolist()
    found: list[int] = []
    for _, _, place, end in _fields(buffer, value.start, value.stop):
        while place < end:
            number, place = _varint(buffer, place)
            found.append(number - (1 << 64) if number >> 63 else number)
    return found


def _fields(
    buffer: Buffer, place: int, stop: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yields number, wire type, first byte and end of each field's content."""
    while place < stop:
        tag, place = _varint(buffer, place)
        wire = tag & 7
        end = place
        if wire == _LENGTH:
            length, place = _varint(buffer, place)
            end = place + length
        elif wire == _VARINT:
            _, end = _varint(buffer, place)
        elif wire in (_FIXED32, _FIXED64):
            end = place + (4 if wire == _FIXED32 else 8)
        else:
            raise ValueError(f"wire type {wire} at byte {place}")
        if end > stop:
            raise ValueError(f"a field at byte {place} is longer than its message")
        yield tag >> 3, wire, place, end
        place = end


def _varint(buffer: Buffer, place: int) -> tuple[int, int]:
    """Returns a variable-length integer and the place behind it."""
    number = shift = 0
    while place < len(buffer):
        byte = buffer[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
    raise ValueError("a message ends inside a number")

# SPDX-License-Identifier: Apache-2.0
"""Finds examples in TFRecord files, without reading their images.

A TFRecord file holds, for each record, its length (8 bytes), a CRC (4), the data and
another CRC (4), see tensorflow/core/lib/io/record_writer.h. Both CRCs are checked.
"""

import contextlib
import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable
from urllib.parse import quote

import google_crc32c

from vit_jax.data.buckets import is_remote, read_bytes
from vit_jax.data.shards.index_file import Found, Label
from vit_jax.data.shards.protobuf import (
    BYTES,
    Buffer,
    Value,
    bytes_ranges,
    example_features,
    numbers,
)
from vit_jax.errors import UserError

_HEADER = 12
_FOOTER = 4
_GZIP = b"\x1f\x8b"
_LONGEST_TEXT = 1024
"""No class has a longer name; what is longer is an image."""


@runtime_checkable
class Derivation(Protocol):
    """Makes the label of several features; can be sent to another process."""

    def __call__(self, example: "Example") -> Label:
        """Returns the label of an example."""
        ...


class TFRecordReader(NamedTuple):
    """Goes through a file of `tf.train.Example`s, as a `shard_store.Reader`.

    Attributes:
      image: Name of the feature that holds one encoded image.
      label: Name of the feature that holds one number or one text.
      several: Whether it holds any number of class ids or names instead.
      derive: Makes the label of an example instead; `label` then only names the index.
    """

    image: str
    label: str
    several: bool = False
    derive: Derivation | None = None

    @property
    def name(self) -> str:
        """Name of the index files."""
        form = "tfrecord_several" if self.several else "tfrecord"
        return f"{form},{quote(self.image, safe='')},{quote(self.label, safe='')}"

    def __call__(self, path: str) -> Iterator[Found]:
        """Yields the examples of a file.

        Raises:
          UserError: A file that cannot be read, is cut, compressed or damaged, or an
            example without exactly one image and one label.
        """
        with open_buffer(path) as buffer:
            for start, stop in record_ranges(buffer, path):
                example = Example(buffer, start, stop, f"{path}@{start}")
                first, last = example.image_range(self.image)
                yield Found(first, last - first, self._label(example))

    def _label(self, example: "Example") -> Label:
        if self.derive:
            return self.derive(example)
        read = example.labels if self.several else example.label
        return read(self.label)


class Example:
    """A `tf.train.Example` message, whose features are looked up by name.

    Attributes:
      name: What messages call it.

    Args:
      buffer: The bytes that hold it.
      start: Its first byte.
      stop: Its end.
      name: What messages call it.

    Raises:
      UserError: Bytes that are no such message.
    """

    def __init__(self, buffer: Buffer, start: int, stop: int, name: str):
        self.name = name
        self._buffer = buffer
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

    def label(self, feature: str) -> int | float | str:
        """Returns the one number or text that a feature holds.

        Raises:
          UserError: No such feature, or not exactly one number or text in it.
        """
        found = self._list(feature)
        if len(found) != 1:
            raise self._error(feature, f"{len(found)} numbers or class names, not one")
        return found[0]

    def labels(self, feature: str) -> list[str]:
        """Returns the class ids or names that a feature holds, as texts.

        Raises:
          UserError: No such feature, or a number in it that is no class id.
        """
        found = self._list(feature)
        if feature not in self._values or any(isinstance(x, float) for x in found):
            raise self._error(feature, "no list of class ids or names")
        return [str(each) for each in found]

    def numbers(self, feature: str) -> list[int] | list[float]:
        """Returns the numbers that a feature holds, however many.

        Raises:
          UserError: No such feature, or one that holds texts.
        """
        value = self._values.get(feature)
        if value is None or value.kind == BYTES:
            raise self._error(feature, "no list of numbers")
        return numbers(self._buffer, value)

    def _list(self, feature: str) -> list[int] | list[float] | list[str]:
        value = self._values.get(feature)
        if value is None:
            return []
        if value.kind == BYTES:
            return self._texts(value)
        return numbers(self._buffer, value)

    def _texts(self, value: Value) -> list[str]:
        """Returns the texts of a list that may be class names, none if one is not."""
        ranges = bytes_ranges(self._buffer, value)
        if any(stop - start > _LONGEST_TEXT for start, stop in ranges):
            return []
        try:
            return [bytes(self._buffer[slice(*ends)]).decode() for ends in ranges]
        except UnicodeDecodeError:
            return []

    def _error(self, feature: str, found: str) -> UserError:
        return UserError(
            f"{self.name} has in its feature {feature!r} {found}; its features are "
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
            yield read_bytes(path)
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


def check_uncompressed(buffer: Buffer, path: str) -> None:
    """Refuses a GZIP file.

    Raises:
      UserError: The file starts as GZIP files do.
    """
    if bytes(buffer[:2]) == _GZIP:
        raise UserError(
            f"{path} is compressed with GZIP, so that no example in it can be read by "
            "itself; write it uncompressed (gunzip)"
        )


def record_ranges(buffer: Buffer, path: str) -> Iterator[tuple[int, int]]:
    """Yields first byte and end of the data of each record.

    Raises:
      UserError: A file that is cut, compressed, damaged or no TFRecord file; the text
        names file and offset.
    """
    place, size = 0, len(buffer)
    while place < size:
        start = place + _HEADER
        stop = size + 1
        if start <= size:
            length, crc = struct.unpack_from("<QI", buffer, place)
            if crc != masked_crc(bytes(buffer[place : place + 8])):
                check_uncompressed(buffer, path)
                raise _damaged(path, place, "length")
            stop = start + length
        if stop + _FOOTER > size:
            check_uncompressed(buffer, path)
            raise UserError(
                f"{path} ends inside the record at byte {place}: it is cut; copy it "
                "again"
            )
        (crc,) = struct.unpack_from("<I", buffer, stop)
        if crc != masked_crc(buffer[start:stop]):
            raise _damaged(path, place, "data")
        yield start, stop
        place = stop + _FOOTER


def masked_crc(data: bytes) -> int:
    """Returns the CRC-32C of some bytes as TFRecord files store it."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(path: str, place: int, part: str) -> UserError:
    return UserError(
        f"{path}@{place}: the checksum of the record's {part} is wrong: the file is "
        "damaged, or no TFRecord file; copy or write it again"
    )

# SPDX-License-Identifier: Apache-2.0
"""Looks up where the values of a `tf.train.Example` message lie in its bytes.

Only the few bytes that lead to a value are touched, so that a mapped file is indexed
without reading its images. The wire format is that of
https://protobuf.dev/programming-guides/encoding, the field numbers are those of
tensorflow/core/example/example.proto and feature.proto.
"""

import mmap
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

Buffer = bytes | mmap.mmap

BYTES, FLOATS, INTS = 1, 2, 3
"""Field numbers of the lists in `tf.train.Feature`."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types."""


class Value(NamedTuple):
    """Where the list of a feature lies in its buffer, and of which kind it is."""

    kind: int
    start: int
    stop: int


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

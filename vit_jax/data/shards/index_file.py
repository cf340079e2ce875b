# SPDX-License-Identifier: Apache-2.0
r"""What shards hold: where each example lies and its label, as columns of a file.

    vit_jax index 1\n    the first line
    int64               length of the header
    header              JSON: the shards, the class texts, the columns
    columns             one after the other, each from a multiple of 64 bytes on

A file is mapped, not read, so that 14 million rows are there at once; a row costs 16
bytes and no Python object. Which files there are is told in `shard_store`.
"""

import dataclasses
import json
import os
import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath

from vit_jax.data.buckets import bucket_errors, exists, is_remote, read_bytes
from vit_jax.data.class_texts import is_whole
from vit_jax.errors import UserError

MAGIC = b"vit_jax index 1\n"
COLUMNS = {"offset": "<i8", "length": "<u4", "label": "<i4", "codes": "<i4"}
_ALIGN = 64

Label = int | float | str | list[str]
"""A class id, a target, a class text or several class texts."""


class Found(NamedTuple):
    """An example that a reader found in a shard."""

    offset: int
    length: int
    label: Label


class Shard(NamedTuple):
    """A file, as it was when it was indexed.

    Attributes:
      path: The file.
      size: Its bytes.
      mtime: When it was last changed, in nanoseconds.
      rows: Number of its examples.
      codes: Number of its entries in `Shards.codes`.
      kind: What its labels are: "ids", "targets", "texts" or "several".
    """

    path: str
    size: int
    mtime: int
    rows: int
    codes: int
    kind: str


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """The examples of some files, one file behind the other.

    Attributes:
      shards: The files.
      offset: int64 (n,) first byte of each image; its record in an ArrayRecord file.
      length: uint32 (n,) number of bytes of each image.
      label: int32 (n,) by the kind of the shard: class ids; the bits of float32
        targets; indices in `texts`; or how many of `codes` the example owns.
      codes: int32 (m,) indices in `texts` of examples with several classes.
      texts: The class texts.
    """

    shards: tuple[Shard, ...]
    offset: np.ndarray
    length: np.ndarray
    label: np.ndarray
    codes: np.ndarray
    texts: tuple[str, ...] = ()

    def select(self, paths: Sequence[str]) -> "Shards":
        """Returns these files alone, in this order; without a copy if they adjoin."""
        place = {shard.path: number for number, shard in enumerate(self.shards)}
        chosen = [place[path] for path in paths]
        rows = np.cumsum([0, *(shard.rows for shard in self.shards)])
        codes = np.cumsum([0, *(shard.codes for shard in self.shards)])
        return Shards(
            shards=tuple(self.shards[number] for number in chosen),
            offset=_take(self.offset, rows, chosen),
            length=_take(self.length, rows, chosen),
            label=_take(self.label, rows, chosen),
            codes=_take(self.codes, codes, chosen),
            texts=self.texts,
        )


_NONE = (np.zeros(0, dtype) for dtype in COLUMNS.values())
EMPTY = Shards((), next(_NONE), next(_NONE), next(_NONE), next(_NONE))


def join(parts: Sequence[Shards]) -> Shards:
    """Returns the files of all parts, one behind the other."""
    parts = [part for part in parts if part.shards]
    if len(parts) < 2:
        return parts[0] if parts else EMPTY
    texts: dict[str, int] = {}
    labels: list[np.ndarray] = []
    codes: list[np.ndarray] = []
    for part in parts:
        table = [texts.setdefault(text, len(texts)) for text in part.texts]
        renumber = np.array(table, np.int32)
        codes.append(renumber[part.codes] if len(part.codes) else part.codes)
        labels.append(_renumber_texts(part, renumber))
    return Shards(
        shards=tuple(shard for part in parts for shard in part.shards),
        offset=np.concatenate([part.offset for part in parts]),
        length=np.concatenate([part.length for part in parts]),
        label=np.concatenate(labels),
        codes=np.concatenate(codes),
        texts=tuple(texts),
    )


def _renumber_texts(part: Shards, renumber: np.ndarray) -> np.ndarray:
    """Returns the labels of a part with its class texts numbered anew."""
    if not any(shard.kind == "texts" for shard in part.shards):
        return part.label
    label = np.array(part.label)
    end = 0
    for shard in part.shards:
        rows = slice(end, end + shard.rows)
        if shard.kind == "texts" and shard.rows:
            label[rows] = renumber[label[rows]]
        end += shard.rows
    return label


def _take(column: np.ndarray, ends: np.ndarray, chosen: list[int]) -> np.ndarray:
    """Returns the parts of a column that belong to the chosen files."""
    if not chosen:
        return column[:0]
    if chosen == list(range(chosen[0], chosen[-1] + 1)):
        return column[ends[chosen[0]] : ends[chosen[-1] + 1]]
    return np.concatenate([column[ends[i] : ends[i + 1]] for i in chosen])


def collect(path: str, size: int, mtime: int, found: Iterable[Found]) -> Shards:
    """Makes columns of the examples of one file.

    Raises:
      UserError: Labels that do not go together, or are no 32-bit numbers.
    """
    offset, length, labels = [], [], []
    for example in found:
        offset.append(example.offset)
        length.append(example.length)
        labels.append(example.label)
    kind = _kind(labels, path)
    texts: dict[str, int] = {}
    codes: list[int] = []
    column: np.ndarray
    if kind == "targets":
        column = np.array(labels, "<f4").view("<i4")
    elif kind == "texts":
        numbers = [texts.setdefault(str(label), len(texts)) for label in labels]
        column = np.array(numbers, "<i4")
    elif kind == "several":
        column = np.array([len(label) for label in labels], "<i4")
        codes = [texts.setdefault(t, len(texts)) for label in labels for t in label]
    else:
        wide = np.array([int(label) for label in labels], object)
        wrong = np.flatnonzero((wide < -(2**31)) | (wide >= 2**31))
        if len(wrong):
            raise UserError(
                f"{path}@{offset[wrong[0]]} has the label {wide[wrong[0]]}, which is "
                "no 32-bit number; name another feature, or number the classes from 0"
            )
        column = wide.astype("<i4")
    shard = Shard(path, size, mtime, len(offset), len(codes), kind)
    return Shards(
        shards=(shard,),
        offset=np.array(offset, "<i8"),
        length=np.array(length, "<u4"),
        label=column,
        codes=np.array(codes, "<i4"),
        texts=tuple(texts),
    )


def _kind(labels: list[Label], path: str) -> str:
    types = {type(label) for label in labels}
    if list in types and types != {list}:
        raise UserError(
            f"{path} has several labels for one example and one for another; give "
            "all of them `labels`, or all of them `label`"
        )
    if list in types:
        return "several"
    if {str, float} <= types:
        raise UserError(
            f"{path} has class names and fractions as labels; use one of them"
        )
    if float in types:
        return "targets"
    if str in types and not all(_is_plain_number(label) for label in labels):
        return "texts"
    return "ids"


def _is_plain_number(label: Label) -> bool:
    """Whether a label is a whole number that is written as Python would."""
    text = str(label)
    return is_whole(text) and str(int(text)) == text


def save(shards: Shards, path: str, relative_to: str) -> None:
    """Writes a file, which is there in whole or not at all.

    Args:
      shards: What to write.
      path: The file.
      relative_to: The folder that holds the shards.

    Raises:
      OSError: A folder that cannot be written.
      UserError: A bucket that cannot.
    """
    arrays = {name: np.asarray(getattr(shards, name), t) for name, t in COLUMNS.items()}
    names = [os.path.relpath(shard.path, relative_to) for shard in shards.shards]
    header = json.dumps(
        {
            "shards": [
                [name, *shard[1:]]
                for name, shard in zip(names, shards.shards, strict=True)
            ],
            "texts": shards.texts,
            "columns": {name: len(array) for name, array in arrays.items()},
        }
    ).encode()
    target = epath.Path(path)
    # A bucket's object appears when it is complete; a local file is renamed to that.
    if is_remote(path):
        with bucket_errors(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, header, arrays.values())
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Its own name, as other hosts may write to the same folder.
    partial = epath.Path(f"{path}.{secrets.token_hex(8)}.part")
    try:
        _write(partial, header, arrays.values())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _write(path: epath.Path, header: bytes, arrays: Iterable[np.ndarray]) -> None:
    with path.open("wb") as file:
        file.write(MAGIC + np.int64(len(header)).tobytes() + header)
        place = len(MAGIC) + 8 + len(header)
        for array in arrays:
            file.write(bytes(-place % _ALIGN))
            file.write(array.tobytes())
            place += -place % _ALIGN + array.nbytes


def load(path: str, relative_to: str) -> Shards | None:
    """Maps a file; None where there is none or only a part of one."""
    try:
        if is_remote(path):
            if not exists(path):
                return None
            data = np.frombuffer(read_bytes(path), np.uint8)
        else:
            data = np.memmap(path, np.uint8, mode="r")
        return _parse(data, relative_to)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _parse(data: np.ndarray, relative_to: str) -> Shards:
    data = np.asarray(data)
    start = len(MAGIC)
    if bytes(data[:start]) != MAGIC:
        raise ValueError("no index of this version")
    place = start + 8 + int(data[start : start + 8].view("<i8")[0])
    header = json.loads(bytes(data[start + 8 : place]))
    columns: dict[str, np.ndarray] = {}
    for name, dtype in COLUMNS.items():
        place += -place % _ALIGN
        stop = place + header["columns"][name] * np.dtype(dtype).itemsize
        if stop > len(data):
            raise ValueError("the index is cut")
        columns[name] = data[place:stop].view(dtype)
        place = stop
    shards = tuple(
        Shard(os.path.join(relative_to, name), *rest)
        for name, *rest in header["shards"]
    )
    return Shards(shards, **columns, texts=tuple(header["texts"]))

# SPDX-License-Identifier: Apache-2.0
"""Cuts a data set into chunks of work: which examples, by which keys, in which order.

The order is that of a seeded hash of each example's key, so that it depends neither on
the file system nor on who does the work, and any first part of it is a random sample:
the first 9 million examples of the shards are a random subset of the first 30 million.

A chunk is a small file that says where the images of some examples lie. Whoever has it,
on this machine or another, needs nothing else to read them.
"""

import collections
import dataclasses
import hashlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from etils import epath

from vit_jax.data.examples import Rows, Source
from vit_jax.data.labels import Labels, MultiHot
from vit_jax.data.tables import Table, Texts, join
from vit_jax.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
    """Some examples in the order in which they are to be worked off.

    Attributes:
      table: Where their images lie.
      keys: The key of each.
      labels: Their labels.
    """

    table: Table
    keys: Texts
    labels: Labels

    def save(self, path: str) -> None:
        """Writes the chunk to a file."""
        columns = {
            "paths": np.frombuffer(bytes(self.table.paths.block), np.uint8),
            "path_ends": np.array(self.table.paths.ends),
            "keys": np.frombuffer(bytes(self.keys.block), np.uint8),
            "key_ends": np.array(self.keys.ends),
        }
        for name in _RANGES:
            column = getattr(self.table, name)
            if column is not None:
                columns[name] = column
        if isinstance(self.labels, MultiHot):
            columns["label_offsets"] = self.labels.offsets
            columns["labels"] = self.labels.ids
            columns["num_classes"] = np.array(self.labels.num_classes)
        else:
            columns["labels"] = self.labels
        buffer = io.BytesIO()
        np.savez(buffer, **columns)
        write_whole(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str) -> "Chunk":
        """Reads a chunk that `save` wrote."""
        with np.load(io.BytesIO(epath.Path(path).read_bytes())) as file:
            columns = dict(file)
        ids = columns["labels"]
        labels: Labels = ids
        if "label_offsets" in columns:
            width = int(columns["num_classes"])
            labels = MultiHot(columns["label_offsets"], ids, width)
        ranges: dict[str, Any] = {name: columns.get(name) for name in _RANGES}
        table = Table("", _texts(columns["paths"], columns["path_ends"]), **ranges)
        return cls(table, _texts(columns["keys"], columns["key_ends"]), labels)


_RANGES = ("file_index", "offset", "length", "deflated")
"""The columns of a table."""


def make_chunk(source: Source, keys: list[str], rows: Rows) -> Chunk:
    """Gathers the rows of a source, whose keys are `keys`, in a chunk.

    Raises:
      UserError: See `table_of`.
    """
    table = table_of(source)
    place = source.locate(rows)
    files = place if table.file_index is None else table.file_index[place]
    used, index = np.unique(files, return_inverse=True)
    columns: dict[str, Any] = {}
    for name in _RANGES:
        column = getattr(table, name)
        columns[name] = None if column is None else column[place]
    if table.file_index is None:
        paths, columns["file_index"] = files, None
    else:
        paths, columns["file_index"] = used, index.astype(np.int32)
    texts = Texts(join(table.root, table.paths[row]) for row in paths.tolist())
    labels = source.labels
    if isinstance(labels, MultiHot):
        chosen = labels.take([(row, row + 1) for row in rows.tolist()])
    else:
        chosen = labels[rows]
    own_keys = Texts([keys[row] for row in rows.tolist()])
    return Chunk(Table("", texts, **columns), own_keys, chosen)


def table_of(source: Source) -> Table:
    """Returns the table that a source's images lie in.

    Raises:
      UserError: A source of pixels, or one that its own library reads.
    """
    records = source.records
    if not isinstance(records, Table):
        raise UserError(
            f"{source.description} does not lie in files of encoded images, so there "
            "is nothing to prepare; name folders, lists, archives or TFRecord files"
        )
    return records


def example_keys(source: Source) -> list[str]:
    """Returns a key of each example that does not depend on where the data set lies.

    It is the image's path in the data set without its extension, or with it where
    two images would share a key. What WebDataset does not allow in a key becomes `_`.

    Raises:
      UserError: Two examples of the same name, or a source without files.
    """
    table = table_of(source)
    rows = source.locate(np.arange(len(source))).tolist()
    names = [_own_name(table, row) for row in rows]
    stems = [_clean(os.path.splitext(name)[0]) for name in names]
    shared = {key for key, n in collections.Counter(stems).items() if n > 1}
    keys = [
        _clean(name) if stem in shared else stem
        for name, stem in zip(names, stems, strict=True)
    ]
    if len(set(keys)) < len(keys):
        key = collections.Counter(keys).most_common(1)[0][0]
        raise UserError(
            f"{source.description} has two examples of the key {key!r}; rename one"
        )
    return keys


def _own_name(table: Table, row: int) -> str:
    if table.ids is not None:
        return table.ids[row]
    if table.file_index is None:
        return table.paths[row].lstrip("/")
    name = os.path.basename(table.paths[int(table.file_index[row])])
    return f"{name}-{0 if table.offset is None else table.offset[row]}"


def _clean(name: str) -> str:
    return re.sub(r"[^\w/-]", "_", name)


def hash_order(keys: Iterable[str], seed: int) -> Rows:
    """Returns the rows of `keys` in the order of a hash of seed and key."""
    salt = seed.to_bytes(8, "little")
    digests = b"".join(
        hashlib.blake2b(key.encode(), digest_size=8, salt=salt).digest() for key in keys
    )
    return np.argsort(np.frombuffer(digests, ">u8"), kind="stable")


def choose_rows(
    keys: Sequence[str], *, seed: int, removed: set[str], take: int | None
) -> Rows:
    """Returns the rows to write, in the order in which they are written.

    Args:
      keys: The key of each example.
      seed: Fixes the order.
      removed: Keys of examples to leave out.
      take: How many to take, a random subset that a larger number holds too; None for
        all.

    Raises:
      UserError: Removed keys that name no example, or more taken than there are.
    """
    unknown_keys = removed - set(keys)
    if unknown_keys:
        raise UserError(
            f"{len(unknown_keys)} of {len(removed)} removed ids name no example, such "
            f"as {min(unknown_keys)!r}; the ids must come from this data set and split"
        )
    order = hash_order(keys, seed)
    if removed:
        order = order[[keys[row] not in removed for row in order.tolist()]]
    if take is not None and not 1 <= take <= len(order):
        raise UserError(
            f"cannot take {take} of {len(order)} examples; take 1 to {len(order)}"
        )
    return order[:take]


def write_whole(path: str, data: bytes) -> None:
    """Writes a file so that it is there whole or not at all."""
    final = epath.Path(path)
    part = final.with_name(f"{final.name}.part{os.getpid()}")
    part.write_bytes(data)
    part.replace(final)


def _texts(block: np.ndarray, ends: np.ndarray) -> Texts:
    texts = Texts()
    texts.block += block.tobytes()
    texts.ends.extend(ends.tolist())
    return texts

# SPDX-License-Identifier: Apache-2.0
"""What every source of examples is made of: records, labels, splits and class names.

A form of data set (`folder:`, `csv:`, ...) opens as a `Collection`: records and labels
of the splits that were asked for, one behind the other. A `Source` is the view of a
collection that a split string selects; the pipelines and evaluators see only that.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from etils import epath
from jaxtyping import Float32, Int

from vit_jax.errors import UserError, nearest

Rows = Int[np.ndarray, " n"]


class Records(Protocol):
    """Storage of images, one row an image."""

    @property
    def encoded(self) -> bool:
        """Whether `read` gives encoded files (JPEG, PNG, ...) and not pixels."""
        ...

    def read(self, rows: Rows) -> list[bytes] | np.ndarray:
        """Returns encoded images, or pixels as uint8 (n, h, w, c)."""
        ...

    def names(self, rows: Rows) -> list[str]:
        """Returns a name of each row for error messages and as its identity."""
        ...


class MultiHot:
    """Several labels an example, held as lists of ids and read as rows of 0 and 1.

    Attributes:
      offsets: int64 (n + 1); example i owns `ids[offsets[i]:offsets[i + 1]]`.
      ids: int32, all class ids one after the other.
      num_classes: Width of a row.
    """

    def __init__(self, offsets: np.ndarray, ids: np.ndarray, num_classes: int):
        self.offsets = offsets
        self.ids = ids
        self.num_classes = num_classes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: Rows) -> Float32[np.ndarray, "n k"]:
        targets = np.zeros((len(rows), self.num_classes), np.float32)
        for target, row in zip(targets, rows, strict=True):
            target[self.ids[self.offsets[row] : self.offsets[row + 1]]] = 1
        return targets

    def take(self, ranges: Sequence[tuple[int, int]]) -> "MultiHot":
        """Returns the labels of these row ranges, one behind the other."""
        counts = [np.diff(self.offsets[start : stop + 1]) for start, stop in ranges]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        ids = [
            self.ids[self.offsets[start] : self.offsets[stop]] for start, stop in ranges
        ]
        return MultiHot(offsets, np.concatenate(ids), self.num_classes)


Labels = np.ndarray | MultiHot
"""int32 (n,) class ids, float32 (n,) targets, or several classes an example."""


@dataclasses.dataclass(frozen=True, eq=False)
class Collection:
    """The splits of a data set that were asked for.

    Attributes:
      records: Their images.
      labels: Their labels, in the same rows.
      splits: First row and end of each split by its name.
      class_names: Name of each class id, None where classes have no names.
    """

    records: Records
    labels: Labels
    splits: Mapping[str, tuple[int, int]]
    class_names: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """What a form of data set is asked to open.

    Attributes:
      location: The text behind the form's colon, without options.
      options: The options behind `@`.
      splits: Names of the splits that the user wants.
      class_names: Class names that fix the ids, None to take the training split's.
      data_dir: Where prepared TensorFlow Datasets lie, None for the default.
    """

    location: str
    options: Mapping[str, str]
    splits: Sequence[str]
    class_names: tuple[str, ...] | None = None
    data_dir: str | None = None


class Source:
    """The examples that a split string selects, in a fixed order.

    Attributes:
      class_names: Name of each class id, None where classes have no names.
      encoded: Whether images are encoded files and not pixels.
      description: Data set and split, for messages.
    """

    def __init__(
        self,
        collection: Collection,
        ranges: Sequence[tuple[int, int]],
        description: str,
    ):
        self.class_names = collection.class_names
        self.encoded = collection.records.encoded
        self.description = description
        self._collection = collection
        self._ranges = list(ranges)
        sizes = [stop - start for start, stop in self._ranges]
        self._ends = np.cumsum(sizes)
        self._shifts = np.array([stop for _, stop in self._ranges]) - self._ends

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, rows: slice) -> "Source":
        """Returns the view of a contiguous slice of this one."""
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("a source is sliced in steps of 1")
        ranges = []
        for (first, last), end in zip(self._ranges, self._ends, strict=True):
            begin = end - (last - first)
            low, high = max(start, begin), min(stop, end)
            if low < high:
                ranges.append((int(first + low - begin), int(first + high - begin)))
        return Source(self._collection, ranges, f"{self.description}[{start}:{stop}]")

    @functools.cached_property
    def labels(self) -> Labels:
        """Class ids, targets, or several classes an example; see `Labels`."""
        labels = self._collection.labels
        if isinstance(labels, MultiHot):
            return labels.take(self._ranges)
        return np.concatenate([labels[start:stop] for start, stop in self._ranges])

    @property
    def num_classes(self) -> int | None:
        """Number of classes, None for targets and for ids that have no names."""
        labels = self._collection.labels
        if isinstance(labels, MultiHot):
            return labels.num_classes
        return None if self.class_names is None else len(self.class_names)

    def read(self, rows: Rows) -> list[bytes] | np.ndarray:
        """Returns encoded images, or pixels as uint8 (n, h, w, c).

        Raises:
          UserError: A file that is gone or shorter than it was.
        """
        return self._collection.records.read(self._locate(rows))

    def names(self, rows: Rows) -> list[str]:
        """Returns the name of each row, such as the path of its file."""
        return self._collection.records.names(self._locate(rows))

    def _locate(self, rows: Rows) -> Rows:
        rows = np.asarray(rows, np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows must lie in 0..{len(self) - 1}")
        return rows + self._shifts[np.searchsorted(self._ends, rows, side="right")]


def sort_names(names: set[str]) -> tuple[str, ...]:
    """Returns class names in the order of their bytes, which fixes their ids."""
    return tuple(
        sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))
    )


def class_ids(class_names: Sequence[str]) -> dict[str, int]:
    """Returns the id of each class name.

    Raises:
      UserError: A name that occurs twice.
    """
    ids = {name: number for number, name in enumerate(class_names)}
    if len(ids) < len(class_names):
        twice = next(name for name in class_names if class_names.count(name) > 1)
        raise UserError(
            f"the class names hold {twice!r} twice; give every class a name of its own"
        )
    return ids


def read_class_names(path: str) -> tuple[str, ...]:
    """Reads the names file of the option `@names=FILE`: a class name a line.

    Raises:
      UserError: No such file, no name in it, or a name twice.
    """
    try:
        text = epath.Path(path).read_text(encoding="utf-8")
    except OSError as err:
        raise UserError(
            f"cannot read the class names in {path}: {err.strerror or err}; put a file "
            "there that has a name a line"
        ) from err
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not names:
        raise UserError(f"{path} holds no class name; write one a line")
    class_ids(names)
    return names


def unknown_class(name: str, where: str, ids: Mapping[str, int]) -> UserError:
    """Makes the error for a class that the training split does not have."""
    close = nearest(name, ids)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(
        f"{where} has the class {name!r}, which is not among the {len(ids)} classes of "
        f"the training split; {hint}remove it or add it to the training split"
    )


def translate_ids(
    labels: Int[np.ndarray, " n"],
    own_names: Sequence[str],
    class_names: Sequence[str],
    where: str,
) -> Int[np.ndarray, " n"]:
    """Renumbers class ids from a data set's own names to the training split's.

    Args:
      labels: Ids by `own_names`.
      own_names: Names of the data set's classes.
      class_names: Names that fix the ids.
      where: The data set, for the message.

    Raises:
      UserError: A class that occurs in `labels` but not in `class_names`.
    """
    if tuple(own_names) == tuple(class_names):
        return labels
    ids = class_ids(class_names)
    present = np.bincount(labels, minlength=len(own_names)) > 0
    table = np.full(len(own_names), -1, np.int32)
    for number, name in enumerate(own_names):
        if name in ids:
            table[number] = ids[name]
        elif present[number]:
            raise unknown_class(name, where, ids)
    return table[labels]

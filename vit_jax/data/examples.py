# SPDX-License-Identifier: Apache-2.0
"""What every source of examples is made of: records, labels and splits.

A form of data set (`folder:`, `csv:`, ...) opens as a `Collection`: records and labels
of the splits that were asked for, one behind the other. A `Source` is the view of a
collection that a split string selects; the pipelines and evaluators see only that.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection as Names, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from vit_jax.data.labels import Labels, MultiHot
from vit_jax.data.order import Mixture
from vit_jax.data.splits import find_split
from vit_jax.errors import UserError

ALL = "all"
"""The name that stands for every split of a data set, one behind the other."""

Rows = Int[np.ndarray, " n"]


@runtime_checkable
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


@dataclasses.dataclass(frozen=True, eq=False)
class Collection:
    """The splits of a data set that were asked for.

    Attributes:
      records: Their images.
      labels: Their labels, in the same rows.
      splits: First row and end of each split by its name.
      class_names: Name of each class id, None where classes have no names.
      label_places: Gives file and line of the labels of rows, for messages; None where
        an image's name says it.
    """

    records: Records
    labels: Labels
    splits: Mapping[str, tuple[int, int]]
    class_names: tuple[str, ...] | None = None
    label_places: Callable[[Rows], list[str]] | None = None


@dataclasses.dataclass(frozen=True)
class Request:
    """What a form of data set is asked to open.

    Attributes:
      location: The text behind the form's colon, without options.
      options: The options behind `@`.
      splits: Names of the splits that the user wants.
      class_names: Class names that fix the ids, None to take the training split's.
      data_dir: Where prepared TensorFlow Datasets lie, None for the default.
      lenient: Whether labels of unknown classes become -1, and images that are missing
        are left to be found out when they are read; else both are errors.
    """

    location: str
    options: Mapping[str, str]
    splits: Sequence[str]
    class_names: tuple[str, ...] | None = None
    data_dir: str | None = None
    lenient: bool = False

    def find_splits(self, known: Names[str], where: str) -> dict[str, str]:
        """Returns which split of a data set each one that was asked for is.

        Args:
          known: The data set's splits; `all` stands for each of them.
          where: The data set, for the message.

        Raises:
          UserError: A split that the data set does not have.
        """
        if list(self.splits) == [ALL] and ALL not in known:
            return {split: split for split in known}
        found: dict[str, str] = {}
        for asked in self.splits:
            split = find_split(asked, list(known))
            if split is None:
                raise UserError(
                    f"{where} has no split {asked!r}; it has {', '.join(sorted(known))}"
                )
            found[asked] = split
        return found


class Source:
    """The examples that a split string selects, in a fixed order.

    Attributes:
      class_names: Name of each class id, None where classes have no names.
      encoded: Whether images are encoded files and not pixels.
      description: Data set and split, for messages.
      mixture: How training draws from the parts of a mixture, None for a single source.
      broken: Rows that were found to be broken, with the reason; filled by training
        that skips errors.
    """

    def __init__(
        self,
        collection: Collection,
        ranges: Sequence[tuple[int, int]],
        description: str,
        mixture: Mixture | None = None,
    ):
        self.mixture = mixture
        self.broken: dict[int, str] = {}
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

    def take(self, rows: Rows) -> "Source":
        """Returns the view of some rows of this one, in their order."""
        places = self.locate(rows).tolist()
        ranges = [(place, place + 1) for place in places]
        description = f"{len(places)} examples of {self.description}"
        return Source(self._collection, ranges, description)

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
        return self._collection.records.read(self.locate(rows))

    def names(self, rows: Rows) -> list[str]:
        """Returns the name of each row, such as the path of its file."""
        return self._collection.records.names(self.locate(rows))

    def label_places(self, rows: Rows) -> list[str]:
        """Returns where the label of each row is written, such as `FILE:LINE`."""
        places = self._collection.label_places or self._collection.records.names
        return places(self.locate(rows))

    @property
    def records(self) -> Records:
        """The storage that this is a view of."""
        return self._collection.records

    def locate(self, rows: Rows) -> Rows:
        """Returns which rows of `records` the rows of this view are."""
        rows = np.asarray(rows, np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows must lie in 0..{len(self) - 1}")
        return rows + self._shifts[np.searchsorted(self._ends, rows, side="right")]

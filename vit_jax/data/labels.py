# SPDX-License-Identifier: Apache-2.0
"""Labels of examples and the names of their classes."""

import os
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath
from jaxtyping import Float32, Int

from vit_jax.data import imagenet
from vit_jax.data.buckets import bucket_errors, exists
from vit_jax.errors import UserError, nearest


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

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n k"]:
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

    Without such a file, `imagenet1k` and `imagenet21k` are the WordNet ids of
    `vit_jax.data.imagenet`.

    Raises:
      UserError: No such file, no name in it, or a name twice.
    """
    if os.path.basename(path) in imagenet.FILES and not exists(path):
        return imagenet.wnids(os.path.basename(path))
    try:
        with bucket_errors(path):
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
    known = labels >= 0  # -1 is TensorFlow Datasets' mark for "no label"
    present = np.bincount(labels[known], minlength=len(own_names)) > 0
    table = np.full(len(own_names), -1, np.int32)
    for number, name in enumerate(own_names):
        if name in ids:
            table[number] = ids[name]
        elif present[number]:
            raise unknown_class(name, where, ids)
    return np.where(known, table[labels], labels).astype(np.int32)

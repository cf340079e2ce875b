# SPDX-License-Identifier: Apache-2.0
"""A validation split made of a share of the training images, class by class.

Which images are held out depends on their names alone, so the split is the same on
every machine and in every run, and an image stays on its side when others are added.
"""

import re
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from vit_jax.data.examples import ALL, Collection, Records
from vit_jax.data.labels import Labels, MultiHot
from vit_jax.data.splits import find_split
from vit_jax.errors import UserError


def parse_share(text: str) -> float:
    """Returns the share that a text such as "10%" stands for.

    Raises:
      UserError: Another text, or a share that leaves nothing on one side.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share < 1:
        raise UserError(
            f"holdout={text} is no share of the training images; write a percentage "
            "between 0% and 100%, such as @holdout=10%"
        )
    return share


def open_with_holdout(
    open_splits: Callable[[Sequence[str]], Collection],
    splits: Sequence[str],
    share: float,
) -> Collection:
    """Opens splits of a data set; `validation` is made where there is none.

    Args:
      open_splits: Opens the splits of these names.
      splits: What the user asks for.
      share: Share of the images of each class that is held out: rounded, but one at
        least of every class that has two.

    Returns:
      The data set's own splits where it has a validation split; else `train` without
      the images held out, and `validation`.

    Raises:
      UserError: There is no training split to take images from.
    """
    whole = open_splits([ALL])
    if find_split("validation", list(whole.splits)) is not None:
        return open_splits(splits)
    if "train" not in whole.splits:
        raise UserError(
            f"@holdout takes images from the split 'train', but there is only "
            f"{', '.join(sorted(whole.splits))}; leave @holdout out"
        )
    start, stop = whole.splits["train"]
    rows = np.arange(start, stop)
    held_out = _held_out(whole.records.names(rows), _groups(whole.labels, rows), share)
    order = np.concatenate([rows[~held_out], rows[held_out]])
    splits_made = {
        "train": (0, int((~held_out).sum())),
        "validation": (int((~held_out).sum()), len(rows)),
    }
    for name, (first, last) in whole.splits.items():
        if name != "train":
            splits_made[name] = (len(order), len(order) + last - first)
            order = np.concatenate([order, np.arange(first, last)])
    # Under the names that the user has for them, such as val.
    for asked in splits:
        name = find_split(asked, list(splits_made))
        if name is not None:
            splits_made[asked] = splits_made[name]
    places = whole.label_places
    return Collection(
        _Reordered(whole.records, order),
        _reordered_labels(whole.labels, order),
        splits_made,
        whole.class_names,
        None if places is None else lambda rows: places(order[rows]),
    )


def _groups(labels: Labels, rows: np.ndarray) -> np.ndarray:
    """Returns what the share is taken of: the class, or all where there is none."""
    if isinstance(labels, MultiHot) or not np.issubdtype(labels.dtype, np.integer):
        return np.zeros(len(rows), np.int64)
    return labels[rows]


def _held_out(names: Sequence[str], groups: np.ndarray, share: float) -> np.ndarray:
    # Folder and file: where the whole lies must not matter.
    keys = np.array(["/".join(name.rsplit("/", 2)[-2:]) for name in names])
    hashes = np.array([zlib.crc32(key.encode()) for key in keys], np.uint32)
    result = np.zeros(len(names), bool)
    order = np.lexsort((keys, hashes, groups))
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        count = max(round(share * len(members)), 1) if len(members) > 1 else 0
        result[members[: min(count, len(members) - 1)]] = True
    return result


def _reordered_labels(labels: Labels, order: np.ndarray) -> Labels:
    if isinstance(labels, MultiHot):
        return labels.take([(int(row), int(row) + 1) for row in order])
    return labels[order]


class _Reordered:
    """Records in another order."""

    def __init__(self, records: Records, order: np.ndarray):
        self._records = records
        self._order = order
        self.encoded = records.encoded

    def read(self, rows: np.ndarray) -> list[bytes] | np.ndarray:
        return self._records.read(self._order[rows])

    def names(self, rows: np.ndarray) -> list[str]:
        return self._records.names(self._order[rows])

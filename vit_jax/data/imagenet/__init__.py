# SPDX-License-Identifier: Apache-2.0
"""ImageNet by name: its classes, and the ReaL labels of its validation images.

Classes are named by WordNet ids ("n01440764"), which are also the names of the folders
in ImageNet-1k, -21k, -A, -R and -Sketch; ImageNet-v2 names its folders by the class
ids. `@names=imagenet1k` or `@names=imagenet21k` behind a DATASET numbers them as the
released models do, whatever classes the data set lacks.

Where the files come from, and their licences, is told in NOTICE.
"""

import functools
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_jax.errors import UserError, unknown

FILES = {
    "imagenet1k": "imagenet1k_classes.tsv.gz",
    "imagenet21k": "imagenet21k_goog_classes.tsv.gz",
}
"""The lists of classes: the 1,000 of ILSVRC-2012, and the 21,843 of ImageNet-21k in the
order of Google's released models."""

NUM_VALIDATION = 50_000
_FOLDER = Path(__file__).parent
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")


class ImageNetClass(NamedTuple):
    """A class: its WordNet id, and the words for it, separated by commas."""

    wnid: str
    words: str


@functools.cache
def classes(name: str) -> tuple[ImageNetClass, ...]:
    """Returns the classes of a list in the order of their ids.

    Args:
      name: A key of `FILES`.

    Raises:
      UserError: Another name.

    Example:
      >>> classes("imagenet1k")[0]
      ImageNetClass(wnid='n01440764', words='tench, Tinca tinca')
    """
    if name not in FILES:
        raise unknown("list of classes", name, FILES)
    lines = gzip.decompress((_FOLDER / FILES[name]).read_bytes()).decode().splitlines()
    fields = [line.split("\t") for line in lines]
    return tuple(ImageNetClass(wnid, words) for _, wnid, words, *_ in fields)


@functools.cache
def wnids(name: str) -> tuple[str, ...]:
    """Returns the WordNet ids of a list, in the order of the class ids.

    Raises:
      UserError: See `classes`.
    """
    return tuple(each.wnid for each in classes(name))


@functools.cache
def real_labels() -> tuple[tuple[int, ...], ...]:
    """Returns the ReaL classes, ImageNet-1k ids, of each validation image in order.

    They are those that people agreed on (Beyer et al., "Are we done with ImageNet?",
    arXiv:2006.07159). 3,163 images have none, and no part in the evaluation.
    """
    data = gzip.decompress((_FOLDER / "real.json.gz").read_bytes())
    return tuple(tuple(ids) for ids in json.loads(data))


def validation_number(name: str) -> int:
    """Returns which validation image, 1 to 50,000, a file is by its name.

    Args:
      name: A name or path that holds `ILSVRC2012_val_` and eight digits.

    Raises:
      UserError: Another name.
    """
    matches = _VALIDATION_NAME.findall(name)
    number = int(matches[-1]) if matches else 0
    if not 1 <= number <= NUM_VALIDATION:
        raise UserError(
            f"{name} is no image of ImageNet's validation set, so it has no ReaL "
            "labels; these go by names ILSVRC2012_val_00000001 to "
            f"ILSVRC2012_val_{NUM_VALIDATION:08}"
        )
    return number


def real_ids(
    names: Sequence[str], class_names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Looks up the ReaL labels of files by their names.

    Args:
      names: Names of validation images; see `validation_number`.
      class_names: WordNet ids of the classes to number by. Labels of a class that is
        not among them are left out.

    Returns:
      `(offsets, ids)`: the classes of file i are `ids[offsets[i]:offsets[i + 1]]`.

    Raises:
      UserError: A file that is no validation image, or class names that are no WordNet
        ids of ImageNet-1k.
    """
    place = {name: number for number, name in enumerate(class_names)}
    table = [place.get(wnid) for wnid in wnids("imagenet1k")]
    if all(number is None for number in table):
        raise UserError(
            "ReaL labels need class names that are WordNet ids, such as n01440764, but "
            f"the classes are {', '.join(class_names[:3])}, ...; train on folders or "
            "shards that are named so"
        )
    found = [
        [table[label] for label in real_labels()[validation_number(name) - 1]]
        for name in names
    ]
    kept = [[label for label in row if label is not None] for row in found]
    offsets = np.cumsum([0, *map(len, kept)])
    return offsets, np.array([label for row in kept for label in row], np.int32)

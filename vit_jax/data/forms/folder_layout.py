# SPDX-License-Identifier: Apache-2.0
"""Rules by which folders name split and class, for `folder:DIR` and `zip:FILE` alike.

Layouts: `DIR/SPLIT/CLASS/IMAGE`, or `DIR/CLASS/IMAGE`, which is all `train`. The first
holds when a folder named train, test or like a validation split (val, valid,
validation, dev) has folders and no images of its own. A folder that holds images and no
folder, `DIR/IMAGE`, is all `train` without labels: each is -1. What counts:

- Images are files with an extension of `EXTENSIONS`, in any case, also in folders
  within a class. All other files are passed over.
- Hidden files and folders (`.cache/`, `.DS_Store`) and `__MACOSX/` are passed over.
- Examples are sorted by class, then path, both by their bytes.
- Ids follow the class folders of the training split, each of which must hold an image;
  `@names=FILE`, a file in DIR (for a zip file, beside it) with a name a line, fixes
  them instead, as does `@names=imagenet1k` (or `imagenet21k`); then a folder's name is
  a class name or, if no such name is there, an id.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from vit_jax.data.examples import Collection, Request
from vit_jax.data.labels import class_ids, read_class_names, sort_names, unknown_class
from vit_jax.data.splits import VALIDATION_NAMES
from vit_jax.data.tables import Table, Texts, join
from vit_jax.errors import UserError

EXTENSIONS = frozenset(".jpg .jpeg .png .bmp .gif .webp .tif .tiff .jp2 .avif".split())
SPLIT_NAMES = ("train", "test", *VALIDATION_NAMES)


@runtime_checkable
class Tree(Protocol):
    """Folders and images below one place."""

    name: str
    """What messages call it."""
    names_folder: str
    """Where the file of the option `names` lies."""

    def list(self, path: str) -> tuple[list[str], list[str]]:
        """Returns the names of the folders and of the images in a folder."""
        ...


@dataclasses.dataclass
class Listing:
    """Images in the order of their rows, with what their folders say."""

    paths: Texts
    labels: np.ndarray
    splits: dict[str, tuple[int, int]]
    class_names: tuple[str, ...] | None

    def collection(self, table: Table) -> Collection:
        """Returns the collection of these images, stored in `table`."""
        return Collection(table, self.labels, self.splits, self.class_names)


def list_examples(tree: Tree, request: Request) -> Listing:
    """Lists the images of the splits in `request`; the rules are those of this file.

    Raises:
      UserError: See `open_folder`.
    """
    folders, images = tree.list("")
    if images and not folders:
        return _unlabelled(tree, images, request)
    split_folders = _split_folders(tree)
    names = _class_names(tree, split_folders, request)
    ids = class_ids(names)
    if "names" in request.options:
        ids = {str(number): number for number in range(len(names))} | ids
    paths = Texts()
    labels: list[np.ndarray] = []
    splits: dict[str, tuple[int, int]] = {}
    for asked, split in request.find_splits(split_folders, tree.name).items():
        start = len(paths)
        for name, images in _walk_split(tree, split_folders[split]):
            if not images and split == "train":
                raise _empty_class(tree, split_folders[split], name)
            if images and name not in ids and not request.lenient:
                where = f"split {split!r} of {tree.name}"
                raise unknown_class(name, where, class_ids(names))
            paths.extend(images)
            labels.append(np.full(len(images), ids.get(name, -1), np.int32))
        if len(paths) == start:
            raise UserError(
                f"split {split!r} of {tree.name} holds no image in a class folder; "
                f"images end in {' '.join(sorted(EXTENSIONS))}"
            )
        splits[asked] = (start, len(paths))
    return Listing(paths, np.concatenate(labels), splits, names)


def _unlabelled(tree: Tree, images: list[str], request: Request) -> Listing:
    """Lists images that lie in no folder of a class."""
    count = len(images)
    asked = request.find_splits(["train"], tree.name)
    splits = {split: (0, count) for split in asked}
    paths = Texts(sorted(images, key=os.fsencode))
    return Listing(paths, np.full(count, -1, np.int32), splits, None)


def _split_folders(tree: Tree) -> dict[str, str]:
    """Returns the path of each split."""
    folders, _ = tree.list("")
    with_classes = [
        folder for folder in folders if _holds_only_folders(*tree.list(folder))
    ]
    if any(folder in SPLIT_NAMES for folder in with_classes):
        return {folder: folder for folder in with_classes}
    return {"train": ""}


def _holds_only_folders(folders: list[str], images: list[str]) -> bool:
    return bool(folders) and not images


def _class_names(
    tree: Tree, split_folders: dict[str, str], request: Request
) -> tuple[str, ...]:
    if request.class_names is not None:
        return request.class_names
    if "names" in request.options:
        return read_class_names(join(tree.names_folder, request.options["names"]))
    if "train" not in split_folders:
        raise UserError(
            f"{tree.name} has no training split to take class names from, only "
            f"{', '.join(sorted(split_folders))}; add one, or name a file in "
            f"{tree.names_folder or '.'} that has a class name a line: @names=FILE"
        )
    train = split_folders["train"]
    folders, _ = tree.list(train)
    for folder in folders:
        if not _holds_image(tree, join(train, folder)):
            raise _empty_class(tree, train, folder)
    return sort_names(set(folders))


def _walk_split(tree: Tree, split: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each class folder with the paths of its images, all sorted."""
    folders, _ = tree.list(split)
    for name in sort_names(set(folders)):
        images = list(_walk_images(tree, join(split, name)))
        yield name, sorted(images, key=os.fsencode)


def _walk_images(tree: Tree, path: str) -> Iterator[str]:
    folders, images = tree.list(path)
    yield from (f"{path}/{image}" for image in images)
    for folder in folders:
        yield from _walk_images(tree, f"{path}/{folder}")


def _holds_image(tree: Tree, path: str) -> bool:
    return next(_walk_images(tree, path), None) is not None


def _empty_class(tree: Tree, split: str, name: str) -> UserError:
    return UserError(
        f"the class folder {join(split, name)!r} of {tree.name} holds no image; remove "
        f"it or fill it (images end in {' '.join(sorted(EXTENSIONS))})"
    )


def is_hidden(name: str) -> bool:
    """Whether a file or folder of this name is passed over."""
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    """Whether a file of this name counts as an image."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS

# SPDX-License-Identifier: Apache-2.0
"""Looks into the archives in which ImageNet is handed out, without unpacking them.

    ilsvrc2012:DIR    ILSVRC2012_img_train.tar, a tar of 1,000 tars that are named after
                      their classes; ILSVRC2012_img_val.tar, with the validation labels
                      in one of the files that `validation_wnids` reads
    imagenet21k:DIR   nXXXXXXXX.tar for each class, or one tar of these, *_whole.tar

An image is a range of bytes of an archive, as in every other table.
"""

import dataclasses
import io
import os
import re
import tarfile
from collections.abc import Sequence

import numpy as np
from etils import epath

from vit_jax.data import imagenet
from vit_jax.data.examples import Collection, Source
from vit_jax.data.forms.folder_layout import is_image
from vit_jax.data.prepare.labels import validation_wnids
from vit_jax.data.prepare.plan import write_whole
from vit_jax.data.tables import Table, Texts
from vit_jax.errors import UserError

TRAIN = "ILSVRC2012_img_train.tar"
VALIDATION = "ILSVRC2012_img_val.tar"
_WNID = re.compile(r"n\d{8}")


@dataclasses.dataclass(frozen=True)
class Archive:
    """A tar file, or a tar file inside one.

    Attributes:
      path: The file.
      start: First byte in the file.
      size: Number of bytes; None for all of the file.
      wnid: The class of all its images; None for ImageNet's validation images.
    """

    path: str
    start: int
    size: int | None
    wnid: str | None


@dataclasses.dataclass(frozen=True)
class RawData:
    """The archives of one split, before anybody looked into them.

    Attributes:
      name: What messages call it.
      split: The split.
      classes: Which list of classes numbers them, a key of `imagenet.FILES`.
      archives: The archives, sorted by class.
    """

    name: str
    split: str
    classes: str
    archives: Sequence[Archive]


def find_archives(form: str, folder: str, split: str) -> RawData:
    """Finds the archives of a split.

    Args:
      form: "ilsvrc2012" or "imagenet21k".
      folder: Where they lie.
      split: "train", or "validation" of ilsvrc2012.

    Raises:
      UserError: An archive that is missing or cannot be read, or another split.
    """
    name = f"{form}:{folder}"
    root = epath.Path(folder).expanduser()
    splits = {"ilsvrc2012": ("train", "validation"), "imagenet21k": ("train",)}[form]
    if split not in splits:
        raise UserError(f"{name} has no split {split!r}; use {' or '.join(splits)}")
    if form == "imagenet21k":
        return RawData(name, split, "imagenet21k", _synset_archives(root))
    path = os.fspath(root / (TRAIN if split == "train" else VALIDATION))
    if split == "train":
        archives = _inner_archives(path)
    else:
        archives = [Archive(path, 0, None, None)]
    return RawData(name, split, "imagenet1k", archives)


def _synset_archives(root: epath.Path) -> list[Archive]:
    paths = sorted(os.fspath(path) for path in root.glob("*.tar"))
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    whole = [p for p, stem in zip(paths, stems, strict=True) if stem.endswith("_whole")]
    found = [
        Archive(path, 0, None, stem)
        for path, stem in zip(paths, stems, strict=True)
        if _WNID.fullmatch(stem)
    ]
    if not found and len(whole) == 1:
        return _inner_archives(whole[0])
    if not found:
        raise UserError(
            f"{root} holds neither tar files named after classes, such as "
            "n00004475.tar, nor one tar of them that is named *_whole.tar"
        )
    return found


def _inner_archives(path: str) -> list[Archive]:
    """Lists the tar files in a tar file, by their class."""
    found = []
    for member in _members(Archive(path, 0, None, None)):
        stem, suffix = os.path.splitext(os.path.basename(member.name))
        if suffix == ".tar" and _WNID.fullmatch(stem):
            found.append(Archive(path, member.offset_data, member.size, stem))
    if not found:
        raise UserError(
            f"{path} holds no tar file that is named after a class; is it the archive "
            "that the page of ImageNet hands out?"
        )
    return sorted(found, key=lambda archive: archive.wnid or "")


def index_archive(archive: Archive, path: str) -> None:
    """Writes to the file `path` which images an archive holds, and where.

    Raises:
      UserError: An archive that is cut, packed or no tar file.
    """
    names, offset, length = Texts(), [], []
    for member in _members(archive):
        if member.isfile() and is_image(member.name):
            names.extend([os.path.basename(member.name)])
            offset.append(member.offset_data)
            length.append(member.size)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        names=np.frombuffer(bytes(names.block), np.uint8),
        ends=np.array(names.ends, np.int64),
        offset=np.array(offset, np.int64),
        length=np.array(length, np.int64),
    )
    write_whole(path, buffer.getvalue())


def merge_indices(raw: RawData, paths: Sequence[str]) -> Source:
    """Makes one source of the files that `index_archive` wrote, one an archive.

    Raises:
      UserError: Classes that ImageNet does not have, or validation labels that are
        missing.
    """
    class_names = imagenet.wnids(raw.classes)
    ids = Texts()
    columns: dict[str, list[np.ndarray]] = {"offset": [], "length": []}
    counts: list[int] = []
    for path in paths:
        with np.load(io.BytesIO(epath.Path(path).read_bytes())) as index:
            block, ends = index["names"].tobytes(), index["ends"]
            starts = np.concatenate([[0], ends[:-1]]).astype(int)
            ids.extend(
                os.fsdecode(block[start:end])
                for start, end in zip(starts, ends, strict=True)
            )
            for name, parts in columns.items():
                parts.append(index[name])
            counts.append(len(ends))
    files = sorted({archive.path for archive in raw.archives})
    which = [files.index(archive.path) for archive in raw.archives]
    table = Table(
        root="",
        paths=Texts(files),
        file_index=np.repeat(np.array(which, np.int32), counts),
        offset=np.concatenate(columns["offset"]),
        length=np.concatenate(columns["length"]),
        ids=ids,
    )
    labels = _labels(raw, counts, ids, class_names)
    collection = Collection(table, labels, {raw.split: (0, len(labels))}, class_names)
    return Source(collection, [(0, len(labels))], f"{raw.name} {raw.split}")


def _labels(
    raw: RawData, counts: Sequence[int], ids: Texts, class_names: Sequence[str]
) -> np.ndarray:
    place = {name: number for number, name in enumerate(class_names)}
    if raw.archives[0].wnid is None:
        wnids = validation_wnids(os.path.dirname(raw.archives[0].path))
        numbers = [imagenet.validation_number(ids[row]) for row in range(len(ids))]
        return np.array([place[wnids[number - 1]] for number in numbers], np.int32)
    wnids = [archive.wnid for archive in raw.archives]
    strange = [wnid for wnid in wnids if wnid not in place]
    if strange:
        raise UserError(
            f"{raw.name} has {len(strange)} classes that are not among the "
            f"{len(class_names)} of {raw.classes}, such as {strange[0]}; take those "
            "archives away"
        )
    return np.repeat(np.array([place[w or ""] for w in wnids], np.int32), counts)


def _members(archive: Archive) -> list[tarfile.TarInfo]:
    """Reads the headers of an archive; places are those in its file."""
    try:
        with epath.Path(archive.path).open("rb") as file:
            file.seek(archive.start)  # TarFile counts from where the file stands
            members = tarfile.TarFile(fileobj=file, mode="r").getmembers()
    except tarfile.TarError as err:
        raise UserError(
            f"{archive.path} is no whole, uncompressed tar file ({err}); copy it "
            "again, and unpack .tar.gz first"
        ) from err
    except OSError as err:
        raise UserError(
            f"cannot read {archive.path}: {err.strerror or err}; put the archive there"
        ) from err
    end = archive.start + (archive.size or 2**62)
    if any(member.offset_data + member.size > end for member in members):
        raise UserError(
            f"the archive of {archive.wnid} in {archive.path} is cut; copy it again"
        )
    return members

# SPDX-License-Identifier: Apache-2.0
"""Sources whose folders name split and class: `folder:DIR` and `zip:FILE`.

The rules that the two share, such as what counts as an image, are in `folder_layout`.
"""

import io
import os
import struct
import zipfile
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from etils import epath

from vit_jax.data.buckets import bucket_errors, is_folder, is_remote, open_stream
from vit_jax.data.examples import Collection, Request
from vit_jax.data.forms.folder_layout import (
    SPLIT_NAMES,
    is_hidden,
    is_image,
    list_examples,
)
from vit_jax.data.tables import Table, Texts, join
from vit_jax.errors import UserError


def open_folder(request: Request) -> Collection:
    """Opens `folder:DIR`.

    Raises:
      UserError: No such folder, a split that it does not have, an empty class in the
        training split, a class that the training split lacks, or no image at all.
    """
    root = os.fspath(epath.Path(request.location).expanduser())
    if not is_folder(root):
        raise UserError(
            f"the folder {root} does not exist; write folder:DIR with a folder "
            "DIR/SPLIT/CLASS/IMAGE or DIR/CLASS/IMAGE"
        )
    listing = list_examples(FolderTree(root), request)
    return listing.collection(Table(root=root, paths=listing.paths))


def open_zip(request: Request) -> Collection:
    """Opens `zip:FILE`, whose members are stored or deflated.

    Raises:
      UserError: No such file, not a zip file, members that are encrypted or packed
        otherwise, and all that `open_folder` refuses.
    """
    path = os.fspath(epath.Path(request.location).expanduser())
    try:
        with open_stream(path) as file, zipfile.ZipFile(file) as archive:
            tree = ZipTree(path, archive)
            listing = list_examples(tree, request)
            members = [
                tree.members[tree.member_path(listing.paths[row])]
                for row in range(len(listing.paths))
            ]
            table = _member_table(path, listing.paths, members, file)
    except OSError as err:
        raise UserError(
            f"cannot read {path}: {err.strerror or err}; write zip:FILE with the path "
            "of a zip file"
        ) from err
    except zipfile.BadZipFile as err:
        raise UserError(f"{path} is no whole zip file ({err}); copy it again") from err
    return listing.collection(table)


class FolderTree:
    """A folder, local or in a bucket."""

    def __init__(self, root: str):
        self.name = root
        self.names_folder = root
        self._remote = is_remote(root)

    def list(self, path: str) -> tuple[list[str], list[str]]:
        """Returns the names of the folders and of the images in a folder."""
        if self._remote:
            # Asking whether it is a folder costs a request; images are taken for files.
            folder = join(self.name, path)
            with bucket_errors(folder):
                return _sort_entries(
                    (child.name, lambda child=child: _is_remote_folder(child))
                    for child in epath.Path(folder).iterdir()
                )
        with os.scandir(join(self.name, path)) as scan:
            return _sort_entries((entry.name, entry.is_dir) for entry in scan)


class ZipTree:
    """The members of a zip file; one folder around everything is looked through."""

    def __init__(self, name: str, file: zipfile.ZipFile):
        self.name = name
        self.names_folder = os.path.dirname(name)
        self.members = {info.filename: info for info in file.infolist()}
        self._folders: dict[str, set[str]] = {"": set()}
        self._images: dict[str, list[str]] = {"": []}
        for path in self.members:
            self._add(path)
        self._top = ""
        folders, images = self.list("")
        if len(folders) == 1 and not images and not self.list(folders[0])[1]:
            if folders[0] not in SPLIT_NAMES:
                self._top = folders[0]

    def member_path(self, path: str) -> str:
        """Returns the name in the zip file of a path of this tree."""
        return f"{self._top}/{path}" if self._top else path

    def list(self, path: str) -> tuple[list[str], list[str]]:
        """Returns the names of the folders and of the images in a folder."""
        place = self.member_path(path).rstrip("/")
        return sorted(self._folders.get(place, ())), self._images.get(place, [])

    def _add(self, path: str) -> None:
        *folders, file = path.split("/")  # a folder's own entry ends in "/"
        if any(is_hidden(part) for part in (*folders, file)):
            return
        place = ""
        for folder in folders:
            self._folders.setdefault(place, set()).add(folder)
            place = f"{place}/{folder}" if place else folder
        if is_image(file):
            self._images.setdefault(place, []).append(file)


def _is_remote_folder(path: epath.Path) -> bool:
    return not is_image(path.name) and path.is_dir()


def _sort_entries(
    entries: Iterable[tuple[str, Callable[[], bool]]],
) -> tuple[list[str], list[str]]:
    """Sorts what a folder holds into names of folders and of images."""
    folders: list[str] = []
    images: list[str] = []
    for name, is_dir in entries:
        if is_hidden(name):
            continue
        if is_dir():
            folders.append(name)
        elif is_image(name):
            images.append(name)
    return folders, images


def _member_table(
    path: str, ids: Texts, members: Sequence[zipfile.ZipInfo], file: io.BufferedReader
) -> Table:
    """Finds the byte range of each member: its data follow a header of its own."""
    offset = np.zeros(len(members), np.int64)
    for row, member in enumerate(members):
        packed = member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if packed or member.flag_bits & 1:
            raise UserError(
                f"{path} holds {member.filename!r} encrypted or packed otherwise than "
                "stored or deflated; pack it again with 'zip -0 -r'"
            )
        # The sizes of name and extra field, which may differ from the directory's.
        file.seek(member.header_offset + 26)
        name_size, extra_size = struct.unpack("<HH", file.read(4))
        offset[row] = member.header_offset + 30 + name_size + extra_size
    deflated = np.array([member.compress_type != 0 for member in members])
    return Table(
        root="",
        paths=Texts([path]),
        file_index=np.zeros(len(members), np.int32),
        offset=offset,
        length=np.array([member.compress_size for member in members], np.int64),
        deflated=deflated if deflated.any() else None,
        ids=ids,
    )

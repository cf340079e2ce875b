# SPDX-License-Identifier: Apache-2.0
"""Finds examples in tar files as WebDataset writes them, without reading images.

An example is the files that stand one after the other and share a key, the path up to
the first dot of the file's name: `KEY.jpg` (an extension of `folder_layout`) with

  KEY.cls    a text: a class id or name; or
  KEY.json   an object with one of `label` (id or name), `target` (a number) or
             `labels` (a list of ids or names)

With both, `KEY.cls` counts. Other files are passed over, hidden ones too. An image
without a label and a label without an image are errors. The layout of a tar file is
that of POSIX.1-1988 with the long names of GNU and POSIX.1-2001 (pax); sparse and
compressed files are refused by name.
"""

import json
import tarfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.data.forms.folder_layout import EXTENSIONS, is_hidden
from vit_jax.data.shards.index_file import Found, Label
from vit_jax.data.shards.protobuf import Buffer
from vit_jax.data.shards.tfrecords import check_uncompressed, open_buffer
from vit_jax.errors import UserError

_BLOCK = 512
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_WITH_DATA = (
    *_FILES,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
)
_JSON_KEYS = ("label", "labels", "target")


class Member(NamedTuple):
    """A file in a tar file: its name and where its bytes lie."""

    name: str
    start: int
    stop: int


class TarReader(NamedTuple):
    """Goes through a tar file, as a `shard_store.Reader`."""

    @property
    def name(self) -> str:
        """Name of the index files."""
        return "tar"

    def __call__(self, path: str) -> Iterator[Found]:
        """Yields the examples of a file.

        Raises:
          UserError: A file that is cut, compressed or no tar file, or an example
            without image or label; the text names file and offset.
        """
        with open_buffer(path) as buffer:
            check_uncompressed(buffer, path)
            key = None
            group: dict[str, Member] = {}
            for member in members(buffer, path):
                member_key, extension = _cut_name(member.name)
                if member_key != key:
                    yield from _examples(buffer, group, path)
                    key, group = member_key, {}
                _add(group, extension, member, path)
            yield from _examples(buffer, group, path)


def members(buffer: Buffer, path: str) -> Iterator[Member]:
    """Yields the files of a tar file.

    Raises:
      UserError: A file that is cut or no tar file, or holds a sparse file.
    """
    place, name, size = 0, "", None
    while True:
        block = buffer[place : place + _BLOCK]
        if len(block) < _BLOCK:
            raise UserError(
                f"{path} ends at byte {len(buffer)} without the empty block that "
                "closes a tar file: it is cut; copy it again"
            )
        if not any(block):
            return
        header = _parse_header(block, path, place)
        start = place + _BLOCK
        stop = start
        if header.type in _WITH_DATA:
            stop += header.size if size is None else size
        if stop > len(buffer):
            raise UserError(
                f"{path} ends inside {name or header.name!r}, which starts at byte "
                f"{place}: it is cut; copy it again"
            )
        if header.type in _FILES:
            yield Member(name or header.name, start, stop)
        name, size = _next_name(header.type, bytes(buffer[start:stop]), name, size)
        place = stop + -stop % _BLOCK


def _parse_header(block: bytes, path: str, place: int) -> tarfile.TarInfo:
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as err:
        raise UserError(
            f"{path} holds at byte {place} no header of a tar file ({err}): it is "
            "damaged or no tar file; copy it again, or pack it again with 'tar -cf'"
        ) from err
    if header.type == tarfile.GNUTYPE_SPARSE:
        raise UserError(
            f"{path} holds the sparse file {header.name!r} at byte {place}; pack it "
            "again without --sparse"
        )
    return header


def _next_name(
    kind: bytes, data: bytes, name: str, size: int | None
) -> tuple[str, int | None]:
    """Returns name and size that a header of its own gives to the next member."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return data.rstrip(b"\0").decode("utf-8", "surrogateescape"), size
    if kind in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
        fields = _pax_fields(data)
        if b"size" in fields:
            size = int(fields[b"size"])
        if b"path" in fields:
            name = fields[b"path"].decode("utf-8", "surrogateescape")
        return name, size
    if kind in (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE):
        return name, size
    return "", None


def _pax_fields(data: bytes) -> dict[bytes, bytes]:
    """Reads the records `LENGTH KEY=VALUE` and a line feed of a pax header."""
    fields: dict[bytes, bytes] = {}
    while data.strip(b"\0"):
        length = int(data.split(b" ", 1)[0])
        key, _, value = data[:length].split(b" ", 1)[1].rstrip(b"\n").partition(b"=")
        fields[key] = value
        data = data[length:]
    return fields


def _cut_name(name: str) -> tuple[str, str]:
    """Cuts a path at the first dot of the file's name."""
    folder, slash, file = name.removeprefix("./").rpartition("/")
    stem, _, extension = file.partition(".")
    return folder + slash + stem, extension.lower()


def _add(group: dict[str, Member], extension: str, member: Member, path: str) -> None:
    """Adds a file to its example, by what it is: "image", "cls" or "json"."""
    if any(is_hidden(part) for part in member.name.removeprefix("./").split("/")):
        return
    kind = "image" if f".{extension}" in EXTENSIONS else extension
    if kind not in ("image", "cls", "json"):
        return
    if kind in group:
        raise UserError(
            f"{path}@{member.start}: {member.name!r} is a second {kind} beside "
            f"{group[kind].name!r}; give every example a key of its own"
        )
    group[kind] = member


def _examples(buffer: Buffer, group: dict[str, Member], path: str) -> Iterator[Found]:
    """Yields the example of the files with one key, if there is one."""
    image = group.get("image")
    label = group.get("cls") or group.get("json")
    if image is None and label is None:
        return
    if image is None:
        text = "has no image with its key before or behind it"
        raise _missing(label or Member("", 0, 0), text, path)
    if label is None:
        raise _missing(image, "has no .cls or .json with its key beside it", path)
    data = bytes(buffer[label.start : label.stop])
    where = f"{path}@{label.start}: {label.name!r}"
    value = _parse_text(data, where) if "cls" in group else _parse_json(data, where)
    yield Found(image.start, image.stop - image.start, value)


def _missing(member: Member, text: str, path: str) -> UserError:
    return UserError(
        f"{path}@{member.start}: {member.name!r} {text}; the files of an example must "
        f"stand one after the other (images end in {' '.join(sorted(EXTENSIONS))}): "
        "pack the shard again"
    )


def _parse_text(data: bytes, where: str) -> str:
    try:
        text = data.decode().strip()
    except UnicodeDecodeError as err:
        raise UserError(f"{where} is no UTF-8 text ({err}); write it again") from err
    if not text:
        raise UserError(f"{where} is empty; write a class id or name into it")
    return text


def _parse_json(data: bytes, where: str) -> Label:
    try:
        fields = json.loads(data)
    except ValueError as err:
        raise UserError(f"{where} is no JSON ({err}); write it again") from err
    keys = list(fields) if isinstance(fields, dict) else []
    found = [key for key in _JSON_KEYS if key in keys]
    if len(found) != 1:
        raise UserError(
            f"{where} has {' and '.join(found) or 'no label'} among its keys "
            f"({', '.join(keys) or 'none'}); give one of {', '.join(_JSON_KEYS)}"
        )
    value = fields[found[0]]
    if found[0] == "labels" and isinstance(value, list):
        if all(map(_is_class, value)):
            return [str(item) for item in value]
    elif found[0] == "label" and _is_class(value):
        return value
    elif found[0] == "target" and _is_number(value):
        return float(value)
    raise UserError(
        f"{where} has the {found[0]} {value!r}; a label is a name or a whole number, "
        "labels a list of them, a target a finite number"
    )


def _is_class(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) < float("inf")

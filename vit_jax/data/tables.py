# SPDX-License-Identifier: Apache-2.0
"""Tables of byte ranges: the usual storage of a source, for any number of rows.

A row says in which file, from where and how long an encoded image lies. The columns
are NumPy arrays, the texts one block of bytes, so that a row costs tens of bytes and
no Python object.
"""

import array
import concurrent.futures
import dataclasses
import functools
import os
import zlib
from collections.abc import Callable, Iterable

import numpy as np
from etils import epath

from vit_jax.data.buckets import bucket_errors, is_remote, read_bytes
from vit_jax.data.examples import Rows
from vit_jax.errors import UserError

OPEN_FILES = 128
"""How many files a table keeps open; shards stay open, single images do not."""
LOCAL_READERS = 8
"""Reads in flight for local files: hides the latency of network disks, and costs a
cached file one part in ten of the 10 microseconds that its reading takes."""
REMOTE_READERS = 32
"""Reads in flight for files in buckets, where each takes tens of milliseconds."""


class Texts:
    """A sequence of texts in one block of bytes, to which texts are only added.

    Attributes:
      block: All texts in the encoding of file names, one after the other.
      ends: Where each text ends.
    """

    def __init__(self, texts: Iterable[str] = ()):
        self.block = bytearray()
        self.ends = array.array("q")
        self.extend(texts)

    def extend(self, texts: Iterable[str]) -> None:
        """Adds texts at the end."""
        for text in texts:
            self.block += os.fsencode(text)
            self.ends.append(len(self.block))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> str:
        start = self.ends[row - 1] if row else 0
        return os.fsdecode(bytes(self.block[start : self.ends[row]]))


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """Encoded images as byte ranges of files.

    Attributes:
      root: Folder of the files, local or a bucket's.
      paths: Files, relative to `root` or absolute.
      file_index: int32 (n,) the file of each row; None when row i is all of file i.
      offset: int64 (n,) first byte of each row; None for whole files.
      length: int64 (n,) number of bytes of each row; None for whole files.
      deflated: bool (n,) which rows are raw deflate streams; None when none is.
      ids: Identity of each row within its file; None when the file or the offset in it
        is that.
    """

    root: str
    paths: Texts
    file_index: np.ndarray | None = None
    offset: np.ndarray | None = None
    length: np.ndarray | None = None
    deflated: np.ndarray | None = None
    ids: Texts | None = None
    encoded: bool = True

    def __len__(self) -> int:
        return len(self.paths if self.file_index is None else self.file_index)

    def read(self, rows: Rows) -> list[bytes]:
        """Returns the encoded images of `rows`.

        Raises:
          UserError: A file that is gone or shorter than it was.
        """
        if len(rows) < 2 * LOCAL_READERS:
            return self._read_part(rows)
        readers = REMOTE_READERS if is_remote(self._path(0)) else LOCAL_READERS
        parts = _readers().map(self._read_part, np.array_split(rows, readers))
        return [data for part in parts for data in part]

    def names(self, rows: Rows) -> list[str]:
        """Returns the path of each row's file, with `:ID` or `@OFFSET` for its part."""
        return [self._name(row) for row in rows.tolist()]

    def _read_part(self, rows: Rows) -> list[bytes]:
        return [self._read_row(row) for row in rows.tolist()]

    def _name(self, row: int) -> str:
        if self.ids is not None:
            return f"{self._path(row)}:{self.ids[row]}"
        if self.offset is not None:
            return f"{self._path(row)}@{self.offset[row]}"
        return self._path(row)

    def _path(self, row: int) -> str:
        number = row if self.file_index is None else int(self.file_index[row])
        return join(self.root, self.paths[number])

    def _read_row(self, row: int) -> bytes:
        path = self._path(row)
        try:
            if self.offset is None or self.length is None:
                return _read_file(path)
            offset, length = int(self.offset[row]), int(self.length[row])
            data = self._open(path).read(offset, length)
        except OSError as err:
            raise UserError(
                f"cannot read {path}: {err.strerror or err}; put the file back"
            ) from err
        if len(data) < length:
            raise UserError(
                f"{path} ends inside the image {self._name(row)}; it changed or was "
                "copied in part: copy it again"
            )
        if self.deflated is not None and self.deflated[row]:
            return self._inflate(data, row)
        return data

    def _inflate(self, data: bytes, row: int) -> bytes:
        try:
            return zlib.decompress(data, wbits=-zlib.MAX_WBITS)
        except zlib.error as err:
            raise UserError(
                f"{self._name(row)} is damaged ({err}); copy the file again"
            ) from err

    @functools.cached_property
    def _open(self) -> "functools._lru_cache_wrapper[OpenFile]":
        return functools.lru_cache(maxsize=OPEN_FILES)(open_file)


class LocalFile:
    """A file that any number of threads read at once.

    It closes when the last of them lets go of it, so that a cache may drop it while
    another thread still reads.
    """

    def __init__(self, path: str):
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`, fewer where the file ends."""
        data = os.pread(self._fd, length, offset)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A default, as `os` may be gone when the interpreter ends.
        if hasattr(self, "_fd"):  # not there if the file could not be opened
            close(self._fd)


class RemoteFile:
    """A file in a bucket, opened anew for each read, as its handles are not shared."""

    def __init__(self, path: str):
        self._path = path

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset`, fewer where the file ends."""
        with (
            bucket_errors(self._path),
            epath.Path(self._path).open("rb") as file,
        ):
            file.seek(offset)
            return file.read(length)


OpenFile = LocalFile | RemoteFile


def open_file(path: str) -> OpenFile:
    """Opens a local file, or one in a bucket, for reads at any place."""
    return RemoteFile(path) if is_remote(path) else LocalFile(path)


def join(root: str, path: str) -> str:
    """Returns `root/path`, or `path` alone where it is absolute."""
    if is_remote(path) or not root:
        return path
    return os.path.join(root, path)


def _read_file(path: str) -> bytes:
    if is_remote(path):
        return read_bytes(path)
    with open(path, "rb", buffering=0) as file:
        return file.readall()


@functools.cache
def _readers() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(REMOTE_READERS, "vit_jax_read")

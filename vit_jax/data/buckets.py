# SPDX-License-Identifier: Apache-2.0
"""Files in buckets, such as `gs://bucket/file`, with Python's own errors and streams.

TensorFlow's client, which `etils.epath` calls, raises exceptions of its own, whose
texts have several lines, and its files lack what `io` and `zipfile` ask a stream for.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from etils import epath

from vit_jax.errors import UserError

_LONGEST_REASON = 300
"""A server's answer can be a page; its first words say what is wrong."""
_BLOCK = 1 << 20
"""Bytes that a stream asks for at once, as each request takes tens of milliseconds."""


def is_remote(path: str) -> bool:
    """Whether a path names a bucket's file, such as `gs://bucket/file`."""
    return "://" in path


@contextlib.contextmanager
def bucket_errors(path: str) -> Iterator[None]:
    """Turns what the client of a bucket raises into errors that callers know.

    Args:
      path: What is being read, written or looked for.

    Raises:
      FileNotFoundError: There is no such file, folder or bucket.
      UserError: The bucket does not answer, or does not let us in.
    """
    try:
        yield
    except _client_errors() as err:
        if not is_remote(path):
            raise
        if type(err).__name__ == "NotFoundError" or isinstance(err, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from err
        reason = " ".join(str(err).split())[:_LONGEST_REASON]
        raise UserError(
            f"cannot reach {path}: {reason}; check the bucket's name, the network, and "
            "who you are there ('gcloud auth application-default login')"
        ) from err


def _client_errors() -> tuple[type[Exception], ...]:
    # Whoever raised one of its exceptions has imported TensorFlow.
    tensorflow = sys.modules.get("tensorflow")
    return (OSError, tensorflow.errors.OpError) if tensorflow else (OSError,)


def open_stream(path: str) -> io.BufferedReader:
    """Opens a file, local or in a bucket, as a stream of bytes that can seek.

    Raises:
      OSError: No such file, or one that cannot be read.
      UserError: A bucket that does not answer.
    """
    if not is_remote(path):
        return open(path, "rb")
    return io.BufferedReader(_BucketStream(path), _BLOCK)


class _BucketStream(io.RawIOBase):
    """What `io.BufferedReader` needs of a file in a bucket."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path
        self._stack = contextlib.ExitStack()
        with bucket_errors(path):
            file = epath.Path(path).open("rb")
            self._file = self._stack.enter_context(file)
            self._file.seek(0)  # opens it: the client puts that off to the first read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with bucket_errors(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with bucket_errors(self._path):
            self._file.seek(offset, whence)
            return self._file.tell()

    def tell(self) -> int:
        with bucket_errors(self._path):
            return self._file.tell()

    def close(self) -> None:
        self._stack.close()
        super().close()


def read_bytes(path: str) -> bytes:
    """Returns what a file in a bucket holds.

    Raises:
      FileNotFoundError: No such file.
      UserError: A bucket that does not answer.
    """
    with bucket_errors(path):
        return epath.Path(path).read_bytes()


def exists(path: str) -> bool:
    """Whether there is such a file or folder, local or in a bucket.

    Raises:
      UserError: A bucket that does not answer.
    """
    with bucket_errors(path):
        return epath.Path(path).exists()


def is_folder(path: str) -> bool:
    """Whether there is such a folder, local or in a bucket.

    Raises:
      UserError: A bucket that does not answer.
    """
    with bucket_errors(path):
        folder = epath.Path(path)
        # The client takes a bucket that does not answer for none; `exists` does not.
        return folder.is_dir() or (folder.exists() and folder.is_dir())

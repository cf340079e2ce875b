# SPDX-License-Identifier: Apache-2.0
"""Output files that are there whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from etils import epath

from vit_jax.errors import UserError


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Any]:
    """Opens a file for bytes under a name beside its own, and renames it at the end.

    Args:
      path: The file's own name, which it has only once everything is written.
      overwrite: Whether a file of that name may be replaced.

    Yields:
      The open file.

    Raises:
      UserError: The file exists and may not be replaced, or cannot be written.
    """
    whole = epath.Path(path)
    if whole.exists() and not overwrite:
        raise UserError(f"{whole} exists; give another --output, or remove it first")
    part = whole.with_name(f"{whole.name}.{os.getpid()}.part")
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
        part.replace(whole)
    except OSError as err:
        raise UserError(
            f"cannot write {whole}: {err.strerror or err}; free space there or give "
            "another --output"
        ) from err
    finally:
        with contextlib.suppress(OSError):
            part.unlink()

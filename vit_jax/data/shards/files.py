# SPDX-License-Identifier: Apache-2.0
"""Finds the files that a GLOB names, and which split each of them belongs to.

A GLOB has the wildcards `*`, `?`, `[...]` and, except in buckets, `**` (any folders),
and braces: `{0000..0127}` counts, `{train,val}` lists, also one inside the other. Every
alternative of the braces must name a file. Files are sorted by the bytes of their
paths.

The split of a file is the last word of its name that is a split's name (train, test,
val, valid, validation, dev, or one that was asked for), as in
`imagenet-train-0001.tar`; without one the nearest folder that is called so, as in
`train/0001.tar`. Files without any such name are all `train`; a part of the files
without one is an error. `@split=NAME` says instead that all files are of that split.
"""

import glob
import os
import re
from collections.abc import Iterator, Sequence

from etils import epath

from vit_jax.data.buckets import bucket_errors, exists, is_remote
from vit_jax.data.examples import Request
from vit_jax.data.forms.folder_layout import SPLIT_NAMES
from vit_jax.errors import UserError

_COUNT = re.compile(r"(\d+)\.\.(\d+)")
_WILDCARD = re.compile(r"[*?[]")
_WORD = re.compile(r"[^\W\d_]+")
MAX_FILES = 1_000_000


def find_files(pattern: str) -> list[str]:
    """Returns the files that a GLOB names, sorted.

    Raises:
      UserError: Braces that do not close or count too far, an alternative without a
        file, or a bucket that does not answer or is asked for `**`.
    """
    found: set[str] = set()
    for alternative in expand_braces(os.fspath(epath.Path(pattern).expanduser())):
        files = list(_match(alternative))
        if not files:
            raise UserError(
                f"there is no file {alternative}; write a GLOB such as "
                "/data/train-*.tar or /data/{train,val}-{0000..0127}.tar"
            )
        found.update(files)
    return sorted(found, key=os.fsencode)


def expand_braces(pattern: str) -> list[str]:
    """Returns the patterns without braces that one with braces stands for.

    Raises:
      UserError: Braces that do not close or stand for too many patterns.

    Example:
      >>> expand_braces("a-{08..10}.{tar,{x,y}.z}")[:4]
      ['a-08.tar', 'a-08.x.z', 'a-08.y.z', 'a-09.tar']
    """
    done: list[str] = []
    todo = [pattern]
    while todo:
        text = todo.pop()
        start = text.find("{")
        if start < 0:
            done.append(text)
            continue
        stop = _closing(text, start, pattern)
        parts = _alternatives(text[start + 1 : stop], pattern)
        todo += [text[:start] + part + text[stop + 1 :] for part in reversed(parts)]
        if len(done) + len(todo) > MAX_FILES:
            raise UserError(
                f"the braces of {pattern!r} stand for more than {MAX_FILES:,} files; "
                "use a wildcard such as *"
            )
    return done


def _closing(text: str, start: int, pattern: str) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise UserError(f"{pattern!r} has a {{ without its }}; close it, as in {{00..31}}")


def _alternatives(text: str, pattern: str) -> list[str]:
    if match := _COUNT.fullmatch(text):
        first, last = match.groups()
        low, high = int(first), int(last)
        if not low <= high < low + MAX_FILES:
            raise UserError(
                f"cannot count {{{text}}} in {pattern!r}; write {{00..31}}, the "
                f"smaller number first and at most {MAX_FILES:,} numbers"
            )
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        return [f"{number:0{width}}" for number in range(low, high + 1)]
    parts, depth = [""], 0
    for letter in text:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _match(pattern: str) -> Iterator[str]:
    """Yields the files that a pattern without braces names."""
    if not is_remote(pattern):
        if os.path.isfile(pattern):  # its name may hold a [
            yield pattern
            return
        matches = glob.iglob(pattern, recursive=True)
        yield from (path for path in matches if os.path.isfile(path))
        return
    wildcard = _WILDCARD.search(pattern)
    if wildcard is None:
        if exists(pattern):
            yield pattern
        return
    folder = pattern[: wildcard.start()].rpartition("/")[0]
    if "**" in pattern or folder.count("/") < 2:
        raise UserError(
            f"{pattern} asks for all buckets, or all folders of one; write out the "
            "bucket's name, and a * for each folder"
        )
    with bucket_errors(pattern):
        matches = list(epath.Path(folder).glob(pattern[len(folder) + 1 :]))
    yield from map(os.fspath, matches)


def sort_into_splits(paths: Sequence[str], request: Request) -> dict[str, list[str]]:
    """Returns the files of each split, in order.

    Raises:
      UserError: Some files whose paths name a split, and some whose paths do not.
    """
    if "split" in request.options:
        return {request.options["split"]: list(paths)}
    known = {*SPLIT_NAMES, *request.splits}
    splits: dict[str, list[str]] = {}
    nameless: list[str] = []
    for path in paths:
        split = _split_of(path, known)
        if split is None:
            nameless.append(path)
        else:
            splits.setdefault(split, []).append(path)
    if not splits:
        return {"train": nameless}
    if nameless:
        raise UserError(
            f"the paths of {len(paths) - len(nameless)} files of {request.location} "
            f"name their split, but that of {nameless[0]} does not; say which it is "
            "with @split=NAME, or use a GLOB for the files of one split"
        )
    return splits


def _split_of(path: str, known: set[str]) -> str | None:
    folder, _, file = path.rpartition("/")
    for word in reversed(_WORD.findall(file)):
        if word.lower() in known:
            return word.lower()
    named = (part for part in reversed(folder.split("/")) if part in known)
    return next(named, None)

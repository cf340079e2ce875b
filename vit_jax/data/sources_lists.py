# SPDX-License-Identifier: Apache-2.0
"""Sources that a list of images describes: `csv:FILE` and `jsonl:FILE`.

Columns (in JSON Lines, keys):

  image    path of the image, relative to the list's folder, or absolute
  label    class name or id; or
  target   a number to be predicted; or
  labels   several classes: a list in JSON, separated by spaces or `|` in CSV
  split    optional; without it all is `train`

Labels of the training split decide what labels are: when all are whole numbers they
are ids, otherwise names, sorted by their bytes. `@names=FILE`, a file beside the list
with a name a line, fixes names and ids instead; then a label is a name, or, if no such
name is there, an id. An image must not be in two splits.
"""

import array
import csv
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath

from vit_jax.data.examples import (
    Collection,
    Labels,
    MultiHot,
    Request,
    class_ids,
    read_class_names,
    sort_names,
    unknown_class,
)
from vit_jax.data.splits import find_split
from vit_jax.data.tables import Table, Texts, is_remote, join
from vit_jax.errors import UserError

KINDS = ("label", "target", "labels")
COLUMNS = "give the columns image, one of label, target or labels, and optionally split"

Lines = Iterator[tuple[int, Mapping[str, Any]]]
"""Number and columns of each line."""


class Columns:
    """The lines of a list, column by column, without an object for each line.

    Attributes:
      path: The list's file.
      kind: Which of `KINDS` the lines have; "" before the first line.
      images: Path of each image as written.
      lines: Line number of each.
      split: Index of each one's split in `split_names`.
      split_names: Index by name.
      codes: Class texts of all lines, one after the other, as indices in `texts`.
      ends: Where the codes of each line end.
      texts: Index by class text.
      targets: Number of each line, for the kind `target`.
    """

    def __init__(self, path: str):
        self.path = path
        self.kind = ""
        self.images = Texts()
        self.lines = array.array("q")
        self.split = array.array("i")
        self.split_names: dict[str, int] = {}
        self.codes = array.array("i")
        self.ends = array.array("q")
        self.texts: dict[str, int] = {}
        self.targets = array.array("d")

    def add(self, line: int, columns: Mapping[str, Any]) -> None:
        """Adds a line.

        Raises:
          UserError: A column that is missing or cannot be read.
        """
        image = columns.get("image")
        if not isinstance(image, str) or not image:
            raise self.error(line, f"has no image; {COLUMNS}")
        split = columns.get("split", "train")
        if not isinstance(split, str) or not split:
            raise self.error(line, "has an empty split; name one, such as train")
        self.kind = self.kind or self._find_kind(line, columns)
        value = columns.get(self.kind)
        if value is None or (value == "" and self.kind != "labels"):
            raise self.error(line, f"has no {self.kind}; every line needs one")
        if self.kind == "target":
            self.targets.append(self._number(line, value))
        else:
            for text in self._class_texts(line, value):
                self.codes.append(self.texts.setdefault(text, len(self.texts)))
        self.ends.append(len(self.codes))
        self.images.extend([image])
        self.lines.append(line)
        self.split.append(self.split_names.setdefault(split, len(self.split_names)))

    def error(self, line: int, text: str) -> UserError:
        """Makes an error that names file and line."""
        return UserError(f"{self.path}:{line} {text}")

    def _find_kind(self, line: int, columns: Mapping[str, Any]) -> str:
        kinds = [kind for kind in KINDS if kind in columns]
        if len(kinds) != 1:
            found = " and ".join(kinds) or "no label"
            raise self.error(line, f"has {found}; {COLUMNS}")
        return kinds[0]

    def _number(self, line: int, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(line, f"has the target {value!r}; give a finite number")
        return number

    def _class_texts(self, line: int, value: Any) -> list[str]:
        if self.kind == "label":
            value = [value]
        elif isinstance(value, str):
            value = value.split("|") if "|" in value else value.split()
        if not isinstance(value, list) or not all(_is_class(item) for item in value):
            raise self.error(
                line, f"has the {self.kind} {value!r}; use names or whole numbers"
            )
        return [str(item).strip() for item in value]


def _is_class(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def open_csv(request: Request) -> Collection:
    """Opens `csv:FILE`.

    Raises:
      UserError: No such file or split, a line that cannot be read, a label that is
        missing or unknown, an image that is missing; the text names file and line.
    """
    return _open_list(request, _csv_lines)


def open_jsonl(request: Request) -> Collection:
    """Opens `jsonl:FILE`.

    Raises:
      UserError: See `open_csv`.
    """
    return _open_list(request, _jsonl_lines)


def _open_list(request: Request, read: Callable[[str], Lines]) -> Collection:
    path = os.fspath(epath.Path(request.location).expanduser())
    columns = Columns(path)
    try:
        for line, fields in read(path):
            columns.add(line, fields)
    except OSError as err:
        raise UserError(
            f"cannot read {path}: {err.strerror or err}; name a file that lists images"
        ) from err
    except UnicodeDecodeError as err:
        raise UserError(f"{path} is no UTF-8 text ({err}); save it as UTF-8") from err
    if not len(columns.images):
        raise UserError(f"{path} lists no image; {COLUMNS}")
    _check_splits_apart(columns)
    rows, splits = _select(columns, request)
    root = os.path.dirname(path)
    _check_images(columns, rows, root)
    labels, class_names = _labels(columns, rows, request)
    paths = Texts(columns.images[row] for row in rows.tolist())
    return Collection(Table(root=root, paths=paths), labels, splits, class_names)


def _csv_lines(path: str) -> Lines:
    with epath.Path(path).open("r", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file)
        try:
            header = next(reader, [])
            for fields in reader:
                if not fields:
                    continue
                if len(fields) != len(header):
                    raise UserError(
                        f"{path}:{reader.line_num} has {len(fields)} fields where the "
                        f"header has {len(header)}; quote fields that hold a comma"
                    )
                yield reader.line_num, dict(zip(header, fields, strict=True))
        except csv.Error as err:
            raise UserError(
                f"{path}:{reader.line_num} is no CSV ({err}); save the file again"
            ) from err


def _jsonl_lines(path: str) -> Lines:
    with epath.Path(path).open("r", encoding="utf-8-sig") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                fields = json.loads(text)
            except json.JSONDecodeError as err:
                raise UserError(
                    f"{path}:{number} is no JSON ({err.msg} at column {err.colno}); "
                    "write one object a line"
                ) from err
            if not isinstance(fields, dict):
                raise UserError(f"{path}:{number} is no JSON object; {COLUMNS}")
            yield number, fields


def _check_splits_apart(columns: Columns) -> None:
    """Refuses an image that is in two splits."""
    if len(columns.split_names) < 2:
        return
    count = len(columns.images)
    hashes = np.fromiter((hash(columns.images[row]) for row in range(count)), np.int64)
    order = np.argsort(hashes, kind="stable")
    split = np.array(columns.split)[order]
    same = (np.diff(hashes[order]) == 0) & (np.diff(split) != 0)
    for place in np.flatnonzero(same):
        first, second = sorted(order[place : place + 2].tolist())
        if columns.images[first] == columns.images[second]:
            raise columns.error(
                columns.lines[second],
                f"puts {columns.images[second]!r} into a second split, after line "
                f"{columns.lines[first]}; keep it in one",
            )


def _select(
    columns: Columns, request: Request
) -> tuple[np.ndarray, dict[str, tuple[int, int]]]:
    """Returns the wanted rows, split by split, and where each split lies in them."""
    split = np.array(columns.split)
    rows: list[np.ndarray] = []
    splits: dict[str, tuple[int, int]] = {}
    end = 0
    for asked in request.splits:
        name = find_split(asked, list(columns.split_names))
        if name is None:
            raise UserError(
                f"{columns.path} has no split {asked!r}; it has "
                f"{', '.join(sorted(columns.split_names))}"
            )
        rows.append(np.flatnonzero(split == columns.split_names[name]))
        splits[asked] = (end, end + len(rows[-1]))
        end += len(rows[-1])
    return np.concatenate(rows), splits


def _check_images(columns: Columns, rows: np.ndarray, root: str) -> None:
    """Refuses images that are missing; in buckets the first read finds out."""
    for row in rows.tolist():
        path = join(root, columns.images[row])
        if not is_remote(path) and not os.path.isfile(path):
            raise columns.error(
                columns.lines[row],
                f"names the image {path}, which does not exist; paths are relative to "
                "the folder of the list",
            )


def _labels(
    columns: Columns, rows: np.ndarray, request: Request
) -> tuple[Labels, tuple[str, ...] | None]:
    if columns.kind == "target":
        return np.array(columns.targets, np.float32)[rows], None
    ends = np.array(columns.ends)
    starts = np.concatenate([[0], ends[:-1]])
    class_names = _class_names(columns, starts, ends, request)
    table = _code_ids(columns, class_names)
    counts = (ends - starts)[rows]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # Index of each wanted code: its rank within its row after the row's start.
    place = np.repeat(starts[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
    codes = np.array(columns.codes, np.int64)[place]
    ids = table[codes]
    if ids.size and ids.min() < 0:
        first = int(np.flatnonzero(ids < 0)[0])
        row = int(rows[np.searchsorted(offsets, first, side="right") - 1])
        text = list(columns.texts)[codes[first]]
        where = f"{columns.path}:{columns.lines[row]}"
        raise _unknown_label(text, where, class_names)
    if columns.kind == "label":
        return ids, class_names
    num_classes = len(class_names) if class_names else int(table.max(initial=-1)) + 1
    return MultiHot(offsets, ids, num_classes), class_names


def _class_names(
    columns: Columns, starts: np.ndarray, ends: np.ndarray, request: Request
) -> tuple[str, ...] | None:
    """Returns the names that fix the ids, None where labels are ids."""
    if request.class_names is not None:
        return request.class_names
    if "names" in request.options:
        folder = os.path.dirname(columns.path)
        return read_class_names(join(folder, request.options["names"]))
    if "train" not in columns.split_names:
        if all(map(_is_whole, columns.texts)):
            return None
        raise UserError(
            f"{columns.path} has no training split to take class names from; add one, "
            "or name a file beside it that has a class name a line: @names=FILE"
        )
    train = np.array(columns.split) == columns.split_names["train"]
    codes = np.array(columns.codes, np.int64)[np.repeat(train, ends - starts)]
    texts = list(columns.texts)
    present = {texts[code] for code in np.unique(codes)}
    if all(map(_is_whole, present)):
        return None
    return sort_names(present)


def _code_ids(columns: Columns, class_names: tuple[str, ...] | None) -> np.ndarray:
    """Returns the class id of each text in `columns.texts`, -1 for an unknown class."""
    ids = class_ids(class_names or ())
    limit = len(ids) if class_names is not None else 2**31
    table = np.full(len(columns.texts), -1, np.int32)
    for text, code in columns.texts.items():
        if text in ids:
            table[code] = ids[text]
        elif text.isdecimal() and int(text) < limit:
            table[code] = int(text)
    return table


def _unknown_label(
    text: str, where: str, class_names: tuple[str, ...] | None
) -> UserError:
    if class_names is None:
        return UserError(
            f"{where} has the label {text!r} where the training split has whole "
            "numbers; give a whole number from 0 on"
        )
    if _is_whole(text):
        return UserError(
            f"{where} has the label {text}, which is no class id; the training split "
            f"has {len(class_names)} classes, 0 to {len(class_names) - 1}"
        )
    return unknown_class(text, where, class_ids(class_names))

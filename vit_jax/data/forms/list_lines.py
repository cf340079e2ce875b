# SPDX-License-Identifier: Apache-2.0
"""Reads the lines of a CSV or JSON Lines file that lists images, column by column.

What the columns mean is told in `sources_lists`.
"""

import array
import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.data.buckets import open_stream
from vit_jax.data.tables import Texts
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
            items = [value]
        elif isinstance(value, str):
            items = value.split("|") if "|" in value else value.split()
        else:
            items = value
        if not isinstance(items, list) or not all(map(_is_class, items)):
            raise self.error(
                line, f"has the {self.kind} {value!r}; use names or whole numbers"
            )
        return [str(item).strip() for item in items]


def _is_class(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def csv_lines(path: str) -> Lines:
    """Yields the lines of a CSV file whose first line names the columns.

    Raises:
      UserError: A line that is no CSV or has another number of fields.
    """
    with open_stream(path) as file:
        reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
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


def jsonl_lines(path: str) -> Lines:
    """Yields the lines of a file that holds a JSON object a line.

    Raises:
      UserError: A line that is no JSON object.
    """
    with open_stream(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8-sig")
        for number, text in enumerate(lines, start=1):
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

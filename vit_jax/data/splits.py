# SPDX-License-Identifier: Apache-2.0
"""Split strings as TensorFlow Datasets writes them, such as `train[:98%]`.

    train                every example of a split
    train[100:200]       rows 100..199; either end may be left out or negative
    train[:98%]          a percentage of the rows; train[98%:] is exactly the rest
    train+validation     one after the other

A percentage p of n examples is the boundary round(p * n / 100), halves to even, which
is TensorFlow Datasets' default ("closest"): the boundary does not depend on the side
that it bounds, so that `[:p%]` and `[p%:]` always partition a split.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from vit_jax.errors import UserError, unknown

FORMS = (
    "write NAME, NAME[START:STOP] or NAME[A%:B%], joined by '+', such as "
    "'train', 'train[:98%]', 'train[100:200]' or 'train+validation'"
)
VALIDATION_NAMES = ("val", "valid", "validation", "dev")

_PART = re.compile(
    r"(?P<name>[\w-]+)(\[(?P<start>-?[\d_.]+%?)?:(?P<stop>-?[\d_.]+%?)?\])?"
)


class SplitPart(NamedTuple):
    """One `NAME[START:STOP]` of a split string; an end that is left out is None."""

    name: str
    start: str | None
    stop: str | None
    text: str


def parse_split(split: str) -> list[SplitPart]:
    """Reads a split string.

    Raises:
      UserError: A string of another form.
    """
    parts: list[SplitPart] = []
    for text in split.split("+"):
        match = _PART.fullmatch(text.strip())
        if match is None:
            raise UserError(f"cannot read {text!r} in the split {split!r}; {FORMS}")
        part = SplitPart(match["name"], match["start"], match["stop"], text.strip())
        for end in (part.start, part.stop):
            _check_number(end, split)
        parts.append(part)
    return parts


def split_names(split: str) -> list[str]:
    """Returns the names in a split string, each once, in order.

    Raises:
      UserError: A string of another form.
    """
    return list(dict.fromkeys(part.name for part in parse_split(split)))


def split_ranges(split: str, sizes: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Returns the row ranges that a split string stands for.

    Args:
      split: The split string.
      sizes: Number of examples by split name.

    Returns:
      `(name, start, stop)` in the order of the string, each with start < stop.

    Raises:
      UserError: A string of another form, an unknown name, an end outside the split,
        or a range without a single example.
    """
    ranges: list[tuple[str, int, int]] = []
    for part in parse_split(split):
        if part.name not in sizes:
            raise unknown("split", part.name, sizes)
        size = sizes[part.name]
        start = 0 if part.start is None else _boundary(part.start, size, part)
        stop = size if part.stop is None else _boundary(part.stop, size, part)
        if start >= stop:
            raise UserError(
                f"the split {part.text!r} holds no example: it is rows {start} to "
                f"{stop} of the {size} of {part.name!r}; use a wider range"
            )
        ranges.append((part.name, start, stop))
    return ranges


def find_split(name: str, known: list[str]) -> str | None:
    """Returns which of the `known` names a user means by `name`, None if none.

    The exact name wins; otherwise the names of the validation split (val, valid,
    validation, dev) stand for each other, the first of them in this order wins.
    """
    if name in known:
        return name
    if name in VALIDATION_NAMES:
        return next((other for other in VALIDATION_NAMES if other in known), None)
    return None


def _check_number(end: str | None, split: str) -> None:
    if end is None:
        return
    try:
        number = float(end.rstrip("%"))
    except ValueError as err:
        raise UserError(
            f"{end!r} in the split {split!r} is no number; {FORMS}"
        ) from err
    if not end.endswith("%") and "." in end:
        raise UserError(
            f"{end!r} in the split {split!r} is no whole number of examples; write "
            f"{number:g}% for a percentage"
        )


def _boundary(end: str, size: int, part: SplitPart) -> int:
    if end.endswith("%"):
        percent = float(end[:-1])
        row = round(percent * size / 100)
        outside = abs(percent) > 100
    else:
        row = int(end)
        outside = abs(row) > size
    if outside:
        raise UserError(
            f"{end} in the split {part.text!r} lies outside {part.name!r}, which has "
            f"{size} examples; use 0 to {size} or 0% to 100%"
        )
    # "-0%" and small negative percentages that round to nothing count from the end.
    return size + row if end.startswith("-") else row

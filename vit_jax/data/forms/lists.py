# SPDX-License-Identifier: Apache-2.0
"""Sources that a list of images describes: `csv:FILE` and `jsonl:FILE`.

Columns (in JSON Lines, keys):

  image    path of the image, relative to the list's folder, or absolute
  label    class name or id; or
  target   a number to be predicted; or
  labels   several classes: a list in JSON, separated by spaces or `|` in CSV
  split    optional; without it all is `train`

Labels mean what `class_texts` says: whole numbers in all of the training split are ids,
otherwise they are names. `@names=FILE`, a file beside the list with a name a line,
fixes names and ids instead. An image must not be in two splits.
"""

import os
from collections.abc import Callable

import numpy as np
from etils import epath

from vit_jax.data.buckets import is_remote
from vit_jax.data.class_texts import (
    is_whole,
    text_ids,
    train_names,
    unknown_label,
)
from vit_jax.data.examples import Collection, Request, Rows
from vit_jax.data.forms.list_lines import (
    COLUMNS,
    Columns,
    Lines,
    csv_lines,
    jsonl_lines,
)
from vit_jax.data.labels import Labels, MultiHot, read_class_names
from vit_jax.data.tables import Table, Texts, join
from vit_jax.errors import UserError


def open_csv(request: Request) -> Collection:
    """Opens `csv:FILE`.

    Raises:
      UserError: No such file or split, a line that cannot be read, a label that is
        missing or unknown, an image that is missing; the text names file and line.
    """
    return _open_list(request, csv_lines)


def open_jsonl(request: Request) -> Collection:
    """Opens `jsonl:FILE`.

    Raises:
      UserError: See `open_csv`.
    """
    return _open_list(request, jsonl_lines)


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
    if not request.lenient:
        _check_images(columns, rows, root)
    labels, class_names = _labels(columns, rows, request)
    paths = Texts(columns.images[row] for row in rows.tolist())
    lines = np.array(columns.lines, np.int32)[rows]

    def label_places(rows: Rows) -> list[str]:
        return [f"{path}:{line}" for line in lines[rows].tolist()]

    table = Table(root=root, paths=paths)
    return Collection(table, labels, splits, class_names, label_places)


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
    for asked, name in request.find_splits(columns.split_names, columns.path).items():
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
    table = text_ids(list(columns.texts), class_names)
    counts = (ends - starts)[rows]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # Index of each wanted code: its rank within its row after the row's start.
    place = np.repeat(starts[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
    codes = np.array(columns.codes, np.int64)[place]
    ids = table[codes]
    if ids.size and ids.min() < 0 and not request.lenient:
        first = int(np.flatnonzero(ids < 0)[0])
        row = int(rows[np.searchsorted(offsets, first, side="right") - 1])
        text = list(columns.texts)[codes[first]]
        where = f"{columns.path}:{columns.lines[row]}"
        raise unknown_label(text, where, class_names)
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
        if all(map(is_whole, columns.texts)):
            return None
        raise UserError(
            f"{columns.path} has no training split to take class names from; add one, "
            "or name a file beside it that has a class name a line: @names=FILE"
        )
    train = np.array(columns.split) == columns.split_names["train"]
    codes = np.array(columns.codes, np.int64)[np.repeat(train, ends - starts)]
    texts = list(columns.texts)
    return train_names({texts[code] for code in np.unique(codes)})

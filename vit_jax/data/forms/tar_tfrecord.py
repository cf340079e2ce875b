# SPDX-License-Identifier: Apache-2.0
"""Sources whose examples lie in shards: `tar:GLOB` and `tfrecord:GLOB`.

    tar:/data/imagenet/{train,val}-*.tar
    tfrecord:/data/train/*.tfrecord@image=image/encoded;label=image/class/label
    tfrecord:/data/web-*.tfrecord@labels=label

What a GLOB is, and by what names files are sorted into splits, is told in
`shard_files`; what an example of a tar file is, in `tars`. A TFRecord file holds
uncompressed `tf.train.Example`s; the features `image` (one encoded image) and `label`
(one number or class name), or those that the options name, are read; `@labels=FEATURE`
names one that holds any number of class ids or names.

Labels mean what `class_texts` says: whole numbers in all of the training split are ids,
otherwise they are names. `@names=FILE`, a file in the folder before the first wildcard
with a name a line, fixes names and ids instead. The shards are gone through once, see
`shard_store`, and checked then.
"""

import os
import re
from collections.abc import Sequence

import numpy as np

from vit_jax.data.class_texts import (
    is_whole,
    text_ids,
    train_names,
    unknown_label,
)
from vit_jax.data.examples import Collection, Request
from vit_jax.data.labels import Labels, MultiHot, read_class_names
from vit_jax.data.shards.files import find_files, sort_into_splits
from vit_jax.data.shards.index_file import Shards
from vit_jax.data.shards.store import Reader, index_shards
from vit_jax.data.shards.tars import TarReader
from vit_jax.data.shards.tfrecords import TFRecordReader
from vit_jax.data.tables import Table, Texts, join
from vit_jax.errors import UserError

SMALL = 1 << 20
"""Ids below this are looked up in a table of all of them."""


def open_tar(request: Request) -> Collection:
    """Opens `tar:GLOB`.

    Raises:
      UserError: No such file or split, a file that is cut or damaged, an example
        without image or label, a label that is unknown; the text names file and offset.
    """
    return _open(request, TarReader())


def open_tfrecord(request: Request) -> Collection:
    """Opens `tfrecord:GLOB`.

    Raises:
      UserError: See `open_tar`; and a wrong checksum, a feature that is not there, a
        compressed file.
    """
    return _open(request, tfrecord_reader(request))


def tfrecord_reader(request: Request) -> TFRecordReader:
    """Returns the reader of the features that the options name."""
    image, label = (request.options.get(key, key) for key in ("image", "label"))
    several = "labels" in request.options
    return TFRecordReader(image, request.options.get("labels", label), several)


def _open(request: Request, reader: Reader) -> Collection:
    by_split = sort_into_splits(find_files(request.location), request)
    chosen = request.find_splits(by_split, request.location)
    paths = [path for split in chosen.values() for path in by_split[split]]
    fixed = request.class_names is not None or "names" in request.options
    train = [] if fixed else by_split.get("train", [])
    # The training split is at hand as well: it says what the labels mean.
    index = index_shards(list(dict.fromkeys([*paths, *train])), reader)
    wanted = index.select(paths)
    table = shard_table(wanted)
    labels, class_names = _labels(wanted, index.select(train), table, request)
    splits: dict[str, tuple[int, int]] = {}
    end, number = 0, 0
    for asked, split in chosen.items():
        count = len(by_split[split])
        start = end
        end += sum(shard.rows for shard in wanted.shards[number : number + count])
        number += count
        splits[asked] = (start, end)
    return Collection(table, labels, splits, class_names)


def shard_table(index: Shards) -> Table:
    """Returns the table of the images in some shards."""
    counts = [shard.rows for shard in index.shards]
    return Table(
        root="",
        paths=Texts(shard.path for shard in index.shards),
        file_index=np.repeat(np.arange(len(counts), dtype=np.int32), counts),
        offset=index.offset,
        length=index.length,
    )


def label_kind(index: Shards) -> str:
    """Returns of which kind the labels of all shards are.

    Raises:
      UserError: Kinds that do not go together.
    """
    kinds = {shard.kind: shard.path for shard in index.shards if shard.rows}
    for kind, also in (("targets", "ids"), ("texts", "ids")):
        if set(kinds) == {kind, also}:
            return kind
    if len(kinds) > 1:
        (one, path), (other, second) = list(kinds.items())[:2]
        raise UserError(
            f"the labels of {path} are {one} and those of {second} are {other}; use "
            "one kind in all files"
        )
    return next(iter(kinds), "ids")


def numbers(index: Shards) -> np.ndarray:
    """Returns labels of the kinds ids and targets, float32 if any is a target."""
    if label_kind(index) == "ids":
        return index.label
    parts, end = [index.label[:0].view("<f4")], 0
    for shard in index.shards:
        part = index.label[end : end + shard.rows]
        whole = shard.kind == "ids"
        parts.append(part.astype("<f4") if whole else part.view("<f4"))
        end += shard.rows
    return np.concatenate(parts)


def _labels(
    wanted: Shards, train: Shards, table: Table, request: Request
) -> tuple[Labels, tuple[str, ...] | None]:
    kind = label_kind(wanted)
    if kind == "targets":
        return numbers(wanted), None
    codes, texts = _class_codes(wanted, kind)
    class_names = _class_names(train, texts, request)
    if texts is not None:
        ids = text_ids(texts, class_names)[codes]
    elif class_names is not None:
        ids = _named_ids(codes, class_names)
    else:
        return codes, None
    offsets = None
    if kind == "several":
        offsets = np.concatenate([[0], np.cumsum(wanted.label)])
    wrong = np.flatnonzero(ids < 0)[:1]
    if len(wrong) and not request.lenient:
        code = int(codes[wrong[0]])
        row = wrong
        if offsets is not None:
            row = np.searchsorted(offsets, wrong, side="right") - 1
        text = str(code) if texts is None else texts[code]
        raise unknown_label(text, table.names(row)[0], class_names)
    if offsets is not None:
        present = int(ids.max(initial=-1)) + 1
        ids = MultiHot(offsets, ids, len(class_names or ()) or present)
    return ids, class_names


def _class_codes(index: Shards, kind: str) -> tuple[np.ndarray, Sequence[str] | None]:
    """Returns class codes and their texts, None where the codes are the ids."""
    if kind == "ids":
        return index.label, None
    if kind == "several":
        return index.codes, index.texts
    texts = {text: code for code, text in enumerate(index.texts)}
    label, end = index.label, 0
    for shard in index.shards:
        rows = slice(end, end + shard.rows)
        end += shard.rows
        if shard.kind == "ids" and shard.rows:  # its names are all whole numbers
            label = np.array(label) if label is index.label else label
            values, places = np.unique(label[rows], return_inverse=True)
            table = [texts.setdefault(str(value), len(texts)) for value in values]
            label[rows] = np.array(table, np.int32)[places]
    return label, list(texts)


def _class_names(
    train: Shards, texts: Sequence[str] | None, request: Request
) -> tuple[str, ...] | None:
    """Returns the names that fix the ids, None where labels are ids.

    Args:
      train: The training split, empty where there is none.
      texts: Class texts of the wanted splits, None where labels are ids.
      request: What was asked for.
    """
    if request.class_names is not None:
        return request.class_names
    if "names" in request.options:
        folder = re.split(r"[*?[{]", request.location, maxsplit=1)[0].rpartition("/")[0]
        return read_class_names(
            join(os.path.expanduser(folder), request.options["names"])
        )
    if not train.shards and texts is not None and not all(map(is_whole, texts)):
        raise UserError(
            f"{request.location} has no training split to take class names from; "
            "widen the GLOB, or name a file that has a class name a line: @names=FILE"
        )
    codes, texts = _class_codes(train, label_kind(train))
    if texts is None:
        return None
    present = np.bincount(codes, minlength=len(texts)) > 0
    return train_names(
        [text for text, here in zip(texts, present, strict=True) if here]
    )


def _named_ids(labels: np.ndarray, class_names: Sequence[str]) -> np.ndarray:
    """Returns the ids of whole numbers that are names or, if no name, ids."""
    low, high = labels.min(initial=0), labels.max(initial=0)
    if 0 <= low and high < SMALL:
        return text_ids([str(number) for number in range(high + 1)], class_names)[
            labels
        ]
    values, places = np.unique(labels, return_inverse=True)
    return text_ids([str(value) for value in values], class_names)[places]

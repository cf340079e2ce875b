# SPDX-License-Identifier: Apache-2.0
"""Sources that TensorFlow Datasets prepared: `tfds:NAME[:VERSION]`.

NAME may name a configuration, as in `tfds:cifar10_corrupted/fog_1`; VERSION may leave
parts open, as in `tfds:clevr:3.*.*`. Nothing is ever downloaded or prepared here: the
data set's folder must lie below `data_dir`, `$TFDS_DATA_DIR` or
`~/tensorflow_datasets`. The features `image` and `label`, or those that the options
`@image=...;label=...` name, are read; in TFRecord shards, a label may be a sequence of
class ids, as in `tfds:imagenet2012_real@label=real_label`. `@task=TASK` makes the label
of other features, see `task_labels`. TFRecord shards become a table of byte ranges;
ArrayRecord shards are read through their library. Either are gone through once, see
`shard_store`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from vit_jax.data.buckets import bucket_errors, exists, is_folder
from vit_jax.data.examples import Collection, Request
from vit_jax.data.forms.tar_tfrecord import numbers, shard_table
from vit_jax.data.forms.task_labels import TASKS, TaskLabel
from vit_jax.data.labels import Labels, MultiHot, translate_ids
from vit_jax.data.shards import tfrecords
from vit_jax.data.shards.array_records import ArrayRecordExamples, ArrayRecordReader
from vit_jax.data.shards.store import Reader, index_shards
from vit_jax.data.tables import Table
from vit_jax.errors import UserError, nearest, unknown

INFO_FILE = "dataset_info.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def open_tfds(request: Request) -> Collection:
    """Opens a prepared data set.

    Raises:
      UserError: A data set, version, split, feature or task that is not there,
        examples without exactly one image and one label, or shards that are cut.
    """
    what = f"tfds:{request.location}"
    info = _read_info(find_prepared(request))
    wanted = _wanted(info.features, request.options, what)
    shards: list[PreparedShard] = []
    splits: dict[str, tuple[int, int]] = {}
    end = 0
    for asked, split in request.find_splits(list(info.splits), what).items():
        chosen = info.splits[split]
        splits[asked] = (end, end + chosen.num_examples)
        end += chosen.num_examples
        shards += _shards_of(chosen)
    records, labels = _index(shards, wanted)
    labels, class_names = _apply_names(labels, wanted.class_names, request, what)
    return Collection(records, labels, splits, class_names)


class Wanted(NamedTuple):
    """What is read of each example.

    Attributes:
      image: The feature that holds the image.
      label: The feature that holds the label, or `task=TASK`.
      several: Whether the label is a sequence.
      task: What makes the label of other features.
      class_names: Name of each class id, None where there are none.
    """

    image: str
    label: str
    several: bool = False
    task: TaskLabel | None = None
    class_names: Sequence[str] | None = None


def _wanted(features: Any, options: Mapping[str, str], what: str) -> Wanted:
    """Finds what the options name in the features of a data set."""
    import tensorflow_datasets as tfds

    image, label, task = options.get("image", "image"), options.get("label"), None
    if "task" in options:
        if label is not None:
            raise UserError(
                f"{what} is given a label and a task; leave one of them out"
            )
        if options["task"] not in TASKS:
            raise unknown("task", options["task"], TASKS)
        task = TASKS[options["task"]]
    label = label or "label"
    sources = task.features if task else (label,)
    for name in (image, *(source.partition("/")[0] for source in sources)):
        if name not in features:
            there = ", ".join(sorted(features))
            raise UserError(
                f"{what} has no feature {name!r}; it has {there}; say which to "
                "read: @image=...;label=..."
            )
    if not isinstance(features[image], tfds.features.Image):
        raise UserError(
            f"the feature {image!r} of {what} is no image; say which is: @image=..."
        )
    if task:
        label = f"task={options['task']}"
        return Wanted(image, label, task=task, class_names=task.class_names)
    feature = features[label]
    several = isinstance(feature, tfds.features.Sequence)
    names = getattr(feature.feature if several else feature, "names", None)
    return Wanted(image, label, several, class_names=names)


class PreparedShard(NamedTuple):
    """A file of records, and how many it must hold."""

    path: str
    size: int


def _shards_of(split: Any) -> list[PreparedShard]:
    return [
        PreparedShard(os.fspath(path), size)
        for path, size in zip(split.filepaths, split.shard_lengths, strict=True)
    ]


def _read_info(folder: str) -> Any:
    """Returns what a prepared data set says about itself."""
    import tensorflow_datasets as tfds

    with bucket_errors(folder):
        return tfds.builder_from_directory(folder).info


def find_shards(request: Request) -> tuple[list[str], Reader]:
    """Returns the shards of a prepared data set, and what goes through them.

    Raises:
      UserError: No such data set or feature, or shards of another format.
    """
    info = _read_info(find_prepared(request))
    splits = request.find_splits(list(info.splits), request.location)
    paths = [
        s.path for split in splits.values() for s in _shards_of(info.splits[split])
    ]
    wanted = _wanted(info.features, request.options, f"tfds:{request.location}")
    return paths, prepared_reader(paths, wanted)


def find_prepared(request: Request) -> str:
    """Returns the folder of the data set and version that were asked for.

    Raises:
      UserError: None is there; the text names what is.
    """
    name, _, version = request.location.partition(":")
    root = request.data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    folder = epath.Path(root).expanduser() / name
    build = name if "*" in version else request.location
    if not is_folder(os.fspath(folder)):
        there = _folder_names(folder.parent)
        close = nearest(name.rpartition("/")[2], there)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UserError(
            f"{folder} does not exist; {hint}tfds: reads prepared data sets and never "
            f"downloads: set --data_dir or TFDS_DATA_DIR, or run 'tfds build {build}' "
            f"(there: {', '.join(there) or 'none'})"
        )
    there = _folder_names(folder)
    versions = [v for v in there if exists(os.fspath(folder / v / INFO_FILE))]
    asked = re.escape(version).replace(r"\*", r"\d+") if version else _VERSION.pattern
    versions = [v for v in versions if _VERSION.fullmatch(v) and re.fullmatch(asked, v)]
    if not versions:
        raise UserError(
            f"{folder} holds no prepared version {version}; it holds "
            f"{', '.join(there) or 'nothing'}; write tfds:NAME:VERSION, or "
            "tfds:NAME/CONFIG where a data set has configurations, or run 'tfds build "
            f"{build}'"
        )
    newest = max(versions, key=lambda text: tuple(map(int, text.split("."))))
    return os.fspath(folder / newest)


def _folder_names(folder: epath.Path) -> list[str]:
    path = os.fspath(folder)
    if not is_folder(path):
        return []
    with bucket_errors(path):
        return sorted(child.name for child in folder.iterdir() if child.is_dir())


def prepared_reader(paths: Sequence[str], wanted: Wanted) -> Reader:
    """Returns what goes through the shards of a prepared data set.

    Raises:
      UserError: Shards of another format.
    """
    if all(".tfrecord-" in path for path in paths):
        return tfrecords.TFRecordReader(
            wanted.image, wanted.label, wanted.several, wanted.task
        )
    if all(".array_record-" in path for path in paths):
        return ArrayRecordReader(wanted.label, wanted.task)
    raise UserError(
        f"{paths[0]} is neither a TFRecord nor an ArrayRecord file; prepare the "
        "data set again with --file_format=tfrecord"
    )


def _index(
    shards: list[PreparedShard], wanted: Wanted
) -> tuple[Table | ArrayRecordExamples, Labels]:
    paths = [shard.path for shard in shards]
    reader = prepared_reader(paths, wanted)
    index = index_shards(paths, reader)
    for shard, indexed in zip(shards, index.shards, strict=True):
        if indexed.rows != shard.size:
            raise UserError(
                f"{shard.path} holds {indexed.rows} examples where the data set's "
                f"information says {shard.size}; copy or prepare it again"
            )
        if indexed.kind not in ("ids", "targets", "several"):
            raise UserError(
                f"the feature {wanted.label!r} in {shard.path} holds texts; name one "
                "that holds a number: @label=..."
            )
    if isinstance(reader, ArrayRecordReader):
        return ArrayRecordExamples(paths, wanted.image), numbers(index)
    if wanted.several:
        offsets = np.concatenate([[0], np.cumsum(index.label)])
        ids = np.array(index.texts, np.int32)[index.codes]
        labels = MultiHot(offsets, ids, int(ids.max(initial=-1)) + 1)
        return shard_table(index), labels
    return shard_table(index), numbers(index)


def _apply_names(
    labels: Labels, names: Sequence[str] | None, request: Request, what: str
) -> tuple[Labels, tuple[str, ...] | None]:
    """Returns the labels by the class names that were asked for, and those names."""
    if names is None:
        return labels, None
    class_names = request.class_names or tuple(names)
    if isinstance(labels, MultiHot):
        ids = translate_ids(labels.ids, names, class_names, what)
        return MultiHot(labels.offsets, ids, len(class_names)), class_names
    return translate_ids(labels, names, class_names, what), class_names

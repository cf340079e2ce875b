# SPDX-License-Identifier: Apache-2.0
"""Sources that TensorFlow Datasets prepared: `tfds:NAME[:VERSION]`.

NAME may name a configuration, as in `tfds:cifar10_corrupted/fog_1`. Nothing is ever
downloaded or prepared here: the data set's folder must lie below `data_dir`,
`$TFDS_DATA_DIR` or `~/tensorflow_datasets`. The features `image` and `label`, or those
that the options `@image=...;label=...` name, are read; in TFRecord shards, a label may
be a sequence of class ids, as in `tfds:imagenet2012_real@label=real_label`. TFRecord
shards become a table of byte ranges; ArrayRecord shards are read through their
library. Either are gone through once, see `shard_store`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
from etils import epath

from vit_jax.data.buckets import bucket_errors, exists, is_folder, is_remote
from vit_jax.data.examples import Collection, Request, Rows
from vit_jax.data.forms.tar_tfrecord import numbers, shard_table
from vit_jax.data.labels import Labels, MultiHot, translate_ids
from vit_jax.data.shards import tfrecords
from vit_jax.data.shards.index_file import Found
from vit_jax.data.shards.store import Reader, index_shards
from vit_jax.data.tables import Table
from vit_jax.errors import UserError, nearest

INFO_FILE = "dataset_info.json"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def open_tfds(request: Request) -> Collection:
    """Opens a prepared data set.

    Raises:
      UserError: A data set, version, split or feature that is not there, examples
        without exactly one image and one label, or shards that are cut.
    """
    import tensorflow_datasets as tfds

    what = f"tfds:{request.location}"
    info = _read_info(find_prepared(request))
    features: Any = info.features  # a mapping by name, typed as more than that
    image, label = (request.options.get(key, key) for key in ("image", "label"))
    for name in (image, label):
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
    shards: list[PreparedShard] = []
    splits: dict[str, tuple[int, int]] = {}
    end = 0
    for asked, split in request.find_splits(list(info.splits), what).items():
        chosen = info.splits[split]
        splits[asked] = (end, end + chosen.num_examples)
        end += chosen.num_examples
        shards += _shards_of(chosen)
    feature = features[label]
    several = isinstance(feature, tfds.features.Sequence)
    records, labels = _index(shards, image, label, several)
    names = getattr(feature.feature if several else feature, "names", None)
    labels, class_names = _apply_names(labels, names, request, what)
    return Collection(records, labels, splits, class_names)


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
      UserError: No such data set, or shards of another format.
    """
    import tensorflow_datasets as tfds

    info = _read_info(find_prepared(request))
    splits = request.find_splits(list(info.splits), request.location)
    paths = [
        s.path for split in splits.values() for s in _shards_of(info.splits[split])
    ]
    image, label = (request.options.get(key, key) for key in ("image", "label"))
    features: Any = info.features
    several = label in features and isinstance(features[label], tfds.features.Sequence)
    return paths, prepared_reader(paths, image, label, several)


def find_prepared(request: Request) -> str:
    """Returns the folder of the data set and version that were asked for.

    Raises:
      UserError: None is there; the text names what is.
    """
    name, _, version = request.location.partition(":")
    root = request.data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    folder = epath.Path(root).expanduser() / name
    if not is_folder(os.fspath(folder)):
        there = _folder_names(folder.parent)
        close = nearest(name.rpartition("/")[2], there)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UserError(
            f"{folder} does not exist; {hint}tfds: reads prepared data sets and never "
            f"downloads: set --data_dir or TFDS_DATA_DIR, or run 'tfds build {name}' "
            f"(there: {', '.join(there) or 'none'})"
        )
    there = _folder_names(folder)
    versions = [v for v in there if exists(os.fspath(folder / v / INFO_FILE))]
    versions = [name for name in versions if _VERSION.fullmatch(name)]
    if not versions or (version and version not in versions):
        raise UserError(
            f"{folder} holds no prepared version {version}; it holds "
            f"{', '.join(there) or 'nothing'}; write tfds:NAME:VERSION, or "
            "tfds:NAME/CONFIG where a data set has configurations"
        )
    newest = max(versions, key=lambda text: tuple(map(int, text.split("."))))
    return os.fspath(folder / (version or newest))


def _folder_names(folder: epath.Path) -> list[str]:
    path = os.fspath(folder)
    if not is_folder(path):
        return []
    with bucket_errors(path):
        return sorted(child.name for child in folder.iterdir() if child.is_dir())


def prepared_reader(
    paths: Sequence[str], image: str, label: str, several: bool = False
) -> Reader:
    """Returns what goes through the shards of a prepared data set.

    Raises:
      UserError: Shards of another format.
    """
    if all(".tfrecord-" in path for path in paths):
        return tfrecords.TFRecordReader(image, label, several)
    if all(".array_record-" in path for path in paths):
        return ArrayRecordReader(label)
    raise UserError(
        f"{paths[0]} is neither a TFRecord nor an ArrayRecord file; prepare the "
        "data set again with --file_format=tfrecord"
    )


def _index(
    shards: list[PreparedShard], image: str, label: str, several: bool
) -> "tuple[Table | ArrayRecordExamples, Labels]":
    paths = [shard.path for shard in shards]
    reader = prepared_reader(paths, image, label, several)
    index = index_shards(paths, reader)
    for shard, indexed in zip(shards, index.shards, strict=True):
        if indexed.rows != shard.size:
            raise UserError(
                f"{shard.path} holds {indexed.rows} examples where the data set's "
                f"information says {shard.size}; copy or prepare it again"
            )
        if indexed.kind not in ("ids", "targets", "several"):
            raise UserError(
                f"the feature {label!r} in {shard.path} holds texts; name one that "
                "holds a number: @label=..."
            )
    if isinstance(reader, ArrayRecordReader):
        return ArrayRecordExamples(paths, image), numbers(index)
    if several:
        offsets = np.concatenate([[0], np.cumsum(index.label)])
        ids = np.array(index.texts, np.int32)[index.codes]
        labels = MultiHot(offsets, ids, int(ids.max(initial=-1)) + 1)
        return shard_table(index), labels
    return shard_table(index), numbers(index)


class ArrayRecordReader(NamedTuple):
    """Goes through an ArrayRecord file, as a `shard_store.Reader`.

    Attributes:
      label: Name of the feature that holds one number.
    """

    label: str

    @property
    def name(self) -> str:
        """Name of the index files."""
        return f"array_record,{quote(self.label, safe='')}"

    def __call__(self, path: str) -> Iterator[Found]:
        """Yields the number of each record, and its label.

        Raises:
          UserError: No library to read the file with, or an example without exactly
            one label.
        """
        for number, record in enumerate(open_array_record(path)):
            example = tfrecords.Example(record, 0, len(record), f"{path}#{number}")
            yield Found(number, 0, example.label(self.label))


def open_array_record(path: str) -> Any:
    """Opens a file as a sequence of records.

    Raises:
      UserError: The library is not installed, or the file lies in a bucket.
    """
    if is_remote(path):  # the library would wait for it without end
        raise UserError(
            f"{path} is an ArrayRecord file in a bucket, which its library cannot "
            "read; copy the data set to a disk, or prepare it again with "
            "--file_format=tfrecord"
        )
    try:
        # Lazily, as its wheels do not exist for every platform.
        from array_record.python import array_record_data_source
    except ImportError as err:
        raise UserError(
            f"{path} is an ArrayRecord file, which needs the package array-record: "
            "run 'pip install array-record', or prepare the data set again with "
            "--file_format=tfrecord"
        ) from err
    return array_record_data_source.ArrayRecordDataSource([path])


class ArrayRecordExamples:
    """Examples in ArrayRecord files, read through their library.

    Attributes:
      paths: The files.
      image: Name of the feature that holds the encoded image.
    """

    encoded = True

    def __init__(self, paths: Sequence[str], image: str):
        self.paths = list(paths)
        self.image = image
        self._files = [open_array_record(path) for path in self.paths]
        self._ends = np.cumsum([len(file) for file in self._files])

    def read(self, rows: Rows) -> list[bytes]:
        """Returns the encoded images of `rows`."""
        images: list[bytes] = []
        for record, example in self._examples(rows):
            start, stop = example.image_range(self.image)
            images.append(record[start:stop])
        return images

    def names(self, rows: Rows) -> list[str]:
        """Returns `FILE#RECORD` for each row."""
        return [f"{self.paths[file]}#{record}" for file, record in self._places(rows)]

    def _examples(self, rows: Rows) -> Iterator[tuple[bytes, tfrecords.Example]]:
        for (file, number), name in zip(
            self._places(rows), self.names(rows), strict=True
        ):
            record = self._files[file][number]
            yield record, tfrecords.Example(record, 0, len(record), name)

    def _places(self, rows: Rows) -> list[tuple[int, int]]:
        files = np.searchsorted(self._ends, rows, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])
        return list(zip(files.tolist(), (rows - starts[files]).tolist(), strict=True))


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

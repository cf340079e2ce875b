# SPDX-License-Identifier: Apache-2.0
"""Examples in ArrayRecord files, which are read through their library.

Such a file serves single records, so its index holds the number of each record and its
label, and no byte ranges.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from vit_jax.data.buckets import is_remote
from vit_jax.data.examples import Rows
from vit_jax.data.shards.index_file import Found
from vit_jax.data.shards.tfrecords import Derivation, Example
from vit_jax.errors import UserError


class ArrayRecordReader(NamedTuple):
    """Goes through an ArrayRecord file, as a `shard_store.Reader`.

    Attributes:
      label: Name of the feature that holds one number.
      derive: Makes the label of an example instead; `label` then only names the index.
    """

    label: str
    derive: Derivation | None = None

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
            example = Example(record, 0, len(record), f"{path}#{number}")
            derive = self.derive
            label = derive(example) if derive else example.label(self.label)
            yield Found(number, 0, label)


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

    def _examples(self, rows: Rows) -> Iterator[tuple[bytes, Example]]:
        for (file, number), name in zip(
            self._places(rows), self.names(rows), strict=True
        ):
            record = self._files[file][number]
            yield record, Example(record, 0, len(record), name)

    def _places(self, rows: Rows) -> list[tuple[int, int]]:
        files = np.searchsorted(self._ends, rows, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])
        return list(zip(files.tolist(), (rows - starts[files]).tolist(), strict=True))

# SPDX-License-Identifier: Apache-2.0
"""Writes the examples of a chunk as one shard: a tar file or a TFRecord file.

    tar       KEY.jpg (or .png, ...: by content) with KEY.cls, the class id as text;
              KEY.json instead, {"labels": [...]} or {"target": ...}, where an example
              has several classes or a number to predict
    tfrecord  tf.train.Example with `image` (the encoded bytes), `label` (int64, as many
              as there are classes; float for numbers to predict) and `name` (the key)

The bytes of a shard depend on nothing but its examples: no time, no user, no host.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from vit_jax.data.labels import MultiHot
from vit_jax.data.prepare.plan import Chunk
from vit_jax.errors import UserError

FORMATS = ("tar", "tfrecord")
READ_SIZE = 64
"""Examples that are read and held at a time."""

_MAGIC = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\0\0\0\x0cjP", "jp2"),
)


class Example(NamedTuple):
    """What a shard holds of an example; `label` is an id, a list of ids or a number."""

    key: str
    image: bytes
    label: int | float | list[int]


def write_shard(chunk: Chunk, path: str, file_format: str) -> None:
    """Writes a chunk's examples, in their order, to a file that is whole or not there.

    Args:
      chunk: The examples.
      path: The file.
      file_format: One of `FORMATS`.

    Raises:
      UserError: An image that cannot be read or is none.
    """
    final = epath.Path(path)
    part = final.with_name(f"{final.name}.part{os.getpid()}")
    writer = {"tar": _write_tar, "tfrecord": _write_tfrecord}[file_format]
    try:
        writer(chunk, part)
    except UserError:
        part.unlink(missing_ok=True)
        raise
    part.replace(final)


def extension(data: bytes, name: str) -> str:
    """Returns the usual extension of a picture by its first bytes.

    Args:
      data: The encoded picture.
      name: What messages call it.

    Raises:
      UserError: Bytes that are no picture.
    """
    for magic, known in _MAGIC:
        if data.startswith(magic):
            return known
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if data[4:12] == b"ftypavif":
        return "avif"
    raise UserError(
        f"{name} is no picture of a known format: it begins with {data[:8]!r}; remove "
        "or replace it"
    )


def _examples(chunk: Chunk) -> Iterator[Example]:
    for start in range(0, len(chunk.keys), READ_SIZE):
        rows = np.arange(start, min(start + READ_SIZE, len(chunk.keys)))
        for row, image in zip(rows.tolist(), chunk.table.read(rows), strict=True):
            yield Example(chunk.keys[row], image, _label(chunk, row))


def _label(chunk: Chunk, row: int) -> int | float | list[int]:
    labels = chunk.labels
    if isinstance(labels, MultiHot):
        return labels.ids[labels.offsets[row] : labels.offsets[row + 1]].tolist()
    return labels[row].item()


def _write_tar(chunk: Chunk, path: epath.Path) -> None:
    with (
        path.open("wb") as file,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for key, image, label in _examples(chunk):
            _add(archive, f"{key}.{extension(image, key)}", image)
            if isinstance(label, int):
                _add(archive, f"{key}.cls", str(label).encode())
            else:
                name = "labels" if isinstance(label, list) else "target"
                _add(archive, f"{key}.json", json.dumps({name: label}).encode())


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _write_tfrecord(chunk: Chunk, path: epath.Path) -> None:
    import tensorflow as tf  # lazily: it takes seconds

    train: Any = tf.train
    with tf.io.TFRecordWriter(os.fspath(path)) as writer:
        for key, image, label in _examples(chunk):
            extension(image, key)  # refuses what is no picture
            values = label if isinstance(label, list) else [label]
            if isinstance(label, float):
                numbers = train.Feature(float_list=train.FloatList(value=values))
            else:
                numbers = train.Feature(int64_list=train.Int64List(value=values))
            feature = {"image": _text(image), "label": numbers}
            feature["name"] = _text(key.encode())
            example = train.Example(features=train.Features(feature=feature))
            # Deterministic: the order of a map in a message is otherwise left open.
            writer.write(example.SerializeToString(deterministic=True))


def _text(value: bytes) -> Any:
    import tensorflow as tf

    train: Any = tf.train
    return train.Feature(bytes_list=train.BytesList(value=[value]))

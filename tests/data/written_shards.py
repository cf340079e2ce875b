# SPDX-License-Identifier: Apache-2.0
"""Shards written with the libraries that people write them with."""

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_tar(
    path: Path,
    members: Sequence[tuple[str, bytes]],
    tar_format: int = tarfile.PAX_FORMAT,
) -> Path:
    """Packs files in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def pairs(labels: Mapping[str, str | bytes], image: bytes | None = None) -> list:
    """Members `KEY.jpg` and `KEY.cls`; the image is its key unless one is given."""
    members = []
    for key, label in labels.items():
        members.append((f"{key}.jpg", image or key.encode()))
        data = label if isinstance(label, bytes) else label.encode()
        members.append((f"{key}.cls", data))
    return members


def write_records(path: Path, examples: Sequence[bytes], options: str = "") -> Path:
    """Writes TFRecords."""
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for data in examples:
            writer.write(data)
    return path


def example(**features) -> bytes:
    """Makes a `tf.train.Example` of lists of texts, fractions or whole numbers."""
    import tensorflow as tf

    def feature(value):
        if isinstance(value[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        if isinstance(value[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))

    mapping = {key: feature(value) for key, value in features.items()}
    message = tf.train.Features(feature=mapping)
    return tf.train.Example(features=message).SerializeToString()

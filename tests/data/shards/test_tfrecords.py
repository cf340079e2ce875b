# SPDX-License-Identifier: Apache-2.0
"""Places of values in TFRecord files and messages that TensorFlow wrote."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from vit_jax.data.forms.tar_tfrecord import numbers as label_numbers, shard_table
from vit_jax.data.shards.index_file import Shard, join
from vit_jax.data.shards.protobuf import FLOATS, INTS, Value, example_features, numbers
from vit_jax.data.shards.store import read_shard
from vit_jax.data.shards.tfrecords import TFRecordReader
from vit_jax.errors import UserError


def example(**features) -> bytes:
    import tensorflow as tf

    def feature(value):
        if isinstance(value[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
        if isinstance(value[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))

    mapping = {key: feature(value) for key, value in features.items()}
    features_message = tf.train.Features(feature=mapping)
    return tf.train.Example(features=features_message).SerializeToString()


def write(path: Path, *examples: bytes) -> str:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for data in examples:
            writer.write(data)
    return str(path)


def index_examples(paths: list[str], image: str, label: str):
    """Goes through files without keeping what was found."""
    reader = TFRecordReader(image, label)
    parts = [read_shard(reader, Shard(path, 0, 0, 0, 0, "")) for path in paths]
    index = join(parts)
    counts = [shard.rows for shard in index.shards]
    return shard_table(index), label_numbers(index), counts


def test_values_are_found_wherever_they_lie(tmp_path):
    paths = [
        write(
            tmp_path / f"{shard}.tfrecord",
            *(
                example(
                    a=[b"x" * 300, b"y"],
                    image=[b"%d-%d" % (shard, n)],
                    label=[n],
                    z=[0.5],
                )
                for n in range(3)
            ),
        )
        for shard in range(2)
    ]
    table, labels, counts = index_examples(paths, "image", "label")
    assert counts == [3, 3]
    assert labels.tolist() == [0, 1, 2] * 2
    assert table.read(np.array([5, 0, 1])) == [b"1-2", b"0-0", b"0-1"]
    assert table.names(np.array([5]))[0].startswith(f"{paths[1]}@")
    targets = index_examples(paths, "image", "z")[1]
    assert targets.dtype == np.float32
    assert targets.tolist() == [0.5] * 6


@pytest.mark.parametrize("values", [[0], [-1, 2**40, 127, 128], [-(2**63), 2**63 - 1]])
def test_integers_of_all_sizes_are_decoded(values):
    data = example(n=values)
    found = example_features(data, 0, len(data))["n"]
    assert found.kind == INTS
    assert numbers(data, found) == values


def test_floats_are_decoded():
    data = example(x=[0.25, -1e30])
    found = example_features(data, 0, len(data))["x"]
    assert found.kind == FLOATS
    assert numbers(data, found) == np.float32([0.25, -1e30]).tolist()


def test_unpacked_numbers_are_decoded():
    # Field 1 twice: as two varints, and as two fixed 32-bit values.
    data = b"\x08\x05\x08\xac\x02" + b"\x0d\x00\x00\x80\x3f\x0d\x00\x00\x00\x40"
    assert numbers(data, Value(INTS, 0, 5)) == [5, 300]
    assert numbers(data, Value(FLOATS, 5, 15)) == [1.0, 2.0]


@pytest.mark.parametrize(
    "data", [b"\x0a\x05abc", b"\xff", b"\x0b", b"\x0a\x03\x0a\x05a"]
)
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(ValueError, match=r"byte|ends inside"):
        example_features(data, 0, len(data))


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"image": [b"a", b"b"], "label": [1]}, "in its feature 'image' 2 texts"),
        ({"image": [b"a"], "label": [1, 2]}, "in its feature 'label' 2 numbers"),
        ({"image": [b"a"], "label": [b"\xff"]}, "in its feature 'label' 0 numbers"),
        ({"image": [b"a"], "label": [b"a" * 2000]}, "'label' 0 numbers or class names"),
        ({"image": [b"a"], "label": [b"a", b"b"]}, "'label' 2 numbers or class names"),
        ({"image": [b"a"], "class": [1]}, "its features are class, image: say which"),
    ],
)
def test_examples_without_one_image_and_one_label_are_refused(
    tmp_path, features, words
):
    path = write(tmp_path / "x.tfrecord", example(**features))
    with pytest.raises(UserError, match=rf"x\.tfrecord@12 .*{words}"):
        index_examples([path], "image", "label")


def test_other_files_are_refused(tmp_path):
    path = Path(write(tmp_path / "x.tfrecord", b"\xff"))
    with pytest.raises(UserError, match=r"@12 is no tf\.train\.Example"):
        index_examples([str(path)], "image", "label")
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(UserError, match=r"x\.tfrecord is compressed with GZIP"):
        index_examples([str(path)], "image", "label")
    path.unlink()
    with pytest.raises(UserError, match=r"cannot read .*: .*No such file"):
        index_examples([str(path)], "image", "label")

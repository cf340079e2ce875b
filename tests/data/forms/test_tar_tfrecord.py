# SPDX-License-Identifier: Apache-2.0
"""Data sets in tar and TFRecord files, opened by a GLOB."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.written_shards import example, pairs, write_records, write_tar
from vit_jax.data.labels import MultiHot
from vit_jax.data.shards.tfrecords import masked_crc
from vit_jax.data.sources import check_source, open_source
from vit_jax.errors import UserError


def images(source) -> list[bytes]:
    return source.read(np.arange(len(source)))


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """Two training shards and a validation shard, with names of classes."""
    write_tar(tmp_path / "x-train-0.tar", pairs({"a": "dog", "b": "cat"}))
    write_tar(tmp_path / "x-train-1.tar", pairs({"c": "cat", "d": "dog", "e": "emu"}))
    write_tar(tmp_path / "x-val-0.tar", pairs({"f": "emu", "g": "cat"}))
    return tmp_path


def test_class_names_come_from_the_training_shards(animals):
    train = open_source(f"tar:{animals}/*.tar", "train")
    assert train.class_names == ("cat", "dog", "emu")
    assert train.labels.tolist() == [1, 0, 0, 1, 2]
    assert train.labels.dtype == np.int32
    assert images(train) == [b"a", b"b", b"c", b"d", b"e"]
    val = open_source(f"tar:{animals}/*.tar", "validation")
    assert (val.class_names, val.labels.tolist()) == (train.class_names, [2, 0])
    assert images(val) == [b"f", b"g"]
    assert val.names(np.array([1])) == [f"{animals}/x-val-0.tar@2560"]


def test_splits_are_cut_and_joined(animals):
    dataset = f"tar:{animals}/x-{{train,val}}-*.tar"
    both = open_source(dataset, "val[1:]+train[:3]")
    assert images(both) == [b"g", b"a", b"b", b"c"]
    assert both.labels.tolist() == [0, 1, 0, 0]
    every = open_source(dataset, "all")
    assert sorted(images(every)) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
    with pytest.raises(UserError, match=r"has no split 'test'; it has train, val"):
        open_source(dataset, "test")


def test_names_of_a_file_fix_the_ids(animals):
    (animals / "names.txt").write_text("emu\ndog\ncat\nyak\n")
    val = open_source(f"tar:{animals}/x-val-*.tar@names=names.txt", "val")
    assert val.labels.tolist() == [0, 2]
    assert len(val.class_names) == 4
    given = open_source(f"tar:{animals}/x-*", "val", class_names=["cat", "emu"])
    assert given.labels.tolist() == [1, 0]
    with pytest.raises(UserError, match=r"x-train-0\.tar@512 has the class 'dog'"):
        open_source(f"tar:{animals}/x-*", "train", class_names=["cat", "emu"])


def test_a_class_that_training_lacks_is_named_with_its_place(animals):
    write_tar(animals / "x-val-0.tar", pairs({"f": "emu", "g": "yak"}))
    with pytest.raises(UserError, match=r"x-val-0\.tar@2560 has the class 'yak'"):
        open_source(f"tar:{animals}/*.tar", "val")
    lenient = open_source(f"tar:{animals}/*.tar", "val", lenient=True)
    assert lenient.labels.tolist() == [2, -1]


def test_names_need_a_training_split(animals):
    with pytest.raises(UserError, match="has no training split to take class names"):
        open_source(f"tar:{animals}/x-val-0.tar", "val")


def test_whole_numbers_are_ids(tmp_path):
    write_tar(tmp_path / "train.tar", pairs({"a": "10", "b": "2"}))
    write_tar(tmp_path / "test.tar", pairs({"c": "7"}))
    train = open_source(f"tar:{tmp_path}/*.tar", "train")
    assert (train.labels.tolist(), train.class_names) == ([10, 2], None)
    assert open_source(f"tar:{tmp_path}/*.tar", "test").labels.tolist() == [7]
    with pytest.raises(
        UserError, match=r"first 10 of .*train\.tar@512; set num_classe"
    ):
        check_source(train, num_classes=10, decode=False)
    # By the names of a checkpoint, a name counts before an id.
    named = open_source(
        f"tar:{tmp_path}/*.tar", "train", class_names=["x", "10", "y", "2"]
    )
    assert named.labels.tolist() == [1, 3]
    with pytest.raises(
        UserError, match=r"train\.tar@512 has the label 10, which is no"
    ):
        open_source(f"tar:{tmp_path}/*.tar", "train", class_names=["x", "y", "z"])


def test_shards_with_numbers_and_names_are_one_data_set(tmp_path):
    write_tar(tmp_path / "0.tar", pairs({"a": "1", "b": "30"}))
    write_tar(tmp_path / "1.tar", pairs({"c": "x", "d": "1"}))
    source = open_source(f"tar:{tmp_path}/*.tar", "train")
    assert source.class_names == ("1", "30", "x")
    assert source.labels.tolist() == [0, 1, 2, 0]


def json_shard(path: Path, *texts: str) -> None:
    members = []
    for number, text in enumerate(texts):
        members += [(f"{number}.jpg", b"."), (f"{number}.json", text.encode())]
    write_tar(path, members)


def test_targets_and_several_labels(tmp_path):
    json_shard(tmp_path / "t" / "0.tar", '{"target": 0.5}', '{"target": 2}')
    json_shard(tmp_path / "t" / "1.tar", '{"label": 3}')
    targets = open_source(f"tar:{tmp_path}/t/*.tar", "train")
    assert targets.labels.dtype == np.float32
    assert targets.labels.tolist() == [0.5, 2.0, 3.0]
    json_shard(tmp_path / "s" / "0.tar", '{"labels": ["b", "c"]}', '{"labels": []}')
    json_shard(tmp_path / "s" / "1.tar", '{"labels": ["a"]}')
    several = open_source(f"tar:{tmp_path}/s/*.tar", "train")
    assert several.class_names == ("a", "b", "c")
    assert isinstance(several.labels, MultiHot)
    rows = several.labels[np.arange(3)]
    assert rows.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    with pytest.raises(UserError, match=r"s/1\.tar@512 has the class 'a'"):
        open_source(f"tar:{tmp_path}/s/*.tar", "train", class_names=["b", "c"])
    with pytest.raises(UserError, match=r"labels of .* are several and those of"):
        open_source(f"tar:{tmp_path}/{{t,s}}/*.tar@split=train", "train")


def test_tfrecords_are_read_by_the_names_of_features(tmp_path):
    features = {"image/encoded": [b"one"], "image/class/label": [5], "text": [b"emu"]}
    write_records(tmp_path / "train-00000-of-00001", [example(**features)])
    dataset = f"tfrecord:{tmp_path}/train-*@image=image/encoded"
    source = open_source(f"{dataset};label=image/class/label", "train")
    assert (images(source), source.labels.tolist()) == ([b"one"], [5])
    named = open_source(f"{dataset};label=text", "train")
    assert (named.class_names, named.labels.tolist()) == (("emu",), [0])
    with pytest.raises(
        UserError, match="its features are image/class/label, image/enc"
    ):
        open_source(dataset, "train")


def test_a_broken_checksum_is_named_with_its_place(tmp_path):
    data = example(image=[b"x" * 50], label=[1])
    path = write_records(tmp_path / "x.tfrecord", [data, data])
    whole = path.read_bytes()
    second = len(whole) // 2
    for place, part in ((second + 3, "length"), (second + 40, "data")):
        broken = bytearray(whole)
        broken[place] ^= 1
        path.write_bytes(broken)
        words = rf"x\.tfrecord@{second}: the checksum of the record's {part} is wrong"
        with pytest.raises(UserError, match=words):
            open_source(f"tfrecord:{path}", "train")


def test_the_checksum_is_that_of_the_standard():
    # The check value of CRC-32C (iSCSI) is e3069283; the mask is that of the
    # TensorFlow source: rotated right by 15 bits, plus a282ead8.
    expected = (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert masked_crc(b"123456789") == expected


@pytest.mark.parametrize("options", ["GZIP", "ZLIB"])
def test_compressed_tfrecords_are_refused(tmp_path, options):
    path = write_records(
        tmp_path / "x.tfrecord", [example(image=[b"x" * 99], label=[1])] * 9, options
    )
    words = {"GZIP": "is compressed with GZIP", "ZLIB": "checksum of the record's len"}
    with pytest.raises(UserError, match=words[options]):
        open_source(f"tfrecord:{path}", "train")

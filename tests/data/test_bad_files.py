# SPDX-License-Identifier: Apache-2.0
"""What is wrong in a data set is an error that names the file and the place in it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encode, jpeg, photo
from tests.data.written_shards import example, pairs, write_records, write_tar
from vit_jax.data.forms.tfds import ArrayRecordReader
from vit_jax.data.pipeline import eval_batches
from vit_jax.data.sources import check_source, open_source
from vit_jax.errors import UserError

GOOD = encode(photo(8, 8), "PNG")
BAD = {
    "truncated": (jpeg()[:-300], "a JPEG file of .* truncated or damaged"),
    "page": (b"<!DOCTYPE html><html>404</html>", "an HTML or XML page"),
    "empty": (b"", "the file is empty"),
}


def read_all(dataset: str) -> None:
    source = open_source(dataset, "train")
    with eval_batches(source, batch_size=2, ops="decode|resize(8)") as batches:
        list(batches)


@pytest.mark.parametrize("kind", BAD)
def test_a_broken_image_is_named_by_each_form(kind, tmp_path):
    data, words = BAD[kind]
    (tmp_path / "f" / "c").mkdir(parents=True)
    for name, content in (("a", GOOD), ("b", data), ("c", GOOD)):
        (tmp_path / "f" / "c" / f"{name}.jpg").write_bytes(content)
    (tmp_path / "x.csv").write_text(
        "image,label\n" + "".join(f"f/c/{name}.jpg,0\n" for name in "abc")
    )
    members = [("a.png", GOOD), ("a.cls", b"0"), ("b.jpg", data), ("b.cls", b"0")]
    write_tar(tmp_path / "x.tar", members)
    records = [example(image=[content], label=[0]) for content in (GOOD, data)]
    write_records(tmp_path / "x.tfrecord", records)
    size = 512 + len(GOOD) + -len(GOOD) % 512
    for dataset, name in (
        (f"folder:{tmp_path}/f", r"/f/c/b\.jpg"),
        (f"csv:{tmp_path}/x.csv", r"/f/c/b\.jpg"),
        (f"tar:{tmp_path}/x.tar", rf"/x\.tar@{size + 1024 + 512}"),
        (f"tfrecord:{tmp_path}/x.tfrecord", r"/x\.tfrecord@\d+"),
    ):
        with pytest.raises(UserError, match=rf"{name}: not a picture.*{words}"):
            read_all(dataset)


def test_a_folder_that_is_called_as_an_image_is_no_image(tmp_path):
    (tmp_path / "cat" / "x.jpg").mkdir(parents=True)
    (tmp_path / "cat" / "a.png").write_bytes(GOOD)
    assert len(open_source(f"folder:{tmp_path}", "train")) == 1
    (tmp_path / "x.csv").write_text("image,label\ncat/a.png,0\ncat/x.jpg,1\n")
    with pytest.raises(UserError, match=r"x\.csv:3 names the image .*cat/x\.jpg"):
        open_source(f"csv:{tmp_path}/x.csv", "train")


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_out_of_range_is_named_with_its_place(label, tmp_path):
    (tmp_path / "a.png").write_bytes(GOOD)
    (tmp_path / "x.csv").write_text("image,label\na.png,3\n")
    write_tar(tmp_path / "x.tar", pairs({"a": "3", "b": str(label)}))
    path = write_records(
        tmp_path / "x.tfrecord", [example(image=[b"x"], label=[n]) for n in (3, label)]
    )
    for dataset, name in (
        (f"tar:{tmp_path}/x.tar", r"x\.tar@2560"),
        (f"tfrecord:{path}", r"x\.tfrecord@\d+"),
    ):
        source = open_source(dataset, "train")
        words = rf"1 labels of .* outside the model's 10 classes, first {label} of .*"
        with pytest.raises(UserError, match=words + name):
            check_source(source, num_classes=10)


def test_a_shard_that_is_cut_after_indexing_is_noticed(tmp_path):
    path = write_tar(tmp_path / "x.tar", pairs({"a": "0", "b": "0"}, GOOD))
    source = open_source(f"tar:{path}", "train")
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(UserError, match=r"x\.tar ends inside the image .*x\.tar@2560"):
        source.read(np.array([1]))
    with pytest.raises(UserError, match=r"x\.tar ends inside 'a\.jpg'"):
        open_source(f"tar:{path}", "train")


def test_array_records_need_their_library(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("array_record")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "array_record", None)
    with pytest.raises(UserError, match="run 'pip install array-record', or prepare"):
        list(ArrayRecordReader("label")(str(Path("x.array_record-00000-of-00001"))))

# SPDX-License-Identifier: Apache-2.0
"""Names of data sets, views of sources, the sets in memory, and the checks at start."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.examples import Collection, Source
from vit_jax.data.forms.arrays import ArrayRecords, read_idx
from vit_jax.data.labels import MultiHot, class_ids, translate_ids
from vit_jax.data.sources import check_source, open_source, parse_dataset
from vit_jax.errors import UserError


def numbered(size: int, **kwargs) -> Source:
    """A source whose row i is an image of level i and has the label i."""
    images = np.arange(size, dtype=np.uint8)[:, None, None, None]
    labels = kwargs.pop("labels", np.arange(size, dtype=np.int32))
    collection = Collection(ArrayRecords(images, "numbered"), labels, {}, **kwargs)
    return Source(collection, [(0, size)], "numbered train")


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


# Names of data sets


@pytest.mark.parametrize(
    ("dataset", "form", "location", "options"),
    [
        ("bundled:mnist", "bundled", "mnist", {}),
        ("folder:/a@b=c/d", "folder", "/a@b=c/d", {}),
        ("folder:/a/d@names=n.txt", "folder", "/a/d", {"names": "n.txt"}),
        ("synthetic:10@size=8;train=5", "synthetic", "10", {"size": "8", "train": "5"}),
        ("tfds:pets/x:1.0.0@label=id", "tfds", "pets/x:1.0.0", {"label": "id"}),
        ("csv:photo@home.csv", "csv", "photo@home.csv", {}),
        ("folder:gs://bucket/dir", "folder", "gs://bucket/dir", {}),
    ],
)
def test_options_are_read_behind_the_last_slash(dataset, form, location, options):
    assert parse_dataset(dataset) == (form, location, options)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("mnist", "does not say which form .* bundled:mnist"),
        ("foldr:/x", "unknown form of data set 'foldr'; did you mean 'folder'"),
        ("folder:", "names no place; write folder:DIR"),
        ("synthetic:10@sise=3", "unknown option of synthetic: 'sise'; did you mean"),
        ("synthetic:10@size=", "'size=' of synthetic: has no value"),
        ("bundled:mnist@size=3", "bundled: takes no options"),
        ("bundled:mnits", "unknown bundled data set 'mnits'; did you mean 'mnist'"),
    ],
)
def test_wrong_names_of_data_sets_say_what_is_allowed(dataset: str, words: str):
    with pytest.raises(UserError, match=words):
        open_source(dataset, "train")


# Views


def test_a_view_joins_ranges_and_slices_of_them():
    records = ArrayRecords(np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1), "x")
    labels = np.arange(20, dtype=np.int32) * 10
    source = Source(Collection(records, labels, {}), [(15, 20), (2, 4)], "x")
    assert len(source) == 7
    assert source.labels.tolist() == [150, 160, 170, 180, 190, 20, 30]
    assert source.read(rows(6, 0, 4, 5)).ravel().tolist() == [3, 15, 19, 2]
    assert source.names(rows(5)) == ["x:2"]
    part = source[3:6]
    assert part.labels.tolist() == [180, 190, 20]
    assert part.read(rows(0, 2)).ravel().tolist() == [18, 2]
    assert source[-2:][1:].labels.tolist() == [30]
    assert len(source[4:4]) == 0
    with pytest.raises(IndexError, match=r"rows must lie in 0\.\.6"):
        source.read(rows(7))
    with pytest.raises(ValueError, match="steps of 1"):
        source[::2]


def test_several_labels_are_rows_of_zeros_and_ones():
    labels = MultiHot(np.array([0, 2, 2, 3]), np.array([1, 3, 0], np.int32), 4)
    expected = [[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert labels[rows(0, 1, 2)].tolist() == expected
    assert labels.take([(2, 3), (0, 2)])[rows(0, 1, 2)].tolist() == [
        expected[2],
        expected[0],
        expected[1],
    ]


def test_ids_follow_the_given_class_names():
    labels = np.array([0, 2, 2], np.int32)
    moved = translate_ids(labels, ["a", "b", "c"], ["c", "x", "a"], "here")
    assert moved.tolist() == [2, 0, 0]
    unlabelled = np.array([-1, 0], np.int32)
    moved = translate_ids(unlabelled, ["a", "b"], ["b", "a"], "here")
    assert moved.tolist() == [-1, 1]
    with pytest.raises(UserError, match=r"here has the class 'c'.*did you mean 'cc'"):
        translate_ids(labels, ["a", "b", "c"], ["a", "cc"], "here")
    with pytest.raises(UserError, match="hold 'a' twice"):
        class_ids(["a", "b", "a"])


# MNIST


def test_mnist_has_the_published_sizes_and_first_labels():
    train = open_source("bundled:mnist", "train")
    test = open_source("bundled:mnist", "test")
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    # Class counts as in "The MNIST database", Y. LeCun et al.
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(train.labels).tolist() == counts
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(test.labels).tolist() == counts
    assert train.class_names == tuple("0123456789")


def test_mnist_pixels_are_those_of_the_set():
    train = open_source("bundled:mnist", "train")
    assert not train.encoded
    images = train.read(np.arange(len(train)))
    assert images.shape == (60_000, 28, 28, 1)
    # Mean and deviation of the training pixels that everybody normalises with.
    assert images.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert images.std() / 255 == pytest.approx(0.3081, abs=1e-4)


def test_mnist_splits_partition_and_join():
    head = open_source("bundled:mnist", "train[:98%]")
    tail = open_source("bundled:mnist", "train[98%:]")
    assert (len(head), len(tail)) == (58_800, 1_200)
    both = open_source("bundled:mnist", "test+train[:3]")
    assert both.labels[-3:].tolist() == [5, 0, 4]
    np.testing.assert_array_equal(both.read(rows(10_000)), head.read(rows(0)))
    with pytest.raises(
        UserError, match="bundled:mnist has no split 'validation'; it has test"
    ):
        open_source("bundled:mnist", "validation")


def test_mnist_ids_follow_the_names_of_a_checkpoint():
    names = [str(digit) for digit in reversed(range(10))]
    test = open_source("bundled:mnist", "test", class_names=names)
    assert test.labels[:4].tolist() == [2, 7, 8, 9]
    assert test.class_names == tuple(names)
    with pytest.raises(UserError, match="has the class '9'"):
        open_source("bundled:mnist", "test", class_names=names[1:])


def test_files_that_are_no_idx_are_refused(tmp_path: Path):
    import gzip

    path = tmp_path / "x.gz"
    for data in (b"", b"\0\0\x08\x01\0\0\0\x05abcd", b"\0\0\x0d\x01\0\0\0\x04abcd"):
        path.write_bytes(gzip.compress(data))
        with pytest.raises(UserError, match="is no IDX file of bytes"):
            read_idx(path)
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x04abcd"))
    assert read_idx(path).tolist() == list(b"abcd")


# Synthetic images


def test_synthetic_images_depend_on_their_row_alone():
    options = "synthetic:5@size=9;train=40;validation=6"
    train = open_source(options, "train")
    assert len(train) == 40
    images = train.read(np.arange(40))
    assert images.shape == (40, 9, 9, 3)
    np.testing.assert_array_equal(train.read(rows(7, 3)), images[[7, 3]])
    both = open_source(options, "val+train")
    assert len(both) == 46
    np.testing.assert_array_equal(both.read(np.arange(6, 46)), images)
    assert both.names(rows(0, 7)) == ["synthetic validation:0", "synthetic train:1"]
    assert not (both.read(np.arange(6)) == images[:6]).all((1, 2, 3)).any()
    other = open_source("synthetic:5@size=9;seed=1", "train")
    assert not (other.read(rows(0, 1)) == images[:2]).all((1, 2, 3)).any()


def test_synthetic_classes_can_be_told_apart_but_images_differ():
    source = open_source("synthetic:4@size=16;train=64;test=32", "train")
    test = open_source("synthetic:4@size=16;train=64;test=32", "test")
    assert np.bincount(source.labels).tolist() == [16] * 4
    images = source.read(np.arange(64)).reshape(64, -1).astype(np.float64)
    means = np.stack([images[source.labels == k].mean(0) for k in range(4)])
    queries = test.read(np.arange(32)).reshape(32, 1, -1)
    nearest = ((queries - means) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(nearest, test.labels)
    assert len(np.unique(images, axis=0)) == 64


@pytest.mark.parametrize(
    ("dataset", "split", "words"),
    [
        ("synthetic:x", "train", "the number of classes of synthetic: is 'x'"),
        ("synthetic:0", "train", "whole number from 1 on"),
        ("synthetic:3@size=0", "train", "size of synthetic: is '0'"),
        ("synthetic:3", "minival", "synthetic: has no split 'minival'; it has test"),
    ],
)
def test_impossible_synthetic_sets_are_refused(dataset: str, split: str, words: str):
    with pytest.raises(UserError, match=words):
        open_source(dataset, split)


# Checks before the first step


def test_a_batch_larger_than_the_set_is_refused():
    check_source(numbered(10), batch_size=10)
    with pytest.raises(UserError, match="batch_size 11 is larger than numbered train"):
        check_source(numbered(10), batch_size=11)


def test_labels_without_a_class_are_refused():
    check_source(numbered(10), num_classes=10)
    with pytest.raises(UserError, match=r"1 labels .* first 9 of numbered:9; .* 10"):
        check_source(numbered(10), num_classes=9)
    with pytest.raises(UserError, match=r"first -1 of numbered:0"):
        check_source(numbered(2, labels=np.array([-1, 0], np.int32)), num_classes=9)
    targets = np.array([-1.5, 1e6], np.float32)
    check_source(numbered(2, labels=targets), num_classes=2)
    several = MultiHot(np.array([0, 1, 1]), np.array([7], np.int32), 8)
    check_source(numbered(2, labels=several), num_classes=8)
    with pytest.raises(UserError, match="set num_classes=8"):
        check_source(numbered(2, labels=several), num_classes=7)


def test_an_empty_view_is_refused():
    with pytest.raises(UserError, match="holds no example"):
        check_source(numbered(10)[5:5])


def test_a_last_image_that_is_broken_is_refused_by_name(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / "kind").mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "kind" / f"{name}.png")
    source = open_source(f"folder:{tmp_path}", "train")
    check_source(source, batch_size=2, num_classes=1)
    (tmp_path / "kind" / "b.png").write_bytes(b"<html>not found</html>")
    with pytest.raises(UserError, match=r"kind/b\.png: not a picture"):
        check_source(source)

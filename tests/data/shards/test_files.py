# SPDX-License-Identifier: Apache-2.0
"""Which files a GLOB names, and of which split they are."""

from pathlib import Path

import pytest

from vit_jax.data.examples import Request
from vit_jax.data.shards.files import expand_braces, find_files, sort_into_splits
from vit_jax.errors import UserError


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.tar", ["a.tar"]),
        ("{0..2}", ["0", "1", "2"]),
        ("x{098..101}", ["x098", "x099", "x100", "x101"]),
        ("{9..11}", ["9", "10", "11"]),
        ("{a,b}{0..1}", ["a0", "a1", "b0", "b1"]),
        ("{a,b{0..1},{c,d}}.z", ["a.z", "b0.z", "b1.z", "c.z", "d.z"]),
        ("{,x}a", ["a", "xa"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern, expected):
    assert expand_braces(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a{0..3", "without its }"),
        ("{3..1}", "the smaller number first"),
        ("{0..9999999}", "at most 1,000,000 numbers"),
        ("{0..9999}{0..9999}", "more than 1,000,000 files"),
    ],
)
def test_wrong_braces_are_refused(pattern, words):
    with pytest.raises(UserError, match=words):
        expand_braces(pattern)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/train-1.tar", "a/train-2.tar", "a/train-10.tar", "a/x/val.tar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "train-dir.tar").mkdir()
    return tmp_path


def test_files_are_sorted_by_their_paths(folder):
    def names(pattern: str) -> list[str]:
        return [p.removeprefix(f"{folder}/") for p in find_files(f"{folder}/{pattern}")]

    trains = ["a/train-10.tar", "a/train-2.tar", "b/train-1.tar"]
    assert names("*/train-*.tar") == trains
    assert names("{b/train-1,a/train-*}.tar") == trains
    assert names("**/*.tar") == [*trains[:2], "a/x/val.tar", trains[2]]
    assert names("a/train-{2,10}.tar") == trains[:2]


def test_an_alternative_without_a_file_is_refused(folder):
    with pytest.raises(UserError, match=r"there is no file .*/a/train-3\.tar"):
        find_files(f"{folder}/a/train-{{2..3}}.tar")
    with pytest.raises(UserError, match=r"there is no file .*/c-\*\.tar"):
        find_files(f"{folder}/{{a/*,c-*}}.tar")


def test_a_file_whose_name_looks_like_a_pattern_is_found(tmp_path):
    (tmp_path / "a[1].tar").touch()
    assert find_files(f"{tmp_path}/a[1].tar") == [f"{tmp_path}/a[1].tar"]


def splits(*paths: str, split: str = "train") -> dict[str, list[str]]:
    return sort_into_splits(paths, Request("GLOB", {}, [split]))


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("/d/imagenet-train-0001.tar", "train"),
        ("/d/train2017_3.tar", "train"),
        ("/d/train/0001.tar", "train"),
        ("/train/d/val/x/0001.tar", "val"),
        ("/d/train/imagenet-val-0001.tar", "val"),
        ("/d/from_train_Validation_1.tar", "validation"),
        ("tiny-test.tfrecord-00000-of-00001", "test"),
        ("/d/extra/0.tar", "extra"),
        ("/train/constrained.tar", "train"),
    ],
)
def test_paths_name_their_split(path, split):
    assert splits(path, split="extra") == {split: [path]}


def test_files_without_a_split_are_all_for_training():
    assert splits("/d/1.tar", "/d/pretraining.tar") == {
        "train": ["/d/1.tar", "/d/pretraining.tar"]
    }


def test_the_option_says_which_split_files_are():
    paths = ["/d/train-1.tar", "/d/x.tar"]
    request = Request("GLOB", {"split": "holdout"}, ["train"])
    assert sort_into_splits(paths, request) == {"holdout": paths}


def test_files_of_which_only_some_name_a_split_are_refused():
    with pytest.raises(
        UserError, match=r"paths of 1 files of GLOB name .*x\.tar does not"
    ):
        splits("/d/train-1.tar", "/d/x.tar")

# SPDX-License-Identifier: Apache-2.0
"""Split strings mean what TensorFlow Datasets makes of them."""

import pytest

from vit_jax.data.splits import find_split, parse_split, split_names, split_ranges
from vit_jax.errors import UserError

SIZES = {"train": 1000, "validation": 50, "test": 7}


@pytest.mark.parametrize(
    ("split", "ranges"),
    [
        ("train", [("train", 0, 1000)]),
        ("train[:98%]", [("train", 0, 980)]),
        ("train[98%:]", [("train", 980, 1000)]),
        ("train[100:200]", [("train", 100, 200)]),
        ("train[-100:]", [("train", 900, 1000)]),
        ("train[:-10%]", [("train", 0, 900)]),
        ("train[1_0:20]", [("train", 10, 20)]),
        ("train[:]", [("train", 0, 1000)]),
        ("train[:0.5%]", [("train", 0, 5)]),
        ("train[:0]+test", None),
        ("train+validation", [("train", 0, 1000), ("validation", 0, 50)]),
        ("test[3:] + train[:5]", [("test", 3, 7), ("train", 0, 5)]),
        ("test[:50%]", [("test", 0, 4)]),  # 3.5 rounds to even
    ],
)
def test_split_strings_give_these_rows(split: str, ranges: list | None):
    if ranges is None:
        with pytest.raises(UserError, match="holds no example"):
            split_ranges(split, SIZES)
    else:
        assert split_ranges(split, SIZES) == ranges


def test_percentages_agree_with_tensorflow_datasets():
    tfds = pytest.importorskip("tensorflow_datasets")
    for size in (7, 50, 1000, 1281167):
        infos = {
            "train": tfds.core.SplitInfo(
                name="train", shard_lengths=[size], num_bytes=0, filename_template=None
            )
        }
        for split in ("train[:98%]", "train[13%:87%]", "train[-20%:]", "train[3:6]"):
            absolute = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)[0]
            (ours,) = split_ranges(split, {"train": size})
            assert ours[1:] == (absolute.from_ or 0, absolute.to or size)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 99, 101, 1281167])
def test_percentages_partition_a_split(size: int):
    for percent in (1, 33, 50, 98, 99):
        row = round(percent * size / 100)
        if 0 < row < size:
            ((_, start, middle),) = split_ranges(f"a[:{percent}%]", {"a": size})
            ((_, again, stop),) = split_ranges(f"a[{percent}%:]", {"a": size})
            assert (start, middle, stop) == (0, again, size)


@pytest.mark.parametrize(
    "split",
    ["", "train[", "train[5]", "train[::2]", "train[a:b]", "train+", "tr ain", "a[:]b"],
)
def test_malformed_strings_say_what_is_allowed(split: str):
    with pytest.raises(UserError, match=r"cannot read .* write NAME"):
        parse_split(split)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("train[:1.5]", "no whole number of examples; write 1.5%"),
        ("train[:1..5%]", "is no number"),
        ("train[:1001]", "lies outside 'train', which has 1000 examples"),
        ("train[-1001:]", "use 0 to 1000 or 0% to 100%"),
        ("train[:101%]", "lies outside"),
        ("train[200:100]", "holds no example: it is rows 200 to 100 of the 1000"),
        ("test[:1%]", "holds no example"),
        ("trian", "unknown split 'trian'; did you mean 'train'"),
    ],
)
def test_impossible_ranges_are_refused(split: str, words: str):
    with pytest.raises(UserError, match=words):
        split_ranges(split, SIZES)


def test_names_come_once_each_in_order():
    assert split_names("b[:5]+a+b[5:]") == ["b", "a"]


def test_validation_names_stand_for_each_other():
    assert find_split("validation", ["train", "val"]) == "val"
    assert find_split("val", ["dev", "valid"]) == "valid"
    assert find_split("dev", ["dev", "val"]) == "dev"
    assert find_split("test", ["train", "val"]) is None
    assert find_split("validation", ["train", "test"]) is None

# SPDX-License-Identifier: Apache-2.0
"""Columns of what shards hold: collected, chosen, joined, written and mapped."""

import numpy as np
import pytest

from vit_jax.data.shards.index_file import Found, Shards, collect, join, load, save
from vit_jax.errors import UserError


def shard(path: str, labels: list) -> Shards:
    """A file whose examples lie at 100, 200, ... and are 1, 2, ... bytes long."""
    found = [Found(100 * n, n, label) for n, label in enumerate(labels, start=1)]
    return collect(path, 1000, 5, found)


def texts(index: Shards) -> list[str]:
    return [index.texts[code] for code in index.label]


@pytest.mark.parametrize(
    ("labels", "kind", "column"),
    [
        ([3, -1, 2**31 - 1], "ids", [3, -1, 2**31 - 1]),
        (["3", "0"], "ids", [3, 0]),
        (["3", "03"], "texts", [0, 1]),
        (["b", "a", "b", 7], "texts", [0, 1, 0, 2]),
        ([["a", "b"], [], ["b"]], "several", [2, 0, 1]),
        ([], "ids", []),
    ],
)
def test_labels_become_a_column(labels, kind, column):
    index = shard("x", labels)
    assert index.shards[0].kind == kind
    assert index.label.tolist() == column


def test_targets_keep_the_bits_of_float32():
    index = shard("x", [0.1, 2, -3.5])
    assert index.shards[0].kind == "targets"
    assert index.label.view("<f4").tolist() == np.float32([0.1, 2, -3.5]).tolist()


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1, 2**31], r"x@200 has the label 2147483648, which is no 32-bit number"),
        ([["a"], "a"], "several labels for one example and one for another"),
        (["a", 0.5], "class names and fractions"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, words):
    with pytest.raises(UserError, match=words):
        shard("x", labels)


def test_neighbours_are_chosen_without_a_copy():
    index = join([shard(name, [n, n + 1]) for n, name in enumerate("abcd")])
    middle = index.select(["b", "c"])
    assert middle.label.tolist() == [1, 2, 2, 3]
    assert np.shares_memory(middle.offset, index.offset)
    assert index.select(["d", "a"]).label.tolist() == [3, 4, 0, 1]
    assert len(index.select([]).offset) == 0


def test_joined_texts_keep_their_meaning():
    index = join(
        [
            shard("a", ["dog", "cat"]),
            shard("b", [1, 0]),
            shard("c", ["emu", "cat", "dog"]),
            shard("d", [["cat", "yak"], ["dog"]]),
        ]
    )
    both = index.select(["a", "c"])
    assert texts(both) == ["dog", "cat", "emu", "cat", "dog"]
    assert index.select(["b"]).label.tolist() == [1, 0]
    several = index.select(["d"])
    assert [several.texts[code] for code in several.codes] == ["cat", "yak", "dog"]
    assert several.label.tolist() == [2, 1]


def test_what_is_written_is_read_again_wherever_the_folder_is(tmp_path):
    index = join([shard("/data/a/x", ["é", "b"]), shard("/data/a/y", [["c"], []])])
    path = str(tmp_path / "deep" / "x.index")
    save(index, path, "/data/a")
    read = load(path, "/other")
    assert read is not None
    assert [s.path for s in read.shards] == ["/other/x", "/other/y"]
    assert [s[1:] for s in read.shards] == [s[1:] for s in index.shards]
    for column in ("offset", "length", "label", "codes"):
        np.testing.assert_array_equal(getattr(read, column), getattr(index, column))
    assert read.texts == index.texts


def test_a_file_that_is_no_whole_index_counts_as_none(tmp_path):
    path = tmp_path / "x.index"
    assert load(str(path), "") is None
    save(shard("x", list(range(100))), str(path), "")
    whole = path.read_bytes()
    for keep in (0, 5, 20, 100, len(whole) - 1):
        path.write_bytes(whole[:keep])
        assert load(str(path), "") is None
    path.write_bytes(b"vit_jax index 9\n" + whole[16:])
    assert load(str(path), "") is None

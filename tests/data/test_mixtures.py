# SPDX-License-Identifier: Apache-2.0
"""Training data of several sources: shares, epochs, classes."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.labels import MultiHot
from vit_jax.data.mixtures import join_sources, open_mixture
from vit_jax.data.order import Mixture, Plan, whole_slots
from vit_jax.data.pipeline import train_batches
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError


@pytest.mark.parametrize(
    ("weights", "slots"),
    [
        ([1], (1,)),
        ([6, 3], (2, 1)),
        ([0.7, 0.3], (7, 3)),
        ([0.125, 1], (1, 8)),
        ([9999, 1], (9999, 1)),
    ],
)
def test_weights_become_the_smallest_whole_numbers(weights, slots):
    assert whole_slots(weights) == slots


@pytest.mark.parametrize("weights", [[0, 1], [-1, 2], [10_000, 1], [0.33333, 1.1]])
def test_other_weights_are_refused(weights):
    with pytest.raises(UserError, match=r"weights .* of a mixture must be positive"):
        whole_slots(weights)


def test_slots_are_spread_over_the_block():
    assert Mixture((5, 5), (3, 1)).owners.tolist() == [0, 0, 1, 0]
    owners = Mixture((5, 5, 5), (5, 3, 2)).owners
    assert np.bincount(owners).tolist() == [5, 3, 2]
    # At each place the count differs from the exact share by less than one.
    for number, share in enumerate((5, 3, 2)):
        counts = np.cumsum(owners == number)
        assert (np.abs(counts - share / 10 * np.arange(1, 11)) < 1).all()


MIXTURE = Mixture((7, 30, 4), (3, 1, 2))


def stream(
    mixture: Mixture, count: int, batch_size: int = 6, seed: int = 4
) -> list[int]:
    plan = Plan(sum(mixture.sizes), batch_size, 0, 1, seed, mixture)
    steps = range(-(-count // batch_size))
    return np.concatenate([plan.rows(step) for step in steps])[:count].tolist()


def test_each_source_is_seen_once_in_each_of_its_epochs():
    rows = np.array(stream(MIXTURE, 6 * 60))
    for first, size, share in ((0, 7, 3), (7, 30, 1), (37, 4, 2)):
        own = rows[(first <= rows) & (rows < first + size)]
        assert len(own) == 60 * share
        for epoch in range(len(own) // size):
            seen = own[epoch * size : (epoch + 1) * size]
            assert sorted(seen.tolist()) == list(range(first, first + size))


def test_each_block_holds_the_share_of_each_source():
    rows = np.array(stream(MIXTURE, 6 * 50)).reshape(50, 6)
    owners = np.searchsorted([7, 37, 41], rows, side="right")
    assert (np.sort(owners, axis=1) == [0, 0, 0, 1, 2, 2]).all()


def test_a_single_source_is_a_mixture_of_one():
    whole = Plan(30, 8, 0, 1, 5)
    one = Plan(30, 8, 0, 1, 5, Mixture((30,), (1,)))
    for step in range(12):
        np.testing.assert_array_equal(whole.rows(step), one.rows(step))


def test_sources_of_one_size_have_orders_of_their_own():
    rows = np.array(stream(Mixture((50, 50), (1, 1)), 100))
    assert (rows[rows < 50] == rows[rows >= 50] - 50).sum() < 10


@pytest.mark.parametrize("batch_size", [4, 12, 20])
@pytest.mark.parametrize("process_count", [1, 2, 4])
def test_a_step_is_the_same_for_any_number_of_processes(batch_size, process_count):
    whole = stream(MIXTURE, 6 * batch_size, batch_size)
    for step in range(6):  # each plan is new, as after a resumption
        parts = [
            Plan(41, batch_size, index, process_count, 4, MIXTURE).rows(step)
            for index in range(process_count)
        ]
        expected = whole[step * batch_size : (step + 1) * batch_size]
        assert np.concatenate(parts).tolist() == expected


def test_the_batch_size_does_not_change_the_stream():
    assert stream(MIXTURE, 60, 6) == stream(MIXTURE, 60, 7) == stream(MIXTURE, 60, 60)


# Sources


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Data sets `ab` and `bc`, by their classes, with 3 images a class."""
    for level, path in enumerate(("ab/a", "ab/b", "bc/b", "bc/c")):
        (tmp_path / path).mkdir(parents=True)
        for number in range(3):
            image = Image.new("RGB", (4, 4), (50 * level, number, 0))
            image.save(tmp_path / path / f"{number}.png")
    return tmp_path


def parts(folders: Path, **changed) -> dict[str, dict]:
    part = {"split": "train", "weight": 1}
    return {
        "one": {**part, "dataset": f"folder:{folders}/ab", **changed},
        "two": {**part, "dataset": f"folder:{folders}/bc"},
    }


def test_classes_are_united_by_name(folders):
    source = open_mixture(parts(folders))
    assert source.class_names == ("a", "b", "c")
    assert source.num_classes == 3
    assert source.labels.tolist() == [0] * 3 + [1] * 3 + [1] * 3 + [2] * 3
    names = source.names(np.array([11, 0, 6]))
    ends = [name.removeprefix(str(folders)) for name in names]
    assert ends == ["/bc/c/2.png", "/ab/a/0.png", "/bc/b/0.png"]
    with open(names[0], "rb") as file:
        assert source.read(np.array([11, 0]))[0] == file.read()


def test_equal_classes_keep_their_order():
    part = {"split": "train", "dataset": "synthetic:12@size=4;train=5", "weight": 2}
    other = {**part, "dataset": "synthetic:12@size=4;train=9;seed=1", "weight": 1}
    source = open_mixture({"b": part, "a": other})
    assert source.class_names == tuple(map(str, range(12)))
    assert source.mixture == Mixture((9, 5), (1, 2))  # by name: a, then b
    assert source.read(np.array([0, 13])).shape == (2, 4, 4, 3)


def test_a_mixture_is_trained_on_in_its_shares(folders):
    source = open_mixture(parts(folders, weight=3))
    with train_batches(source, batch_size=8, ops="decode", seed=0) as batches:
        taken = list(itertools.islice(batches, 3))
    for step, batch in enumerate(taken):
        rows = Plan(12, 8, 0, 1, 0, source.mixture).rows(step)
        assert (rows < 6).sum() == 6  # three of four
        np.testing.assert_array_equal(batch["label"], source.labels[rows])
    with train_batches(source, batch_size=8, ops="decode", seed=0, start_step=2) as b:
        np.testing.assert_array_equal(next(b)["image"], taken[2]["image"])


def test_several_labels_are_joined(folders):
    for name, labels in (("m", ["x y", ""]), ("n", ["z", "y"])):
        lines = "".join(f"ab/a/{i}.png,{label}\n" for i, label in enumerate(labels))
        (folders / f"{name}.csv").write_text("image,labels\n" + lines)
    part = {"split": "train", "weight": 1}
    source = open_mixture(
        {name: {**part, "dataset": f"csv:{folders}/{name}.csv"} for name in "mn"}
    )
    assert isinstance(source.labels, MultiHot)
    assert source.class_names == ("x", "y", "z")
    rows = source.labels[np.arange(4)]
    assert rows.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"weight": None}, r"mixture\.one\.weight is missing"),
        (
            {"weights": 1},
            r"unknown field of config\.data\.mixture\.one: 'weights'; did",
        ),
        ({"weight": "3"}, r"mixture\.one\.weight is '3'; give a positive number"),
        ({"weight": 0}, r"weights 0, 1 of a mixture must be positive"),
        ({"dataset": "synthetic:2"}, "have encoded images and pixels"),
        ({"split": "test"}, "has no split 'test'"),
    ],
)
def test_parts_that_are_wrong_are_refused(folders, changed, words):
    with pytest.raises(UserError, match=words):
        open_mixture(parts(folders, **changed))


def test_parts_that_do_not_go_together_are_refused(folders):
    with pytest.raises(UserError, match=r"config\.data\.mixture has no part"):
        open_mixture({})
    sizes = {
        str(size): {"dataset": f"synthetic:2@size={size}", "split": "test", "weight": 1}
        for size in (4, 8)
    }
    words = r"'4' and '8' .* pixels of shapes \(4, 4, 3\) and \(8, 8, 3\)"
    with pytest.raises(UserError, match=words):
        open_mixture(sizes)
    (folders / "t.csv").write_text("image,target\nab/a/0.png,0.5\n")
    with pytest.raises(UserError, match=r"classes with names and classes without"):
        open_mixture(parts(folders, dataset=f"csv:{folders}/t.csv"))
    (folders / "i.csv").write_text("image,label\nab/a/0.png,1\n")
    sources = {n: open_source(f"csv:{folders}/{n}.csv", "train") for n in "it"}
    with pytest.raises(UserError, match="they have one class and targets"):
        join_sources(sources, Mixture((1, 1), (1, 1)))

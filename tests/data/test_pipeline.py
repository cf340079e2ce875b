# SPDX-License-Identifier: Apache-2.0
"""Batches are a function of (data, seed, step); evaluation counts each example once."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from vit_jax.data.examples import Collection, Source
from vit_jax.data.forms.arrays import ArrayRecords
from vit_jax.data.labels import MultiHot
from vit_jax.data.pipeline import batch_rows, eval_batches, train_batches
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError


def numbered(size: int, labels=None, side: int = 1) -> Source:
    """A source whose row i is an image of level i and has the label i."""
    levels = np.arange(size, dtype=np.uint8)[:, None, None, None]
    images = np.tile(levels, (1, side, side, 3))
    labels = np.arange(size, dtype=np.int32) if labels is None else labels
    collection = Collection(ArrayRecords(images, "numbered"), labels, {})
    return Source(collection, [(0, size)], "numbered train")


def take(source: Source, count: int, **kwargs) -> list[dict[str, np.ndarray]]:
    """The first batches of training."""
    options = {"batch_size": 8, "ops": "decode", "seed": 0, **kwargs}
    with train_batches(source, **options) as batches:
        return list(itertools.islice(batches, count))


def ids(batches) -> list[list[int]]:
    return [batch["label"].tolist() for batch in batches]


# The order of training


def test_each_epoch_holds_each_example_once_whatever_the_batch():
    for size, batch_size in ((10, 4), (10, 64), (7, 7), (1, 3), (300, 8)):
        steps = -(-4 * size // batch_size)
        rows = [batch_rows(step, batch_size, size, seed=5) for step in range(steps)]
        stream = np.concatenate(rows)[: 4 * size].reshape(4, size)
        for epoch in stream:
            assert sorted(epoch.tolist()) == list(range(size))
        if size > 100:
            assert not (stream[0] == stream[1]).mean() > 0.1


def test_batches_hold_the_rows_of_their_step():
    source = numbered(20)
    for step, batch in enumerate(take(source, 6, seed=3)):
        rows = batch_rows(step, 8, 20, seed=3)
        np.testing.assert_array_equal(batch["label"], rows)
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0], rows)
        assert batch["label"].dtype == np.int32
        assert sorted(batch) == ["image", "label"]


@pytest.mark.parametrize("process_count", [2, 4])
def test_processes_share_the_batch_of_one(process_count):
    source = numbered(20)
    whole = ids(take(source, 6))
    parts = [
        ids(take(source, 6, process_index=index, process_count=process_count))
        for index in range(process_count)
    ]
    joined = [[*itertools.chain(*shares)] for shares in zip(*parts, strict=True)]
    assert joined == whole


RANDOM = "decode|random_crop(4, padding=2)|flip_lr|value_range(-1, 1)"


@pytest.mark.parametrize("start_step", [1, 5, 13])
def test_a_resumed_run_sees_the_same_batches_bit_for_bit(start_step):
    source = open_source("synthetic:3@size=6;train=20", "train")
    straight = take(source, start_step + 2, ops=RANDOM)[start_step:]
    resumed = take(source, 2, ops=RANDOM, start_step=start_step)
    for one, other in zip(straight, resumed, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
        np.testing.assert_array_equal(one["label"], other["label"])


def test_pixels_do_not_depend_on_threads_or_processes():
    source = open_source("synthetic:3@size=6;train=20", "train")
    whole = take(source, 4, ops=RANDOM, num_parallel=1, prefetch=0)
    again = take(source, 4, ops=RANDOM, num_parallel=7, prefetch=5)
    halves = [
        take(source, 4, ops=RANDOM, process_index=index, process_count=2)
        for index in range(2)
    ]
    for step, batch in enumerate(whole):
        joined = np.concatenate([half[step]["image"] for half in halves])
        np.testing.assert_array_equal(batch["image"], again[step]["image"])
        np.testing.assert_array_equal(batch["image"], joined)


def test_the_same_example_is_augmented_anew_in_each_epoch():
    source = open_source("synthetic:3@size=6;train=8", "train")
    epochs = take(source, 3, ops=RANDOM)
    by_row = []
    for step, batch in enumerate(epochs):
        order = np.argsort(batch_rows(step, 8, 8, seed=0))
        by_row.append(batch["image"][order])
    same = (by_row[0] == by_row[1]).all((1, 2, 3))
    assert same.sum() <= 2  # 25 offsets and 2 flips: few repeat


def test_other_seeds_give_other_orders():
    assert ids(take(numbered(100), 1)) != ids(take(numbered(100), 1, seed=1))


@pytest.mark.parametrize("repeats", [2, 3])
def test_repeats_show_one_example_several_times_with_other_pixels(repeats):
    source = open_source("synthetic:3@size=6;train=20", "train")
    whole = take(source, 6, ops=RANDOM, repeats=repeats)
    images = np.concatenate([batch["image"] for batch in whole])
    rows = np.concatenate([batch_rows(step, 8, 20, seed=0) for step in range(6)])
    shown = [source.labels[np.array([rows[g // repeats]])][0] for g in range(48)]
    labels = np.concatenate([batch["label"] for batch in whole])
    assert labels.tolist() == shown
    groups = images[: 48 // repeats * repeats].reshape(-1, repeats, *images.shape[1:])
    same = (groups[:, 0] == groups[:, 1]).all((1, 2, 3))
    assert same.sum() <= 3  # 25 offsets and 2 flips: few repeat


def test_repeats_depend_neither_on_processes_nor_on_a_restart():
    source = open_source("synthetic:3@size=6;train=20", "train")
    options = {"ops": RANDOM, "repeats": 3}
    whole = take(source, 4, **options)
    (resumed,) = take(source, 1, start_step=3, **options)
    np.testing.assert_array_equal(whole[3]["image"], resumed["image"])
    halves = [
        take(source, 4, process_index=index, process_count=2, **options)
        for index in range(2)
    ]
    for step, batch in enumerate(whole):
        joined = np.concatenate([half[step]["image"] for half in halves])
        np.testing.assert_array_equal(batch["image"], joined)


def test_an_epoch_of_repeats_visits_a_part_of_the_examples_once():
    (batch,) = take(numbered(12), 1, batch_size=12, repeats=3)
    rows = batch_rows(0, 12, 12, seed=0)
    assert batch["label"].tolist() == np.repeat(rows[:4], 3).tolist()
    with pytest.raises(UserError, match="repeats is 0; give 1 for none"):
        take(numbered(3), 1, repeats=0)


# Labels


def test_targets_and_several_labels_pass_through():
    targets = np.linspace(-1, 1, 9, dtype=np.float32)
    (batch,) = take(numbered(9, targets), 1)
    rows = batch_rows(0, 8, 9, seed=0)
    np.testing.assert_array_equal(batch["label"], targets[rows])
    several = MultiHot(np.arange(10), np.arange(9, dtype=np.int32), 9)
    (batch,) = take(numbered(9, several), 1)
    np.testing.assert_array_equal(batch["labels"], np.eye(9, dtype=np.float32)[rows])
    assert "label" not in batch


def test_one_hot_labels_are_made_by_an_op():
    (batch,) = take(numbered(10), 1, ops="decode|onehot(10)|keep('image', 'labels')")
    rows = batch_rows(0, 8, 10, seed=0)
    np.testing.assert_array_equal(batch["labels"], np.eye(10, dtype=np.float32)[rows])


# Evaluation


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 64])
@pytest.mark.parametrize("process_count", [1, 2, 4])
def test_evaluation_counts_each_example_once(batch_size, process_count):
    source = numbered(10)
    shares = []
    for index in range(process_count):
        shares.append(
            list(
                eval_batches(
                    source,
                    batch_size=batch_size,
                    ops="decode|keep('image', 'label')",
                    process_index=index,
                    process_count=process_count,
                )
            )
        )
    # Every process takes part in every batch, and all in equal shape.
    assert len({len(share) for share in shares}) == 1
    local = -(-batch_size // process_count)
    batches = [*itertools.chain(*shares)]
    for batch in batches:
        assert batch["label"].shape == batch["mask"].shape == (local,)
        assert batch["image"].shape == (local, 1, 1, 3)
        assert batch["mask"].dtype == np.float32
    seen = [
        label
        for together in zip(*shares, strict=True)
        for batch in together
        for label, real in zip(batch["label"], batch["mask"], strict=True)
        if real
    ]
    assert seen == list(range(10))
    # A model that is wrong on the last two: 0.8 whatever the batch.
    correct = sum(float((b["mask"] * (b["label"] < 8)).sum()) for b in batches)
    assert correct / sum(float(b["mask"].sum()) for b in batches) == 0.8


def test_an_evaluation_can_be_repeated():
    def labels() -> list[list[int]]:
        return ids(eval_batches(numbered(5), batch_size=2, ops="decode"))

    assert labels() == labels() == [[0, 1], [2, 3], [4, 4]]


# Errors


def test_wrong_arguments_are_refused_before_any_step():
    source = numbered(10)
    with pytest.raises(UserError, match=r"batch_size 9 .* multiple of 4 .* example 12"):
        train_batches(source, batch_size=9, ops="decode", seed=0, process_count=4)
    with pytest.raises(UserError, match="batch_size 0 is not a positive multiple"):
        train_batches(source, batch_size=0, ops="decode", seed=0)
    with pytest.raises(UserError, match="batch_size 0 is too small"):
        eval_batches(source, batch_size=0, ops="decode")
    with pytest.raises(UserError, match=r"numbered train.* has no example"):
        eval_batches(source[3:3], batch_size=1, ops="decode")
    with pytest.raises(UserError, match="unknown op 'decod'"):
        train_batches(source, batch_size=2, ops="decod", seed=0)
    with pytest.raises(UserError, match="seed -1 is negative"):
        train_batches(source, batch_size=2, ops="decode", seed=-1)


# Ends


def test_importing_the_package_does_not_import_tensorflow():
    program = (
        "import sys, vit_jax.data, vit_jax.data.pipeline, vit_jax.data.sources\n"
        "print('tensorflow' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr


def test_accelerators_are_hidden_from_tensorflow():
    import tensorflow as tf

    from vit_jax.data import hide_accelerators

    hide_accelerators()
    assert {device.device_type for device in tf.config.get_visible_devices()} == {"CPU"}

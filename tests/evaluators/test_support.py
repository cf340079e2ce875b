# SPDX-License-Identifier: Apache-2.0
"""Support sets: a pure function of labels, seed and class."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.evaluators.feeds import several, source
from vit_jax.errors import UserError
from vit_jax.evaluators import support
from vit_jax.evaluators.support import class_ids, describe_shortage, select

ROOT = Path(__file__).parents[2]
LABELS = np.array([2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 4])
PIXELS = np.zeros((4, 2, 2, 3), np.uint8)


def test_each_class_gives_its_shots_or_all_that_it_has():
    rows = select(LABELS, 2, seed=0)
    assert np.bincount(LABELS[rows]).tolist() == [2, 2, 2, 0, 1]
    assert len(set(rows.tolist())) == len(rows)
    everything = select(LABELS, "all", seed=0)
    assert sorted(everything.tolist()) == list(range(len(LABELS)))


def test_fewer_shots_are_part_of_more():
    few, many = (set(select(LABELS, shots, 3).tolist()) for shots in (1, 3))
    assert few < many


def test_a_seed_draws_another_set_with_a_known_generator():
    labels = np.zeros(100, int)
    sets = [tuple(select(labels, 5, seed)) for seed in range(20)]
    assert len(set(sets)) == 20
    assert sets[7] == tuple(np.random.default_rng([7, 0]).permutation(100)[:5])


def test_a_class_is_drawn_independently_of_the_others():
    rows = np.flatnonzero(LABELS == 2)
    with_others = [r for r in select(LABELS, 2, seed=5) if LABELS[r] == 2]
    others = np.where(LABELS == 2, 2, 9)
    alone = [r for r in select(others, 2, seed=5) if r in rows]
    assert with_others == alone


def test_the_first_rows_are_taken_if_asked_for():
    assert select(LABELS, 2, 0, shuffled=False).tolist() == [1, 3, 2, 6, 0, 4, 10]


def test_rows_without_a_label_are_never_taken():
    assert select(np.array([-1, 0, -1, 0]), "all", 0).tolist() == [1, 3]


def test_another_process_draws_the_same_rows():
    # Without the package's __init__, which takes seconds.
    code = (
        "import importlib.util, numpy as np\n"
        f"spec = importlib.util.spec_from_file_location('s', {support.__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "labels = np.arange(1000) * 7 % 11\n"
        "print(module.select(labels, 3, seed=4).tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    labels = np.arange(1000) * 7 % 11
    assert found.stdout.strip() == str(select(labels, 3, seed=4).tolist())


def test_classes_that_come_short_are_named():
    found = describe_shortage(
        support=np.array([0, 0, 0, 1, 2]),
        test=np.array([0, 1, 2, 3, 3]),
        shots=(1, 2, "all"),
        class_names=["a", "b", "c", "d", "e"],
    )
    # e is in neither split, so nothing depends on it.
    assert found == {
        "absent_classes": ["d"],
        "short_classes": {"1": [], "2": ["b", "c"]},
    }


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.float32([0, 1, 2, 3]), "a number an example"),
        (several([[0], [1], [0, 1], []], 2), "several labels an example"),
        (np.array([0, 1, -1, 1]), "1 examples of pixels all have no label, first im"),
    ],
)
def test_other_labels_than_one_class_are_refused(labels, message):
    with pytest.raises(UserError, match=message):
        class_ids(source(PIXELS, labels))

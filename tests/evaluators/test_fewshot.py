# SPDX-License-Identifier: Apache-2.0
"""Few-shot evaluation of features that are the pixels themselves."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from tests.evaluators.feeds import feed
from vit_jax.errors import UserError
from vit_jax.evaluators.fewshot import Evaluator, mean_and_interval
from vit_jax.evaluators.protocol import make_protocol

NAMES = ["many", "some", "few", "single", "absent"]
COUNTS = [15, 12, 6, 1, 0]
L2 = tuple(2.0**p for p in range(-10, 21))


def pixels(params: dict, image: jax.Array) -> jax.Array:
    del params
    return image.reshape(image.shape[0], -1)


def examples(seed: int, counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures of a colour a class, in an order that mixes the classes."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    colours = np.random.default_rng(9).uniform(90, 160, (len(counts), 3))
    noise = rng.normal(0, 40, (len(labels), 2, 2, 3))
    images = np.clip(colours[labels][:, None, None] + noise, 0, 255)
    return images.astype(np.uint8), labels.astype(np.int32)


TRAIN, TEST = examples(1, COUNTS), examples(2, [8, 8, 8, 8, 5])


def evaluator(batch_size: int = 8, devices: int = 1, **protocol) -> Evaluator:
    kind = {"batch_size": batch_size, "devices": devices}
    return Evaluator(
        pixels,
        feed(*TRAIN, NAMES, **kind),
        feed(*TEST, NAMES, **kind),
        make_protocol(**protocol),
    )


def by_hand(rows: np.ndarray, l2: float) -> float:
    """Accuracy of a plain ridge with a column for each of the five classes."""
    x, q = (part[0].reshape(len(part[0]), -1).astype(float) for part in (TRAIN, TEST))
    x, y = x[rows], 2 * np.eye(5)[TRAIN[1][rows]] - 1
    mean, std = x.mean(0), x.std(0) + 1e-5
    x, q = (np.c_[(a - mean) / std, np.full(len(a), 100.0)] for a in (x, q))
    weights = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)
    return float(((q @ weights).argmax(1) == TEST[1]).mean())


@pytest.mark.parametrize(("batch_size", "devices"), [(8, 1), (3, 1), (64, 4)])
def test_every_accuracy_is_that_of_a_plain_ridge(batch_size: int, devices: int):
    evaluation = evaluator(batch_size, devices, shots=[1, 5, 10], values=L2)
    report = evaluation.evaluate({})
    assert len(report.results()) == 3 * 3 * len(L2)
    for row in report.results():
        rows = evaluation.supports[row["shots"], row["seed"]]
        assert row["top1"] == pytest.approx(by_hand(rows, row["l2"]), abs=1e-4)
        assert row["examples"] == 37
    assert report.shortage == {
        "absent_classes": ["absent"],
        "short_classes": {"1": [], "5": ["single"], "10": ["few", "single"]},
    }


def test_support_sets_do_not_depend_on_devices():
    one, four = (evaluator(devices=n, shots=[1, 5]).supports for n in (1, 4))
    assert one.keys() == four.keys()
    for key, rows in one.items():
        np.testing.assert_array_equal(rows, four[key])


def test_an_absent_class_counts_as_wrong():
    report = evaluator(shots="all", values=1024.0).evaluate({})
    (row,) = report.results()
    assert row["top1"] <= 32 / 37
    assert row["shots"] == "all"


def test_only_images_of_support_sets_are_read():
    evaluation = evaluator(shots=1, seeds=1)
    read = []
    records = evaluation._support.source.records
    original = records.read
    records.read = lambda rows: read.extend(rows.tolist()) or original(rows)
    evaluation.evaluate({})
    assert len(evaluation._support.source) == 4
    # The last batch repeats an example; the pipeline looks at row 0 for the shape.
    assert set(read) - {0} <= set(evaluation.supports[1, 0].tolist()) | {0}


def test_the_regulariser_is_chosen_without_the_test_set():
    honest = evaluator(shots=[10], values=L2)
    chosen = honest.evaluate({}).chosen
    # With any other test labels the choice is the same.
    other = evaluator(shots=[10], values=L2)
    other._test_labels = np.roll(other._test_labels, 1)
    assert other.evaluate({}).chosen == chosen
    # It is the one with most right left-out examples.
    report = honest.evaluate({})
    totals = {l2: 0 for l2 in L2}
    for trial in report.trials:
        totals[trial.value] += trial.left_out
    assert totals[chosen[10]] == max(totals.values())


def test_one_shot_tells_nothing_so_the_usual_regulariser_is_chosen():
    report = evaluator(shots=[1], values=L2).evaluate({})
    assert all(trial.left_out == 0 for trial in report.trials)
    assert report.chosen == {1: 1024.0}


def test_metrics_of_training_are_lean():
    found = dict(evaluator(shots=[1, 5]).run({}))
    assert list(found) == ["1shot/top1", "5shot/top1", "examples"]
    report = evaluator(shots=[1, 5]).evaluate({})
    assert found["5shot/top1"] == report.summary()[1]["top1_mean"]
    chosen = dict(evaluator(shots=[5], values=[1.0, 4.0]).run({}))
    assert list(chosen) == ["5shot/top1", "5shot/l2", "examples"]
    assert list(dict(evaluator(name="knn").run({}))) == ["knn/top1", "examples"]


def test_the_summary_is_the_mean_over_seeds_with_students_interval():
    assert mean_and_interval([0.5]) == (0.5, None)
    mean, half = mean_and_interval([0.40, 0.44, 0.42])
    assert mean == pytest.approx(0.42)
    # t(0.975, 2) = 4.3027, deviation 0.02
    assert half == pytest.approx(4.3027 * 0.02 / math.sqrt(3), rel=1e-4)
    assert mean_and_interval([0.4, 0.4, 0.4]) == (0.4, 0.0)


def test_conventions_differ_in_their_defaults():
    big_vision, scenic = make_protocol(), make_protocol(convention="scenic")
    assert (big_vision.seeds, big_vision.values) == (3, (1024.0,))
    assert big_vision.shots == scenic.shots == (1, 5, 10, 25)
    assert (scenic.seeds, scenic.values) == (1, L2)
    first = evaluator(shots=2, convention="scenic").supports[2, 0]
    expected = [np.flatnonzero(TRAIN[1] == c)[:2] for c in range(4)]
    assert first.tolist() == np.concatenate(expected).tolist()


def test_nearest_neighbours_and_probe_take_all_examples():
    for name in ("knn", "probe"):
        protocol = make_protocol(name)
        assert (protocol.shots, protocol.seeds) == (("all",), 1)
    assert make_protocol("knn").values == (20,)
    several = make_protocol("knn", shots=[1, 5])
    assert (several.metric(5), several.seeds) == ("knn/5shot", 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "rigde"}, "did you mean 'ridge'"),
        ({"convention": "bigvision"}, "did you mean 'big_vision'"),
        ({"shots": [5, 0]}, "shots are 0; give numbers of examples a class"),
        ({"shots": []}, "needs at least one number of shots and one l2"),
        ({"values": [0.0]}, "l2 is 0.0; give a number above 0, such as 1024"),
        ({"name": "knn", "values": 2.5}, "k is 2.5; give a whole number above 0"),
        ({"seeds": 0}, "seeds is 0; give the number of support sets"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        make_protocol(**settings)


def test_a_report_of_results_has_a_row_for_each_classifier():
    report = evaluator(shots=[5], seeds=2, values=[1.0, 2.0]).evaluate({})
    rows = report.results()
    assert [(r["seed"], r["l2"]) for r in rows] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert set(rows[0]) == {
        *("shots", "seed", "l2", "top1", "examples", "left_out_right"),
    }
    assert sum(row["chosen"] for row in report.summary()) == 1
    assert dataclasses.asdict(report)["examples"] == 37

# SPDX-License-Identifier: Apache-2.0
"""A run ends when a metric has stopped to improve, and its best checkpoint stays."""

import dataclasses
import pathlib
from typing import Any

import pytest

from tests.train.test_loop import closed_writers, make_run
from vit_jax.errors import UserError
from vit_jax.train.early_stopping import EarlyStopping
from vit_jax.train.loop import Evaluation, Schedule, train

__all__ = ["closed_writers"]


def lines(*values: float, metric: str = "val/top1") -> list[dict[str, Any]]:
    return [{"step": 10 * (i + 1), metric: value} for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("metric", "mode", "values", "best"),
    [
        ("val/top1", None, (0.1, 0.3, 0.2), (20, 1)),
        ("val/loss", None, (0.1, 0.3, 0.2), (10, 2)),
        ("val/rmse", None, (3.0, 2.0, 2.0), (20, 1)),
        ("val/top1", "min", (0.1, 0.3, 0.0), (30, 0)),
        ("val/top1", None, (), (None, 0)),
        # The same value again is no improvement.
        ("val/top1", None, (0.5, 0.5, 0.5), (10, 2)),
    ],
)
def test_the_best_evaluation_and_how_many_followed(
    metric: str, mode: str | None, values: tuple, best: tuple
):
    stopping = EarlyStopping(metric=metric, mode=mode)
    assert stopping.best(lines(*values, metric=metric)) == best


def test_small_improvements_do_not_count():
    stopping = EarlyStopping(metric="val/top1", min_delta=0.02)
    assert stopping.best(lines(0.50, 0.51, 0.53)) == (30, 0)
    assert stopping.best(lines(0.50, 0.51, 0.515)) == (10, 2)


def test_lines_of_other_evaluators_are_passed_over():
    history = [{"step": 1, "train/loss": 3.0}, {"step": 1, "test/top1": 0.9}]
    assert EarlyStopping(metric="val/top1").best(history) == (None, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "highest"}, "early_stopping.mode='highest' must be 'max', 'min'"),
        ({"patience": 0}, "early_stopping.patience=0 must be at least 1"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields: dict, message: str):
    with pytest.raises(UserError, match=message):
        EarlyStopping(metric="val/top1", **fields)


def test_a_metric_that_the_evaluator_does_not_write_is_named():
    with pytest.raises(UserError, match="metric in early_stopping 'val/top2'; did you"):
        EarlyStopping(metric="val/top2").best(lines(0.1))


SCHEDULE = Schedule(total=20, log=5, checkpoint=None, profile=None)


def run_with(workdir: pathlib.Path, values: dict[int, float], first: int = 0):
    run, saves, seen = make_run(workdir, SCHEDULE, first=first, test=None)

    def evaluate(state: Any):
        seen.append(("val", int(state.step)))
        yield "val/top1", values[int(state.step)]

    return (
        dataclasses.replace(
            run,
            evaluations=run.evaluations | {"val": Evaluation(evaluate, 2)},
            early_stopping=EarlyStopping(metric="val/top1", patience=2),
        ),
        saves,
        seen,
    )


VALUES = {2: 0.1, 4: 0.4, 6: 0.3, 8: 0.2, 10: 0.9}


def test_a_run_ends_when_the_patience_is_used_up(workdir: pathlib.Path):
    run, saves, seen = run_with(workdir, VALUES)
    state, stopped = train(run, lambda: False)
    assert (int(state.step), stopped) == (8, False)
    # Each best one was saved, and the last; the best is not pruned.
    assert saves.steps == (2, 4, 8)
    assert saves.best == 4
    # What runs at the end only runs at this end too.
    assert ("test", 8) in seen


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(workdir: pathlib.Path):
    run, _, _ = run_with(workdir, VALUES)
    stops = iter([False] * 4 + [True])
    state, stopped = train(run, lambda: next(stops))
    assert (int(state.step), stopped) == (5, True)
    again, saves, seen = run_with(workdir, VALUES, first=5)
    state, _ = train(again, lambda: False)
    assert int(state.step) == 8
    assert [s for name, s in seen if name == "val"] == [6, 8]
    assert saves.best == 4
    # And what has ended stays so.
    finished, _, seen = run_with(workdir, VALUES, first=8)
    state, _ = train(finished, lambda: False)
    assert int(state.step) == 8
    assert seen == []

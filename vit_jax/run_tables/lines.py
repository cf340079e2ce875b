# SPDX-License-Identifier: Apache-2.0
"""Runs of all seeds of one config as one line, and which published row it stands by."""

import collections
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.found_runs import FROM_SCRATCH, Pretraining, Run
from vit_jax.published_results import (
    VTAB,
    VTAB_TASKS,
    Published,
    find_benchmark,
    find_fewshot,
    vtab_name,
)


class Result(NamedTuple):
    """What runs of all seeds of one config measured on one split.

    Attributes:
      runs: Their directories.
      model: Name in the catalogue.
      init: The checkpoint that they started from.
      pretraining: What that was trained on, or of an evaluation of features what the
        run itself was; None if it is not known.
      epochs: For how long; None if it is not known. Of runs from scratch, their own.
      data: The benchmark, or data set and split.
      resolution: Side of the images.
      steps: Updates done.
      finished: Whether those are all.
      raw: Top-1 accuracy of each run, a fraction.
      ema: The same of averaged weights; empty without such.
      changes: Fields that make the model another one than the catalogue's.
      optimizer: Of the pre-training; None if it is not known.
    """

    runs: tuple[str, ...]
    model: str
    init: str | None
    pretraining: str | None
    epochs: float | None
    data: str
    resolution: int
    steps: int
    finished: bool
    raw: tuple[float, ...]
    ema: tuple[float, ...]
    changes: Mapping[str, Any] = {}
    optimizer: str | None = None

    def compared(self, published: Published) -> float | None:
        """Returns the accuracy that stands beside a row, None if it is another's.

        Weights that do not tell their optimizer are taken for Adam's, as the paper's.
        """
        epochs = (published.epochs, self.epochs)
        same = (
            self.finished
            and self.data in published.values
            and self.model == published.model
            and self._fixed(published, self.changes)
            == self._fixed(published, published.changes)
            and self.pretraining == published.pretraining
            and (self.optimizer or "adam") == published.optimizer
            and self.resolution == published.resolution(self.data)
            and (None in epochs or epochs[0] == epochs[1])
        )
        values = self.ema if self.data in published.averaged else self.raw
        return statistics.mean(values) if same and values else None

    @staticmethod
    def _fixed(published: Published, changes: Mapping[str, Any]) -> dict[str, Any]:
        return {k: value for k, value in changes.items() if k not in published.varies}


def collect(runs: Sequence[Run], pretraining: str | None = None) -> list[Result]:
    """Joins the seeds of each config, and the tasks of VTAB into their mean.

    Args:
      runs: The runs.
      pretraining: What checkpoints were trained on that do not tell it.
    """
    groups: dict[tuple[str, int], list[Run]] = {}
    seen: collections.Counter[tuple[str, Any]] = collections.Counter()
    for run in runs:
        config = {k: v for k, v in run.config.items() if k != "seed"}
        key = json.dumps([config, run.metrics.get("step"), run.resolution])
        # One seed run twice is no second seed, so it becomes a line of its own.
        seed = (key, run.config.get("seed"))
        groups.setdefault((key, seen[seed]), []).append(run)
        seen[seed] += 1
    results = [r for group in groups.values() for r in _of_group(group, pretraining)]
    return [*results, *_vtab_means(results)]


def _of_group(runs: Sequence[Run], pretraining: str | None) -> Iterator[Result]:
    first = runs[0]
    start = first.pretraining
    if start == FROM_SCRATCH:
        own = first.trained
        start = Pretraining(start.name, own.epochs, own.optimizer)
    for name, dataset, split in first.evaluations("classification"):
        benchmark = find_benchmark(first.train, (dataset, split))
        data = benchmark or f"{dataset} {split}"
        yield from _line(runs, name, data, start, pretraining)
    for name, dataset, split in first.evaluations("fewshot"):
        for shots in _shots(first, name):
            benchmark = find_fewshot(dataset, split, shots)
            data = benchmark or f"{dataset} {split}, {shots}-shot"
            metric = f"{name}/{shots}shot"
            yield from _line(runs, metric, data, first.trained, pretraining)


def _line(
    runs: Sequence[Run],
    metric: str,
    data: str,
    trained: Pretraining,
    pretraining: str | None,
) -> Iterator[Result]:
    """Yields the line of an evaluator, if the runs have its top-1 accuracy."""
    first = runs[0]
    raw = _values(runs, f"{metric}/top1")
    if not raw:
        return
    evaluator, _, rest = f"{metric}/top1".partition("/")
    yield Result(
        runs=tuple(run.path for run in runs),
        model=first.model,
        init=first.init,
        pretraining=trained.name or pretraining,
        epochs=trained.epochs,
        data=data,
        resolution=first.resolution,
        steps=first.metrics.get("step", 0),
        finished=first.finished,
        raw=raw,
        ema=_values(runs, f"{evaluator}_ema/{rest}"),
        changes=first.changes,
        optimizer=trained.optimizer,
    )


def _values(runs: Sequence[Run], metric: str) -> tuple[float, ...]:
    return tuple(run.metrics[metric] for run in runs if metric in run.metrics)


def _shots(run: Run, evaluator: str) -> list[int]:
    """Returns the numbers of examples a class that an evaluator has results of."""
    pattern = re.compile(rf"{re.escape(evaluator)}/(\d+)shot/top1")
    found = (pattern.fullmatch(metric) for metric in run.metrics)
    return sorted(int(match[1]) for match in found if match)


def _vtab_means(results: Sequence[Result]) -> Iterator[Result]:
    """Yields the mean over the 19 tasks of each checkpoint that has done them all."""
    names = {vtab_name(task) for task in VTAB_TASKS}
    studies: dict[Any, dict[str, Result]] = {}
    for r in results:
        if r.data in names and r.finished:
            key = (r.model, r.init, r.pretraining, r.epochs, r.resolution, r.steps)
            studies.setdefault(key, {})[r.data] = r
    for tasks in studies.values():
        if tasks.keys() == names:
            mean = statistics.mean(statistics.mean(r.raw) for r in tasks.values())
            paths = tuple(path for r in tasks.values() for path in r.runs)
            any_task = next(iter(tasks.values()))
            yield any_task._replace(runs=paths, data=VTAB, raw=(mean,), ema=())

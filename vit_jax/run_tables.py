# SPDX-License-Identifier: Apache-2.0
"""Runs as lines of a table, beside the numbers of the ViT paper that they stand for."""

import collections
import json
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vit_jax.found_runs import Run
from vit_jax.published_results import (
    PUBLISHED,
    VTAB,
    VTAB_TASKS,
    Published,
    find_benchmark,
    vtab_name,
)

_NONE = "-"


class Result(NamedTuple):
    """What runs of all seeds of one config measured on one split.

    Attributes:
      runs: Their directories.
      model: Name in the catalogue.
      init: The checkpoint that they started from.
      pretraining: What that was trained on; None if it is not known.
      epochs: For how long; None if it is not known.
      data: The benchmark, or data set and split.
      resolution: Side of the images.
      steps: Updates done.
      finished: Whether those are all.
      raw: Top-1 accuracy of each run, a fraction.
      ema: The same of averaged weights; empty without such.
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

    def compared(self, published: Published) -> float | None:
        """Returns the accuracy that stands beside a row, None if it is another's."""
        epochs = (published.epochs, self.epochs)
        same = (
            self.finished
            and self.data in published.values
            and self.model == published.model
            and self.pretraining == published.pretraining
            and self.resolution == published.resolution(self.data)
            and (None in epochs or epochs[0] == epochs[1])
        )
        values = self.ema if self.data in published.averaged else self.raw
        return statistics.mean(values) if same and values else None


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
    for name, dataset, split in first.evaluations():
        raw = _values(runs, f"{name}/top1")
        if not raw:
            continue
        benchmark = find_benchmark(first.train, (dataset, split))
        yield Result(
            runs=tuple(run.path for run in runs),
            model=first.model,
            init=first.init,
            pretraining=first.pretraining.name or pretraining,
            epochs=first.pretraining.epochs,
            data=benchmark or f"{dataset} {split}",
            resolution=first.resolution,
            steps=first.metrics.get("step", 0),
            finished=first.finished,
            raw=raw,
            ema=_values(runs, f"{name}_ema/top1"),
        )


def _values(runs: Sequence[Run], metric: str) -> tuple[float, ...]:
    return tuple(run.metrics[metric] for run in runs if metric in run.metrics)


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


def comparisons(
    results: Sequence[Result],
) -> Iterator[tuple[Result, Published | None, float | None]]:
    """Yields each result with each number of the paper that it stands beside.

    Yields:
      The result, the row of the paper and the accuracy to compare, a fraction; the
      latter two None for a result that stands beside none.
    """
    for result in results:
        found = [(row, result.compared(row)) for row in PUBLISHED]
        matches = [(row, value) for row, value in found if value is not None]
        for row, value in matches or [(None, None)]:
            yield result, row, value


def not_run(results: Sequence[Result]) -> list[tuple[Published, list[str]]]:
    """Returns the benchmarks of each row of the paper that no result stands beside."""
    left: dict[int, tuple[Published, list[str]]] = {}
    for number, row in enumerate(PUBLISHED):
        done = {r.data for r in results if r.compared(row) is not None}
        left[number] = (row, [name for name in row.values if name not in done])
    return [(row, names) for row, names in left.values() if names]


def to_json(results: Sequence[Result]) -> dict[str, Any]:
    """Returns results, comparisons and what is left to run; rates are fractions."""
    return {
        "runs": [
            {
                **result._asdict(),
                "top1": statistics.mean(result.raw),
                "top1_ema": statistics.mean(result.ema) if result.ema else None,
                **_paper(result, row, value),
            }
            for result, row, value in comparisons(results)
        ],
        "not_run": [
            {**_row(row), "data": name, "paper": _fraction(row.values[name])}
            for row, names in not_run(results)
            for name in names
        ],
    }


def _paper(
    result: Result, row: Published | None, value: float | None
) -> dict[str, Any]:
    if row is None or value is None:
        return {"table": None, "paper": None, "difference": None}
    paper = _fraction(row.values[result.data])
    return {"table": row.table, "paper": paper, "difference": round(value - paper, 6)}


def _row(row: Published) -> dict[str, Any]:
    fields = ("table", "model", "pretraining", "epochs")
    return {name: getattr(row, name) for name in fields}


def _fraction(percent: float) -> float:
    return round(percent / 100, 6)


def to_text(results: Sequence[Result]) -> str:
    """Returns the same in Markdown; rates are per cent."""
    lines = [
        "| run | model | from | pre-training | data | px | steps | seeds | top-1 "
        "| averaged | paper | difference |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result, row, value in comparisons(results):
        paper, difference = _NONE, _NONE
        if row is not None and value is not None:
            number = row.values[result.data]
            paper = f"{number:.2f} ({_title(row)})"
            difference = f"{100 * value - number:+.2f}"
        cells = [
            result.runs[0],
            result.model,
            result.init or _NONE,
            result.pretraining or "not known",
            result.data,
            str(result.resolution),
            f"{result.steps:,}" + ("" if result.finished else ", not finished"),
            str(len(result.raw)),
            _score(result.raw),
            _score(result.ema),
            paper,
            difference,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Not run:"]
    for row, names in not_run(results):
        numbers = ", ".join(f"{name} {row.values[name]:g}" for name in names)
        lines.append(f"- {_title(row)}, {row.model} from {row.pretraining}: {numbers}")
    return "\n".join(lines) + "\n"


def _title(row: Published) -> str:
    epochs = "" if row.epochs is None else f", {row.epochs} epochs"
    return f"Table {row.table}{epochs}"


def _score(values: Sequence[float]) -> str:
    if not values:
        return _NONE
    percent = [100 * value for value in values]
    text = f"{statistics.mean(percent):.2f}"
    return f"{text} ± {statistics.stdev(percent):.2f}" if len(percent) > 1 else text

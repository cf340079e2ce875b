# SPDX-License-Identifier: Apache-2.0
"""What the cells have reached, as their directories tell, and the Pareto front."""

import collections
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from vit_jax import cells, metrics
from vit_jax.scaling.costs import Cost
from vit_jax.scaling.grid import TRANSFER_METRIC, Cell, Study
from vit_jax.train.early_stopping import EarlyStopping

State = Literal["finished", "not finished", "missing"]
Key = TypeVar("Key", bound=Hashable)


class Result(NamedTuple):
    """A cell, what it costs and how far it came.

    Attributes:
      cell: The cell.
      cost: What it costs.
      state: "missing" where no metrics were written.
      step: Updates done.
      best_step: The update whose weights are taken: the best by early stopping, or the
        last one.
      values: Metrics of these weights, as fractions, by the name of the metric, and of
        finished fine-tunings by their label.
      missing: Directories of the runs that are not finished, of its fine-tunings too.
    """

    cell: Cell
    cost: Cost
    state: State
    step: int
    best_step: int
    values: Mapping[str, float]
    missing: tuple[str, ...]

    @property
    def spent(self) -> float:
        """ExaFLOPs of the updates done."""
        return self.cost.exaflops_of(self.step)


def read(
    cell: Cell, cost: Cost, study: Study, stopping: EarlyStopping | None, workdir: str
) -> Result:
    """Reads the directories of a cell.

    Args:
      cell: The cell.
      cost: What it costs.
      study: The study.
      stopping: Early stopping of the training.
      workdir: Of the study.
    """
    path = f"{workdir}/{cell.name}"
    lines = metrics.read_metrics(path)
    step = lines[-1]["step"] if lines else 0
    best = (stopping.best(lines)[0] if stopping else step) or 0
    values = {
        name: line[name]
        for line in lines
        for name in study.metrics
        if line["step"] == best and name in line
    }
    finished = cells.finished_step(path) is not None
    missing = [] if finished else [cell.name]
    for transfer in cell.transfers:
        name = cell.transfer_name(transfer)
        if cells.finished_step(f"{workdir}/{name}") is None:
            missing.append(name)
        else:
            last = cells.last_metrics(f"{workdir}/{name}")
            values[transfer] = last[TRANSFER_METRIC]
    state: State = "finished" if finished else "not finished" if lines else "missing"
    return Result(cell, cost, state, step, best, values, tuple(missing))


class Point(NamedTuple):
    """The seeds of one model on one data set.

    Attributes:
      model: Label of the model.
      data: Label of the data.
      cost: What each of its trainings costs.
      spent: Mean of the exaFLOPs that they spent.
      values: Of each finished seed, by metric or fine-tuning.
    """

    model: str
    data: str
    cost: Cost
    spent: float
    values: Mapping[str, tuple[float, ...]]

    def mean(self, name: str) -> float:
        """Returns the mean over the seeds."""
        return statistics.mean(self.values[name])


def points(results: Iterable[Result]) -> list[Point]:
    """Joins the seeds of the cells whose training is finished."""
    found = []
    done = [result for result in results if result.state == "finished"]
    for group in _groups(done, lambda r: (r.cell.model, r.cell.data)).values():
        values: dict[str, list[float]] = collections.defaultdict(list)
        for result in group:
            for name, value in result.values.items():
                values[name].append(value)
        found.append(
            Point(
                group[0].cell.model,
                group[0].cell.data,
                group[0].cost,
                statistics.mean(result.spent for result in group),
                {name: tuple(each) for name, each in values.items()},
            )
        )
    return found


def _groups(items: Iterable[Any], key: Callable[[Any], Key]) -> dict[Key, list[Any]]:
    found: dict[Key, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def with_all_data(found: Sequence[Point]) -> list[Point]:
    """Returns the points that were trained on the most examples."""
    most = max((point.cost.examples or 0 for point in found), default=0)
    return [point for point in found if (point.cost.examples or 0) == most]


def pareto_front(costs: Sequence[float], scores: Sequence[float]) -> list[int]:
    """Returns which points no other beats: none is as cheap and better, or as good.

    Args:
      costs: Less is better.
      scores: More is better.

    Returns:
      Their indices, from the cheapest on. Of equal points, the first.

    Example:
      >>> pareto_front([1, 2, 3, 4], [0.5, 0.7, 0.6, 0.9])
      [0, 1, 3]
    """
    front: list[int] = []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], -scores[i])):
        if not front or scores[i] > scores[front[-1]]:
            front.append(i)
    return front

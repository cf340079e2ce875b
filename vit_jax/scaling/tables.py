# SPDX-License-Identifier: Apache-2.0
"""The plan and the results as tables in Markdown, and the results as JSON."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vit_jax.plots.series import nice
from vit_jax.scaling.costs import UTILISATION, Cost
from vit_jax.scaling.grid import Cell, Study
from vit_jax.scaling.results import Point, Result, pareto_front, with_all_data

_UNITS = {"exa": 1.0, "peta": 1e-3, "tera": 1e-6}


def unit(exaflops: Iterable[float]) -> tuple[str, float]:
    """Returns the prefix that suits the largest of the numbers, and what it stands for.

    Example:
      >>> unit([0.0005, 0.004])
      ('peta', 0.001)
    """
    largest = max(exaflops, default=1.0)
    for prefix, size in _UNITS.items():
        if largest >= size:
            return prefix, size
    return "tera", 1e-6


def plan_table(costs: Mapping[Cell, Cost], left: Sequence[Cell]) -> str:
    """Returns what the cells cost, a line for all seeds of a model on a data set.

    Args:
      costs: Of each cell.
      left: The cells that are not finished.
    """
    prefix, size = unit(c.exaflops for c in costs.values() if c.exaflops)
    papers = any(cost.paper for cost in costs.values())
    days = any((cost.core_days or 1.0) > 1e-3 for cost in costs.values())
    head = ["model", "data", "seeds", "parameters", "images", "epochs"]
    head += [f"{prefix}FLOPs a run", *(["in the paper"] if papers else [])]
    rows = [[*head, *(["core-days a run"] if days else [])]]
    seeds: dict[tuple[str, str], list[Cell]] = {}
    for cell in costs:
        seeds.setdefault((cell.model, cell.data), []).append(cell)
    for (model, data), group in seeds.items():
        cost = costs[group[0]]
        images = None if cost.steps is None else cost.steps * cost.batch_size
        row = [model, data, str(len(group)), f"{cost.parameters:,}"]
        row += [_count(images), _number(cost.epochs)]
        row.append(_number(cost.exaflops and cost.exaflops / size))
        if papers:
            row.append("-" if cost.paper is None else nice(cost.paper))
        rows.append([*row, *([_number(cost.core_days)] if days else [])])
    lines = [
        markdown(rows),
        _total("in all", list(costs.values()), size, prefix),
        _total("of these left", [costs[cell] for cell in left], size, prefix),
        "Fine-tunings are not counted; early stopping may end a run before.",
    ]
    if days:
        share = f"{100 * UTILISATION:.0f} %"
        lines.append(f"A core-day is one of TPU v3 at {share} of its peak.")
    return "\n".join(lines) + "\n"


def _total(what: str, costs: Sequence[Cost], size: float, prefix: str) -> str:
    if any(cost.exaflops is None for cost in costs):
        return f"{what}: {len(costs)} runs, some of unknown length"
    flops = sum(cost.exaflops or 0.0 for cost in costs) / size
    days = sum(cost.core_days or 0.0 for cost in costs)
    shown = f", {nice(days)} core-days" if days > 1e-3 else ""
    return f"{what}: {len(costs)} runs, {nice(flops)} {prefix}FLOPs{shown}"


def result_table(study: Study, results: Sequence[Result], points: list[Point]) -> str:
    """Returns what the cells have reached, and which are missing.

    Args:
      study: The study.
      results: Of each cell.
      points: Their seeds joined.
    """
    prefix, size = unit(r.cost.exaflops for r in results if r.cost.exaflops)
    names = columns(study)
    head = ["cell", "state", "examples", "updates", "of", "best", f"{prefix}FLOPs"]
    rows = [[*head, *names.values()]]
    for result in results:
        cost, began = result.cost, result.state != "missing"
        numbers = (
            _count(cost.examples),
            f"{result.step:,}" if began else "-",
            _count(cost.steps),
            f"{result.best_step:,}" if began else "-",
            nice(result.spent / size) if began else "-",
        )
        values = [_percent(result.values.get(name)) for name in names]
        rows.append([result.cell.name, result.state, *numbers, *values])
    missing = [name for result in results for name in result.missing]
    total = sum(1 + len(result.cell.transfers) for result in results)
    lines = [markdown(rows), f"{total - len(missing)} of {total} runs are finished."]
    lines += [f"Missing: {', '.join(missing)}"] if missing else []
    lines.append(front_line(study, points, size, prefix))
    return "\n".join(filter(None, lines)) + "\n"


def columns(study: Study) -> dict[str, str]:
    """Returns the title of each metric and fine-tuning of a study, by its name."""
    titles = {name: name for name in study.metrics}
    return titles | {label: f"{label}, fine-tuned" for label in study.transfers}


def front_line(study: Study, points: Sequence[Point], size: float, prefix: str) -> str:
    """Returns the Pareto front of performance and compute; nothing without points."""
    found, front = front_of(points, study.metric)
    members = [
        f"{p.model} on {p.data} ({nice(p.spent / size)} {prefix}FLOPs, "
        f"{_percent(p.mean(study.metric))} %)"
        for p in (found[i] for i in front)
    ]
    title = columns(study)[study.metric]
    return f"Pareto front of {title}: {', '.join(members)}" if members else ""


def front_of(points: Sequence[Point], name: str) -> tuple[list[Point], list[int]]:
    """Returns the points that are compared by a metric, and which of them lead."""
    found = [p for p in with_all_data(points) if name in p.values]
    front = pareto_front([p.spent for p in found], [p.mean(name) for p in found])
    return found, front


def to_json(
    study: Study, results: Sequence[Result], points: Sequence[Point]
) -> dict[str, Any]:
    """Returns all about the cells; rates are fractions of 1, operations 1e18."""
    found, front = front_of(points, study.metric)
    leaders = [found[i] for i in front]
    return {
        "cells": [
            {
                "name": r.cell.name,
                "model": r.cost.model,
                "model_label": r.cell.model,
                "data_label": r.cell.data,
                "seed": r.cell.seed,
                "config": r.cell.spec,
                "state": r.state,
                "parameters": r.cost.parameters,
                "dataset": r.cost.dataset,
                "examples": r.cost.examples,
                "total_steps": r.cost.steps,
                "exaflops": r.cost.exaflops,
                "core_days": r.cost.core_days,
                "paper_exaflops": r.cost.paper,
                "step": r.step,
                "best_step": r.best_step,
                "exaflops_spent": r.spent,
                "values": dict(r.values),
            }
            for r in results
        ],
        "missing": [name for r in results for name in r.missing],
        "metric": study.metric,
        "pareto_front": [{"model": p.model, "data": p.data} for p in leaders],
    }


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table whose columns are aligned; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(t.ljust(w) for t, w in zip(r, widths, strict=True)) + " |"
        for r in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def _number(value: float | None) -> str:
    return "?" if value is None else nice(value)


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"

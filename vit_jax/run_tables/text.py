# SPDX-License-Identifier: Apache-2.0
"""Lines beside published numbers, as Markdown and as JSON."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from vit_jax.published_results import PUBLISHED, Published
from vit_jax.run_tables.ablations import ABLATIONS, Ablation
from vit_jax.run_tables.lines import Result

_NONE = "-"
_ROWS = (*PUBLISHED, *(ablation.row for ablation in ABLATIONS))


def comparisons(
    results: Sequence[Result],
) -> Iterator[tuple[Result, Published | None, float | None]]:
    """Yields each result with each number of a paper that it stands beside.

    Yields:
      The result, the row of the paper and the accuracy to compare, a fraction; the
      latter two None for a result that stands beside none.
    """
    for result in results:
        found = [(row, result.compared(row)) for row in _ROWS]
        matches = [(row, value) for row, value in found if value is not None]
        for row, value in matches or [(None, None)]:
            yield result, row, value


def not_run(results: Sequence[Result]) -> list[tuple[Published, list[str]]]:
    """Returns the benchmarks of each row of the paper that no result stands beside.

    The ablations are not among them: `ablations` lists all of these.
    """
    left: dict[int, tuple[Published, list[str]]] = {}
    for number, row in enumerate(PUBLISHED):
        done = {r.data for r in results if r.compared(row) is not None}
        left[number] = (row, [name for name in row.values if name not in done])
    return [(row, names) for row, names in left.values() if names]


def ablations(
    results: Sequence[Result],
) -> Iterator[tuple[Ablation, str, list[float]]]:
    """Yields every number of the ablations.

    Yields:
      The ablation, the benchmark, and the accuracies that stand beside it, fractions.
    """
    for ablation in ABLATIONS:
        for name in ablation.row.values:
            own = [r.compared(ablation.row) for r in results if r.data == name]
            yield ablation, name, [value for value in own if value is not None]


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
        "ablations": [
            {
                "what": ablation.what,
                **_row(ablation.row),
                "data": name,
                "ours": values,
                "paper": _fraction(ablation.row.values[name]),
            }
            for ablation, name, values in ablations(results)
        ],
    }


def _paper(
    result: Result, row: Published | None, value: float | None
) -> dict[str, Any]:
    if row is None or value is None:
        return {"table": None, "paper": None, "difference": None}
    paper = _fraction(row.values[result.data])
    difference = None if paper is None else round(value - paper, 6)
    return {"table": row.table, "paper": paper, "difference": difference}


def _row(row: Published) -> dict[str, Any]:
    fields = ("table", "model", "pretraining", "epochs")
    return {name: getattr(row, name) for name in fields}


def _fraction(percent: float) -> float | None:
    return None if math.isnan(percent) else round(percent / 100, 6)


def to_text(results: Sequence[Result]) -> str:
    """Returns the same in Markdown; rates are per cent."""
    lines = _table(
        *("run", "model", "from", "pre-training", "data", "px", "steps", "seeds"),
        *("top-1", "averaged", "paper", "difference"),
    )
    for result, row, value in comparisons(results):
        paper, difference = _NONE, _NONE
        if row is not None and value is not None:
            paper, difference = _beside(row.values[result.data], value)
            paper = f"{paper} ({row.title})"
        cells = [
            result.runs[0],
            result.model + _changed(result),
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
        lines.append(f"- {row.title}, {row.model} from {row.pretraining}: {numbers}")
    lines += ["", "Ablations:", ""]
    lines += _table("where", "model", "what", "data", "ours", "paper", "difference")
    for ablation, name, values in ablations(results):
        row = ablation.row
        paper, difference = _beside(row.values[name], max(values, default=None))
        ours = _score([max(values)]) if values else "not yet run"
        if len(values) > 1:
            ours += f" (best of {len(values)})"
        cells = [row.title, row.model, ablation.what, name, ours, paper, difference]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _table(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def _changed(result: Result) -> str:
    fields = ", ".join(f"{key}={value}" for key, value in result.changes.items())
    return f" ({fields})" if fields else ""


def _beside(paper: float, ours: float | None) -> tuple[str, str]:
    """Returns a number of a paper in per cent, and how a fraction differs from it."""
    if math.isnan(paper):
        return "figure only", _NONE
    return f"{paper:.2f}", _NONE if ours is None else f"{100 * ours - paper:+.2f}"


def _score(values: Sequence[float]) -> str:
    if not values:
        return _NONE
    percent = [100 * value for value in values]
    text = f"{statistics.mean(percent):.2f}"
    return f"{text} ± {statistics.stdev(percent):.2f}" if len(percent) > 1 else text

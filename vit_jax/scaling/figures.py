# SPDX-License-Identifier: Apache-2.0
"""The panels of the study's figure, after Figures 3, 4 and 5 of arXiv:2010.11929."""

from collections.abc import Sequence

from vit_jax.evaluators.fewshot import mean_and_interval
from vit_jax.plots.series import Panel, Series
from vit_jax.scaling import tables
from vit_jax.scaling.costs import FAMILIES
from vit_jax.scaling.grid import Study
from vit_jax.scaling.results import Point

_NAMES = {"vit": "ViT", "bit": "ResNet (BiT)", "hybrid": "hybrid"}


def make_panels(study: Study, points: Sequence[Point]) -> list[Panel]:
    """Returns the panels that the finished cells have points for.

    Args:
      study: The study.
      points: Finished cells, their seeds joined.
    """
    found = [
        _by_data(points, study.metric) if study.metric in study.transfers else None,
        _by_examples(points, study.few_shot) if study.few_shot else None,
        _by_compute(points, study),
    ]
    return [panel for panel in found if panel is not None]


def _by_data(points: Sequence[Point], transfer: str) -> Panel | None:
    """Figure 3: accuracy after fine-tuning, by the data of the pre-training."""
    found = [p for p in points if transfer in p.values]
    sizes = {point.data: point.cost.examples or 0 for point in found}
    data = sorted(sizes, key=lambda label: sizes[label])
    if len(data) < 2:
        return None
    lines: dict[str, list[Point]] = {}
    for point in found:
        lines.setdefault(point.model, []).append(point)
    places = {label: place for place, label in enumerate(data)}
    series = [
        _line(model, [(places[p.data], p) for p in line], transfer, points)
        for model, line in lines.items()
    ]
    return Panel(
        "data of the pre-training",
        f"{transfer} top-1, fine-tuned (%)",
        tuple(series),
        x_names=tuple(data),
    )


def _by_examples(points: Sequence[Point], metric: str) -> Panel | None:
    """Figure 4: few-shot accuracy, by the number of examples of the pre-training."""
    lines: dict[tuple[str, str], dict[int, Point]] = {}
    for point in points:
        if metric in point.values and point.cost.examples:
            line = lines.setdefault((point.model, point.cost.dataset), {})
            before = line.get(point.cost.examples)
            # Of several lengths of training, the longest.
            if before is None or before.spent < point.spent:
                line[point.cost.examples] = point
    series = [
        _line(model, list(line.items()), metric, points)
        for (model, _), line in lines.items()
        if len(line) > 1
    ]
    if not series:
        return None
    shots = metric.split("/")[1].replace("shot", "-shot")
    return Panel(
        "pre-training examples", f"{shots} top-1 (%)", tuple(series), log_x=True
    )


def _by_compute(points: Sequence[Point], study: Study) -> Panel | None:
    """Figure 5: performance by compute, of the trainings on all the data."""
    name = study.metric
    found, front = tables.front_of(points, name)
    if len(found) < 2:
        return None
    prefix, size = tables.unit(point.spent for point in found)
    series, families = [], _families(points)
    for family in families:
        dots = [p for p in found if p.cost.family == family]
        if not dots:
            continue
        series.append(
            Series(
                _NAMES.get(family, family),
                tuple(p.spent / size for p in dots),
                tuple(100 * p.mean(name) for p in dots),
                colour=families.index(family),
                joined=False,
            )
        )
    leaders = [found[i] for i in front]
    line = Series(
        "Pareto front",
        tuple(p.spent / size for p in leaders),
        tuple(100 * p.mean(name) for p in leaders),
        colour=-1,
    )
    tuned = name in study.transfers
    what = f"{name} top-1, fine-tuned (%)" if tuned else f"{name} (%)"
    return Panel(
        f"compute of the pre-training ({prefix}FLOPs)",
        what,
        (line, *series),
        log_x=True,
    )


def _line(
    label: str,
    places: Sequence[tuple[float, Point]],
    name: str,
    points: Sequence[Point],
) -> Series:
    places = sorted(places, key=lambda each: each[0])
    rates = [mean_and_interval(point.values[name]) for _, point in places]
    spread = None
    if all(interval is not None for _, interval in rates):
        spread = tuple(100 * (interval or 0.0) for _, interval in rates)
    return Series(
        label,
        tuple(float(place) for place, _ in places),
        tuple(100 * mean for mean, _ in rates),
        spread,
        colour=_families(points).index(places[0][1].cost.family),
    )


def _families(points: Sequence[Point]) -> list[str]:
    """Returns all families in the order of their colours, the same in all panels."""
    return list(dict.fromkeys([*FAMILIES, *(p.cost.family for p in points)]))

# SPDX-License-Identifier: Apache-2.0
"""Series of numbers from the files of runs, evaluations and benchmarks."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from vit_jax import metrics as metrics_lib
from vit_jax.errors import UserError, unknown


class Series(NamedTuple):
    """One line of a figure.

    Attributes:
      label: Its name in the legend.
      x: Places on the horizontal axis.
      y: The values.
      spread: Half of the 95 % interval of each value; None where it is not known.
      colour: Number of its colour, which other series may share; -1 is that of the
        text; None is its place among the series.
      joined: Whether a line joins the values.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] | None = None
    colour: int | None = None
    joined: bool = True


class Panel(NamedTuple):
    """Series that share their axes.

    Attributes:
      x_label: What the horizontal axis shows, with its unit.
      y_label: The same of the vertical axis.
      series: The lines.
      log_x: Whether the horizontal axis is logarithmic.
      x_names: Names of the places 0, 1, ... where the horizontal axis has no numbers.
    """

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    x_names: tuple[str, ...] = ()


# The axis of a metric by the last part of its name, and the factor to its unit.
_AXES = {
    "loss": ("loss", 1.0),
    "top1": ("top-1 accuracy (%)", 100.0),
    "top5": ("top-5 accuracy (%)", 100.0),
    "map": ("mean average precision (%)", 100.0),
    "lr": ("learning rate", 1.0),
    "grad_norm": ("norm of the gradient", 1.0),
    "epoch": ("epochs", 1.0),
    "images_per_second": ("images/s", 1.0),
    "images_per_second_per_device": ("images/s of a device", 1.0),
}
_USUAL = ("loss", "top1", "map", "rmse")


def learning_curves(
    runs: Sequence[str], metrics: Sequence[str] | None = None
) -> list[Panel]:
    """Returns the metrics of runs over their steps, a panel for each kind of metric.

    Args:
      runs: Directories of runs.
      metrics: Full names such as `train/loss`, or last parts such as `top1`; None takes
        losses and the accuracies of the evaluators.

    Raises:
      UserError: No metrics, or none of a name.
    """
    panels: dict[str, list[Series]] = {}
    known: set[str] = set()
    for label, lines in _runs(runs).items():
        names = dict.fromkeys(k for line in lines for k in line if "/" in k)
        known |= names.keys()
        for name in names:
            kind = name.rsplit("/", 1)[-1]
            if not ({name, kind} & set(metrics or _USUAL)):
                continue
            axis, factor = _AXES.get(kind, (kind, 1.0))
            points = [(line["step"], line[name]) for line in lines if name in line]
            x, y = zip(*points, strict=True)
            text = name.removesuffix(f"/{kind}")
            text = text if len(runs) == 1 else f"{label}: {text}"
            series = Series(text, x, tuple(factor * value for value in y))
            panels.setdefault(axis, []).append(series)
    for wanted in metrics or ():
        if not any(wanted in (name, name.rsplit("/", 1)[-1]) for name in known):
            raise unknown("metric", wanted, known)
    return [Panel("step", axis, tuple(found)) for axis, found in panels.items()]


def metric_names(run: str) -> set[str]:
    """Returns the last parts of the names of all metrics that a run has written."""
    lines = metrics_lib.read_metrics(run)
    return {name.rsplit("/", 1)[-1] for line in lines for name in line if "/" in name}


def throughput(paths: Sequence[str]) -> Panel:
    """Returns images per second.

    Args:
      paths: Directories of runs, whose speed is drawn over their steps; or files with
        lines of `vit_jax.benchmark step`, drawn over the size of the images or, where
        that is always the same, over the size of the batch, a line a model.

    Raises:
      UserError: No speed in them, or both kinds.
    """
    folders = [path for path in paths if epath.Path(path).is_dir()]
    if len(folders) == len(paths):
        (panel,) = learning_curves(paths, ["train/images_per_second"])
        named = [
            series._replace(label=label)
            for series, label in zip(panel.series, _labels(paths), strict=True)
        ]
        return panel._replace(series=tuple(named))
    if folders:
        raise UserError(
            "name directories of runs, or files of benchmark lines, not both: "
            f"{folders[0]} is a directory"
        )
    lines = [line for path in paths for line in _benchmark_lines(path)]
    axis, text = "resolution", "side of the images (pixels)"
    if len({line.get(axis) for line in lines}) == 1:
        axis, text = "batch_size", "images a step"
    models: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        name = f"{line.get('model', 'input')} {line.get('dtype', '')}".strip()
        models.setdefault(name, []).append((line[axis], line["images_per_second"]))
    series = []
    for name, points in models.items():
        x, y = zip(*sorted(points), strict=True)
        series.append(Series(name, x, y))
    return Panel(text, "images/s", tuple(series))


def _benchmark_lines(path: str) -> list[dict[str, Any]]:
    lines = [line for line in _read(path, _json_lines) if "images_per_second" in line]
    if not lines:
        raise UserError(
            f"{path} has no line with images_per_second; write it with python -m "
            "vit_jax.benchmark step"
        )
    return lines


def few_shot(files: Sequence[str]) -> Panel:
    """Returns the accuracy by the number of examples a class, with its interval.

    Args:
      files: Outputs of `vit_jax.fewshot`.

    Raises:
      UserError: A file that is none of these, or has only one number of shots, "all".
    """
    series = []
    for label, path in zip(_labels(files), files, strict=True):
        content = _read(path, json.loads)
        try:
            rows = [
                row
                for row in content["summary"]
                if row["shots"] != "all" and row.get("chosen", True)
            ]
            points = [
                (row["shots"], 100 * row["top1_mean"], 100 * (row["top1_ci95"] or 0))
                for row in rows
            ]
        except (KeyError, TypeError) as err:
            raise UserError(
                f"{path} is no output of vit_jax.fewshot ({err!r}); write it with "
                "python -m vit_jax.fewshot --output"
            ) from err
        if not points:
            raise UserError(
                f"{path} has no number of shots to draw over; evaluate with --shots"
            )
        x, y, spread = zip(*sorted(points), strict=True)
        series.append(Series(label, x, y, spread))
    return Panel("examples of each class", "top-1 accuracy (%)", tuple(series), True)


def seconds_of_updates(lines: Iterable[Mapping[str, Any]], batch_size: int) -> float:
    """Returns the time that a run spent in updates, from its logged speeds.

    Each logged speed is that since the line before; time between two starts of a run
    does not count.

    Args:
      lines: Of `metrics.jsonl`.
      batch_size: Images a step.
    """
    total, last = 0.0, 0
    for line in lines:
        speed = line.get("train/images_per_second")
        if speed:
            total += (line["step"] - last) * batch_size / speed
            last = line["step"]
    return total


def _runs(paths: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for label, path in zip(_labels(paths), paths, strict=True):
        found[label] = metrics_lib.read_metrics(path)
        if not found[label]:
            raise UserError(
                f"{path} has no metrics.jsonl with anything in it; name the workdir of "
                "a run"
            )
    return found


def _labels(paths: Sequence[str]) -> list[str]:
    """Returns the last parts of the paths, as many as tell them apart."""
    parts = [epath.Path(path).parts for path in paths]
    for count in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(part[-count:]) for part in parts]
        if len(set(labels)) == len(set(paths)):
            return labels
    return list(paths)


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _read(path: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(epath.Path(path).read_text())
    except (OSError, ValueError) as err:
        raise UserError(f"cannot read {path}: {err}; name another file") from err


def nice(value: float) -> str:
    """Returns a number with three digits and thousands apart.

    Example:
      >>> nice(14529.3), nice(0.123456)
      ('14,529', '0.123')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{digits}f}"


def short(value: float) -> str:
    """Returns a number with as few signs as it takes.

    Example:
      >>> short(9_000_000), short(2500), short(25), short(0.5)
      ('9M', '2.5k', '25', '0.5')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"

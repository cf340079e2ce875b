# SPDX-License-Identifier: Apache-2.0
"""The section `study` of a config, and the cells that it stands for."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax import cells, config as config_lib
from vit_jax.errors import UserError, unknown

TRANSFER_METRIC = "val/top1"
"""What fine-tunings are compared by."""


class Cell(NamedTuple):
    """One training of the grid, and its fine-tunings.

    Attributes:
      model: Label of the model.
      data: Label of the data.
      seed: Seed of the training.
      spec: The value of --config.
      transfers: Labels of the fine-tunings that follow.
    """

    model: str
    data: str
    seed: int
    spec: str
    transfers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its directory below that of the study."""
        return f"{folder(self.model)}/{folder(self.data)}/seed_{self.seed}"

    def transfer_name(self, transfer: str) -> str:
        """The directory of one of its fine-tunings."""
        return f"{self.name}-{folder(transfer)}"


def folder(label: str) -> str:
    """Returns a label as the name of a folder.

    Example:
      >>> folder("ViT-L/16, 14 epochs")
      'ViT-L_16_14_epochs'
    """
    return re.sub(r"[^\w+.-]+", "_", label)


def make_study(spec: str, fields: Mapping[str, Any]) -> "Study":
    """Reads the section `study` of a config.

    Args:
      spec: The config, `FILE` or `FILE:ARGS`.
      fields: The config as plain dictionaries.

    Raises:
      UserError: The section is missing, or something in it is wrong.
    """
    section = fields.get("study")
    if not section:
        raise UserError(
            f"{spec} has no section config.study; a study needs its models and data, "
            "as configs/scaling_study_small.py has them"
        )
    study = config_lib.section_call(Study, section, "study", spec=spec)
    evaluators = fields.get("evaluators") or {}
    for metric in study.metrics:
        if metric.partition("/")[0].removesuffix("_ema") not in evaluators:
            known = ", ".join([*evaluators, *study.transfers]) or "none"
            raise UserError(
                f"config.study names the metric {metric!r}, which is of no evaluator "
                f"of {spec} and no fine-tuning; there are {known}"
            )
    for label, transfer in study.transfers.items():
        given = config_lib.load(transfer).to_dict()
        name = TRANSFER_METRIC.partition("/")[0]
        if name not in (given.get("evaluators") or {}):
            raise UserError(
                f"the fine-tuning {label!r} of config.study, {transfer}, has no "
                f"evaluator {name!r}, whose {TRANSFER_METRIC} the table shows"
            )
    return study


class Study:
    """A grid of trainings.

    Attributes:
      models: Label of each model -> ARGS that the config file makes of it.
      data: The same of what they are trained on.
      transfers: Label of each fine-tuning -> its config.
      metric: What models are compared by: a metric of an evaluator, or the label of a
        fine-tuning.
      few_shot: The metric that is drawn over the number of examples.
      cells: The trainings, each once.
    """

    def __init__(  # noqa: PLR0913 - the arguments are a section of the config
        self,
        *,
        spec: str,
        models: Mapping[str, Any],
        data: Mapping[str, Any],
        metric: str,
        few_shot: str | None = None,
        seeds: Sequence[Any] = (0,),
        transfers: Mapping[str, Any] | None = None,
        grids: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    ) -> None:
        """Checks the section.

        Args:
          spec: The config, `FILE` or `FILE:ARGS`.
          models: Label of each model -> the ARGS that the config file makes it of.
          data: Label of each pre-training set -> the ARGS for it; the same model on
            the same data is the same run, whatever figure needs it.
          metric: What models are compared by, such as "test/top1", or the label of a
            fine-tuning.
          few_shot: Such as "fewshot/5shot/top1".
          seeds: Each cell is run once a seed.
          transfers: Label of each fine-tuning -> `FILE` or `FILE:ARGS` of its config.
          grids: Name -> `models`, `data` and `transfers` that are crossed; what is
            left out is all of them. None crosses everything.

        Raises:
          UserError: Nothing to run, labels that a grid takes from nowhere, or two that
            are the same folder.
        """
        self.models, self.data = dict(models), dict(data)
        self.transfers = dict(transfers or {})
        self.metric, self.few_shot = metric, few_shot
        _check_labels("models", self.models)
        _check_labels("data", self.data)
        _check_labels("transfers", self.transfers)
        if not (self.models and self.data and seeds):
            raise UserError(
                "config.study needs at least one of models, one of data and one of "
                "seeds"
            )
        if not all(type(seed) is int for seed in seeds):
            raise UserError(
                f"config.study.seeds={tuple(seeds)} must be whole numbers, such as "
                "(0, 1, 2)"
            )
        self.cells = self._cells(spec, seeds, grids or {"all": {}})

    @property
    def metrics(self) -> list[str]:
        """Metrics of evaluators that are asked for."""
        asked = (self.metric, self.few_shot)
        return [name for name in asked if name and name not in self.transfers]

    def _cells(
        self,
        spec: str,
        seeds: Sequence[int],
        grids: Mapping[str, Mapping[str, Sequence[str]]],
    ) -> tuple[Cell, ...]:
        wanted: dict[tuple[str, str], dict[str, None]] = {}
        for name, grid in grids.items():
            for model, data, transfers in self._crossed(name, grid):
                wanted.setdefault((model, data), {}).update(dict.fromkeys(transfers))
        file, _, own = spec.partition(":")
        found = []
        for model, data in wanted:
            args = ",".join(filter(None, [own, self.models[model], self.data[data]]))
            whole = f"{file}:{args}" if args else file
            transfers = tuple(t for t in self.transfers if t in wanted[model, data])
            found += [Cell(model, data, seed, whole, transfers) for seed in seeds]
        return tuple(dict.fromkeys(found))

    def _crossed(
        self, name: str, grid: Mapping[str, Sequence[str]]
    ) -> Iterator[tuple[str, str, Sequence[str]]]:
        known = {
            "models": self.models,
            "data": self.data,
            "transfers": self.transfers,
        }
        for key, labels in grid.items():
            if key not in known:
                raise unknown(f"field of config.study.grids[{name!r}]:", key, known)
            for label in labels:
                if label not in known[key]:
                    raise unknown(
                        f"label in {key} of config.study.grids[{name!r}]:",
                        label,
                        known[key],
                    )
        for model in grid.get("models", self.models):
            for data in grid.get("data", self.data):
                yield model, data, tuple(grid.get("transfers", self.transfers))


def _check_labels(key: str, labels: Mapping[str, Any]) -> None:
    folders: dict[str, str] = {}
    for label, text in labels.items():
        if not isinstance(text, str):
            raise UserError(
                f"config.study.{key}[{label!r}] is {text!r}; give it as text, such as "
                "'model=ViT-B/32'"
            )
        other = folders.setdefault(folder(label), label)
        if other != label:
            raise UserError(
                f"config.study.{key} has {other!r} and {label!r}, whose runs would "
                "share a folder; give one another name"
            )


def train_command(cell: Cell, workdir: str, arguments: Sequence[str]) -> list[str]:
    """Returns the command of a training.

    Args:
      cell: The cell.
      workdir: Of the study.
      arguments: Arguments that all cells share.
    """
    shared = [f"--config={cell.spec}", *arguments]
    place = f"{workdir}/{cell.name}"
    return cells.make_command("main", shared, place, {"seed": cell.seed})


def transfer_command(
    cell: Cell, transfer: str, study: Study, workdir: str, best: bool
) -> list[str]:
    """Returns the command of a fine-tuning of a cell.

    Args:
      cell: The cell.
      transfer: Label of the fine-tuning.
      study: The study.
      workdir: Of the study.
      best: Whether it starts from the best checkpoint, not the last.
    """
    start = f"{workdir}/{cell.name}{'@best' if best else ''}"
    return cells.make_command(
        "main",
        [f"--config={study.transfers[transfer]}"],
        f"{workdir}/{cell.transfer_name(transfer)}",
        {"init.checkpoint": start, "seed": cell.seed},
    )

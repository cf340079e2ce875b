# SPDX-License-Identifier: Apache-2.0
"""A study in its directory: what there is to run, and what is kept there."""

import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import logging
from etils import epath

from vit_jax import cells, metrics
from vit_jax.config import section_call
from vit_jax.errors import UserError
from vit_jax.plots import line_figures, style
from vit_jax.scaling import costs, figures, results, tables
from vit_jax.scaling.costs import Cost
from vit_jax.scaling.grid import (
    Cell,
    Study,
    make_study,
    train_command,
    transfer_command,
)
from vit_jax.scaling.results import Point, Result
from vit_jax.train.early_stopping import EarlyStopping

Commands = dict[str, list[str]]


class Training(NamedTuple):
    """A cell as its config describes it.

    Attributes:
      cost: What it costs.
      stopping: When it ends early, and which checkpoint is the best.
    """

    cost: Cost
    stopping: EarlyStopping | None


@dataclasses.dataclass(frozen=True)
class Job:
    """A study in its directory.

    Attributes:
      spec: The config of the study.
      workdir: Its directory.
      arguments: What all trainings get beside their config.
      study: The grid.
      trainings: Each cell.
    """

    spec: str
    workdir: str
    arguments: tuple[str, ...]
    study: Study
    trainings: Mapping[Cell, Training]

    def results(self) -> list[Result]:
        """Reads the directories of all cells."""
        return [
            results.read(cell, each.cost, self.study, each.stopping, self.workdir)
            for cell, each in self.trainings.items()
        ]

    def plan(self) -> str:
        """Returns the costs of all cells, and of those that are left."""
        planned = {cell: each.cost for cell, each in self.trainings.items()}
        left = [r.cell for r in self.results() if r.state != "finished"]
        return tables.plan_table(planned, left)

    def commands(self, chosen: Sequence[Cell]) -> tuple[Commands, Commands]:
        """Returns the commands of the trainings and of the fine-tunings, by directory.

        Args:
          chosen: Some of the cells.

        Returns:
          Those that are not finished.
        """
        first, second = Commands(), Commands()
        missing = {name for result in self.results() for name in result.missing}
        for cell in chosen:
            first[cell.name] = train_command(cell, self.workdir, self.arguments)
            for transfer in cell.transfers:
                second[cell.transfer_name(transfer)] = transfer_command(
                    cell,
                    transfer,
                    self.study,
                    self.workdir,
                    best=self.trainings[cell].stopping is not None,
                )
        return (
            {name: each for name, each in first.items() if name in missing},
            {name: each for name, each in second.items() if name in missing},
        )

    def save(self) -> tuple[str, list[Point]]:
        """Writes `study.md` and `study.json`; returns the text and what is joined."""
        found = self.results()
        points = results.points(found)
        table = tables.result_table(self.study, found, points)
        changes = _changes(self.arguments)
        text = f"{' '.join([self.spec, *changes])}\n\n{table}"
        content = {"config": self.spec, "arguments": changes}
        content |= tables.to_json(self.study, found, points)
        folder = epath.Path(self.workdir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            metrics.write_json(str(folder / "study.json"), content)
            (folder / "study.md").write_text(text)
        except OSError as err:
            raise UserError(
                f"cannot use the workdir {self.workdir}: {err}; name a folder that can "
                "be written with --workdir"
            ) from err
        return text, points

    def draw(self, points: Sequence[Point], path: str) -> bool:
        """Draws the figure; returns whether there was enough to draw."""
        panels = figures.make_panels(self.study, points)
        if panels:
            style.save(line_figures.draw_panels(panels), path)
        return bool(panels)

    def run(self, chosen: Sequence[Cell], jobs: int) -> list[str] | None:
        """Runs what is left of some cells; the others go on when one fails.

        Args:
          chosen: The cells.
          jobs: Runs at a time.

        Returns:
          What to tell about each run that failed; None if a signal stopped them.
        """
        failed: dict[str, str] = {}
        first, second = self.commands(chosen)
        left = len(first) + len(second)

        def ended(name: str, status: int) -> None:
            nonlocal left
            self.save()
            if status == 0:
                left -= 1
                logging.info("finished %s; %d left", name, left)
            elif status != cells.INTERRUPTED:
                failed[name] = self._why(name, status)
                logging.error("failed: %s", failed[name])

        def run(commands: Commands) -> bool:
            statuses = cells.run_processes(commands, jobs, ended, logs=True)
            return statuses.keys() == commands.keys() and (
                cells.INTERRUPTED not in statuses.values()
            )

        if not run(first):
            return None
        for cell in chosen:
            if cell.name in failed:  # nothing starts from it
                for transfer in cell.transfers:
                    second.pop(cell.transfer_name(transfer), None)
        return list(failed.values()) if run(second) else None

    def _why(self, name: str, status: int) -> str:
        log = cells.log_of(f"{self.workdir}/{name}")
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{name} (exit status {status}: {last[:300]}; its log is {log})"


def open_job(
    spec: str,
    workdir: str,
    arguments: Sequence[str],
    load: Callable[[str], Any],
    *,
    data_is_here: bool,
) -> Job:
    """Reads the configs of all cells of a study, before anything runs.

    Args:
      spec: The config of the study.
      workdir: Its directory: absolute path or URL.
      arguments: What all trainings get beside their config.
      load: Loads a config and applies the command line.
      data_is_here: See `costs.estimate`.

    Raises:
      UserError: Whatever is wrong with a config, or the directory holds a study with
        other arguments.
    """
    study = make_study(spec, load(spec).to_dict())
    configs = {each: load(each).to_dict() for each in {c.spec: 0 for c in study.cells}}
    trainings = {}
    for cell in study.cells:
        fields = configs[cell.spec]
        stopping = fields.get("early_stopping") or {}
        trainings[cell] = Training(
            costs.estimate(fields, data_is_here=data_is_here),
            section_call(EarlyStopping, stopping, "early_stopping")
            if stopping.get("metric")
            else None,
        )
    _check_same_study(workdir, spec, arguments)
    # Sections of a config forget in which order they were written.
    trainings = dict(sorted(trainings.items(), key=lambda each: each[1].cost.order()))
    return Job(spec, workdir, tuple(arguments), study, trainings)


def _changes(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments that change what a cell is."""
    kept = [a for a in arguments if a.lstrip("-").startswith("config.")]
    return sorted(a for a in kept if not a.lstrip("-").startswith("config.study."))


def _check_same_study(workdir: str, spec: str, arguments: Sequence[str]) -> None:
    """Refuses to mix the cells of two studies in one directory."""
    path = epath.Path(workdir) / "study.json"
    try:
        before = cells.load(path)
        known = [before["config"], *before["arguments"]] if before else None
    except (OSError, ValueError, LookupError, TypeError) as err:
        raise UserError(
            f"cannot read {path}: {err!r}; remove it, the cells are kept"
        ) from err
    now = [spec, *_changes(arguments)]
    if known not in (None, now):
        raise UserError(
            f"{workdir} holds the study {shlex.join(known)}, now it is "
            f"{shlex.join(now)}; use the same arguments, or another --workdir"
        )


def to_launch(name: str, command: Sequence[str], launcher: str | None) -> str:
    """Returns a command as it is typed.

    Args:
      name: Of the run.
      command: From `Job.commands`.
      launcher: What it begins with instead of the interpreter and the module; `{name}`
        becomes the name, in the letters that names of jobs may have.
    """
    if launcher is None:
        return shlex.join(command)
    job = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
    return f"{launcher.replace('{name}', job)} {shlex.join(command[3:])}"

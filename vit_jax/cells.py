# SPDX-License-Identifier: Apache-2.0
"""The cells of a study: training runs that are processes of their own, each done once.

A cell is a command with a workdir of its own. What a finished cell measured is kept in
a JSON file, by the name of the cell, so that the same study goes on after a stop.
"""

import concurrent.futures
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from vit_jax import metrics
from vit_jax.errors import UserError

INTERRUPTED = 75


def finetune_command(
    arguments: Sequence[str], workdir: str, changes: Mapping[str, Any]
) -> list[str]:
    """Returns the command of a cell that fine-tunes.

    Args:
      arguments: Arguments that all cells share.
      workdir: The cell's own directory.
      changes: Values of fields of the config.
    """
    return [
        *(sys.executable, "-m", "vit_jax.finetune"),
        *arguments,
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in changes.items()),
    ]


def load(path: epath.Path) -> dict[str, Any]:
    """Returns what earlier starts of a study kept, nothing where there was none."""
    return json.loads(path.read_text()) if path.exists() else {}


def run_all(
    commands: Mapping[str, Sequence[str]],
    state: dict[str, Any],
    path: epath.Path,
    jobs: int,
    dry_run: bool,
) -> int | None:
    """Runs the cells that are not done yet, or prints their commands.

    A cell that fails or is stopped keeps those from starting that have not; those that
    have finish and are kept.

    Args:
      commands: The command of each cell by its name.
      state: What is done; gets what each cell measured, by its name.
      path: Where the state is kept.
      jobs: Cells at a time.
      dry_run: Print the commands instead of running them.

    Returns:
      None if all cells are done, else the exit status that the study ends with.

    Raises:
      UserError: A cell failed.
    """
    left = {name: cmd for name, cmd in commands.items() if name not in state}
    if dry_run:
        for command in left.values():
            sys.stdout.write(shlex.join(command) + "\n")
        return 0 if left else None
    ended: dict[str, int] = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(_run_one, cmd): name for name, cmd in left.items()}
        for future in concurrent.futures.as_completed(running):
            if future.cancelled():
                continue
            name, status = running[future], future.result()
            if status == 0:
                state[name] = last_metrics(_workdir_of(left[name]))
                path.parent.mkdir(parents=True, exist_ok=True)
                metrics.write_json(str(path), state)
                continue
            ended[name] = status
            for other in running:
                other.cancel()
    for name, status in ended.items():
        if status != INTERRUPTED:
            raise UserError(
                f"the run {name} in {path.parent} failed with exit status {status}; "
                f"its error is above, its command: {shlex.join(left[name])}"
            )
    return INTERRUPTED if ended else None


def last_metrics(workdir: str) -> dict[str, Any]:
    """Returns the last value of every metric of an evaluator, and the last step."""
    result: dict[str, Any] = {}
    for line in metrics.read_metrics(workdir):
        result |= {k: v for k, v in line.items() if not k.startswith("train/")}
    result.pop("time", None)
    return result


def _run_one(command: Sequence[str]) -> int:
    logging.info("run: %s", shlex.join(command))
    return subprocess.run(command, check=False).returncode


def _workdir_of(command: Sequence[str]) -> str:
    (flag,) = [each for each in command if each.startswith("--workdir=")]
    return flag.removeprefix("--workdir=")

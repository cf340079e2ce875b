# SPDX-License-Identifier: Apache-2.0
"""The paper's way to a fine-tuned result: select the learning rate, then repeat.

Section 4.1 and Table 4 of arXiv:2010.11929: each rate is trained on a part of the
training data and evaluated on the rest; the best is trained on all of it, once a seed,
and the mean over seeds is reported. Every run is a cell of its own (see `cells`);
`sweep.json` keeps what is done, so the same command goes on after a stop.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath
from ml_collections import ConfigDict

from vit_jax import cells
from vit_jax.config import section_call
from vit_jax.errors import UserError
from vit_jax.train.early_stopping import EarlyStopping

Results = dict[str, dict[str, Any]]


def run(
    config: ConfigDict, workdir: str, arguments: Sequence[str], jobs: int, dry_run: bool
) -> int:
    """Runs a sweep, or prints the commands that are left of it.

    Args:
      config: The config, whose section `sweep` holds the arguments of `plan`.
      workdir: Absolute path or URL of the sweep's directory.
      arguments: The command line without the workdir and the flags of the sweep.
      jobs: Runs at a time.
      dry_run: Print the commands instead of running them.

    Returns:
      The exit status: 0, or 75 when a run was stopped by a signal.

    Raises:
      UserError: The config has no sweep, or a run failed.
    """
    fields = (config.get("sweep") or ConfigDict()).to_dict()
    if not fields:
        raise UserError(
            "config.sweep is missing; --sweep needs lrs, train_split and dev_split, as "
            "configs/finetune.py has them"
        )
    sweep = section_call(_Sweep, fields, "sweep", config=config, arguments=arguments)
    path = epath.Path(workdir) / "sweep.json"
    state = cells.load(path)

    trials = sweep.trials(workdir)
    status = cells.run_all(trials, state, path, jobs, dry_run)
    if status is not None:
        return status
    best = sweep.best({name: state[name] for name in trials})
    logging.info("best learning rate on %s: %g", sweep.dev_split, best)
    repeats = sweep.repeats(workdir, best)
    status = cells.run_all(repeats, state, path, jobs, dry_run)
    if status is not None:
        return status
    table = _table(sweep, trials, repeats, state, best)
    (epath.Path(workdir) / "sweep.md").write_text(table)
    sys.stdout.write(table)
    return 0


class _Sweep:
    """The runs of a sweep and how they are compared."""

    def __init__(
        self,
        *,
        config: ConfigDict,
        arguments: Sequence[str],
        lrs: Sequence[float],
        train_split: str,
        dev_split: str,
        seeds: Sequence[int] = (0, 1, 2),
        metric: str = "val/top1",
    ):
        """Describes a sweep.

        Args:
          config: The config of the runs.
          arguments: Arguments of the command that each run gets as well.
          lrs: Learning rates to try.
          train_split: What they are trained on.
          dev_split: What they are compared on.
          seeds: Seeds of the final runs.
          metric: Of which the best decides.
        """
        self.evaluator = metric.split("/")[0].removesuffix("_ema")
        if self.evaluator not in (config.get("evaluators") or {}):
            raise UserError(
                f"config.sweep.metric={metric!r} is of no evaluator of the config; "
                f"there are {', '.join(config.evaluators)}"
            )
        if not lrs or not seeds:
            raise UserError("config.sweep needs at least one of lrs and one of seeds")
        self.metric, self.lrs, self.seeds = metric, tuple(lrs), tuple(seeds)
        self.dev_split = dev_split
        self._train_split = train_split
        self._dataset = config.data.dataset
        self._arguments = list(arguments)

    def trials(self, workdir: str) -> dict[str, list[str]]:
        """Returns the command of the run of each learning rate, by its name."""
        return {
            f"lr_{lr:g}": self._command(
                f"{workdir}/lr_{lr:g}",
                {
                    "optimizer.lr": lr,
                    "data.split": self._train_split,
                    f"evaluators.{self.evaluator}.dataset": self._dataset,
                    f"evaluators.{self.evaluator}.split": self.dev_split,
                },
            )
            for lr in self.lrs
        }

    def repeats(self, workdir: str, lr: float) -> dict[str, list[str]]:
        """Returns the command of the final run of each seed, by its name."""
        return {
            f"seed_{seed}": self._command(
                f"{workdir}/seed_{seed}", {"optimizer.lr": lr, "seed": seed}
            )
            for seed in self.seeds
        }

    def best(self, results: Results) -> float:
        """Returns the learning rate with the best metric; the lowest of equal ones."""
        order = EarlyStopping(metric=self.metric)
        lines = [
            {"step": i, self.metric: results[f"lr_{lr:g}"][self.metric]}
            for i, lr in enumerate(sorted(self.lrs))
        ]
        step, _ = order.best(lines)
        return sorted(self.lrs)[step or 0]

    def _command(self, workdir: str, changes: Mapping[str, Any]) -> list[str]:
        return cells.make_command("finetune", self._arguments, workdir, changes)


def _table(
    sweep: _Sweep,
    trials: Mapping[str, Any],
    repeats: Mapping[str, Any],
    state: Mapping[str, Any],
    best: float,
) -> str:
    lines = [f"| learning rate | {sweep.metric} on {sweep.dev_split} |", "|---|---|"]
    for lr, name in zip(sweep.lrs, trials, strict=True):
        mark = " (best)" if lr == best else ""
        lines.append(f"| {lr:g}{mark} | {state[name][sweep.metric]:.4f} |")
    results = [state[name] for name in repeats]
    metric = sweep.metric.split("/")[1]
    lines += ["", f"| weights | {metric}, mean ± std of {len(results)} seeds |"]
    lines.append("|---|---|")
    for name in (sweep.evaluator, f"{sweep.evaluator}_ema"):
        values = [r[f"{name}/{metric}"] for r in results if f"{name}/{metric}" in r]
        if values:
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            lines.append(f"| {name} | {statistics.mean(values):.4f} ± {spread:.4f} |")
    return "\n".join(lines) + "\n"

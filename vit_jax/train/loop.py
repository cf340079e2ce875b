# SPDX-License-Identifier: Apache-2.0
"""The training loop: next batch, update, log, evaluate, checkpoint.

The order matters for exact resumption: all that is logged up to step s is on disk
before the checkpoint of step s is, and nothing later is needed to go on from there.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
from absl import logging

from vit_jax.errors import UserError
from vit_jax.metrics import Clock, MetricWriter, Progress
from vit_jax.train.early_stopping import EarlyStopping
from vit_jax.train.state import TrainState
from vit_jax.train.step import Batch


@runtime_checkable
class Checkpoints(Protocol):
    """What the loop needs of `checkpoints.train_state.TrainCheckpoints`."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps of the complete checkpoints."""
        ...

    def save(self, step: int, state: Any) -> None:
        """Begins to write the state of a step."""
        ...

    def keep(self, step: int) -> None:
        """Keeps the checkpoint of a step, the best one so far, from being pruned."""
        ...

    def close(self) -> None:
        """Finishes every save."""
        ...


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When things happen, in updates done; None means never.

    Attributes:
      total: Updates of the whole run.
      log: Every so many updates a line of training metrics.
      checkpoint: Every so many updates a checkpoint.
      profile: After this update, a trace of the next five.
    """

    total: int
    log: int
    checkpoint: int | None
    profile: int | None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluator with its cadence; every evaluator runs at the end as well.

    Attributes:
      run: `(state) ->` pairs of a full metric name and a number.
      every: Cadence in updates, or None for the end only.
    """

    run: Callable[[TrainState], Iterator[tuple[str, float]]]
    every: int | None


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that the loop needs, built by `vit_jax.build`.

    Attributes:
      state: The start; its buffers are given away to the first update.
      update: The compiled step.
      batches: Device batches from step `state.step` on, without end.
      schedule: Length and cadences.
      batch_size: Global batch size, for rates.
      num_examples: Training examples, for the epoch.
      learning_rate: The rate that the update after step s uses, for the log.
      evaluations: Evaluators by name.
      checkpoints: Where to save.
      writer: Where metrics go.
      profile: Called with the step after each update; takes traces.
      early_stopping: Which metric decides on the best checkpoint and an early end.
    """

    state: TrainState
    update: Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]
    batches: Iterator[Batch]
    schedule: Schedule
    batch_size: int
    num_examples: int
    learning_rate: Callable[[int], float]
    evaluations: Mapping[str, Evaluation]
    checkpoints: Checkpoints
    writer: MetricWriter
    profile: Callable[[int], Any]
    early_stopping: EarlyStopping | None = None


def train(
    run: Run,
    should_stop: Callable[[], bool],
    alive: Callable[[], Any] = lambda: None,
) -> tuple[TrainState, bool]:
    """Does the updates that are left of a run.

    Args:
      run: What to do.
      should_stop: Asked after each update; true ends the run after a checkpoint. All
        processes get the same answer.
      alive: Called after each update and each evaluation, for a watchdog.

    Returns:
      The last state, and whether the run was stopped before its end.

    Raises:
      UserError: The loss or the gradient is not finite; the last good checkpoint
        stays, and none is written after it.

    An evaluation that is due where the run starts and is not in its metrics comes
    first; so a run of no updates is an evaluation.
    """
    state, schedule = run.state, run.schedule
    step, stopped = int(state.step), False
    _evaluate(run, state, step, _due_evaluations(run, step, missing=True), alive)
    _, over = _judge(run, step)
    progress, window = Progress(step, schedule.total), _Window()
    while step < schedule.total and not stopped and not over:
        with jax.transfer_guard("disallow"):
            state, measured = run.update(state, next(run.batches))
        step += 1
        window.measured.append(measured)
        stopped = should_stop()
        alive()
        progress.tick(step)
        run.profile(step)

        last = step == schedule.total
        logs = last or _due(step, schedule.log)
        saves = last or stopped or _due(step, schedule.checkpoint)
        if logs or saves:
            values, rate = window.close(step, run)
            if logs:
                _log(run, progress, step, values, rate)

        with window.clock:
            # Who is told to stop may have seconds: the evaluation is made up for later.
            due = {} if stopped else _due_evaluations(run, step)
            if due:
                progress.clear()
                _evaluate(run, state, step, due, alive)
            best, over = _judge(run, step)
            if over and not last:
                rest = {k: v for k, v in run.evaluations.items() if k not in due}
                _evaluate(run, state, step, rest, alive)
            if (best or over) and not (logs or saves):
                window.close(step, run)
            if saves or best or over:
                run.checkpoints.save(step, state)
    progress.clear()
    return state, stopped


class _Window:
    """The measurements since they were last looked at, still on the device."""

    def __init__(self) -> None:
        self.measured: list[dict[str, jax.Array]] = []
        self.clock = Clock()

    def close(self, step: int, run: Run) -> tuple[dict[str, float], float]:
        """Fetches and checks the measurements; returns the last ones and images/s."""
        values = jax.device_get(self.measured)
        self.measured = []
        rate = len(values) * run.batch_size / self.clock.lap()
        _check_finite(values, step, run.checkpoints.steps)
        return {name: float(value) for name, value in values[-1].items()}, rate


def _log(
    run: Run, progress: Progress, step: int, values: Mapping[str, float], rate: float
) -> None:
    line = {
        **{f"train/{name}": value for name, value in values.items()},
        "train/lr": float(run.learning_rate(step - 1)),
        "train/epoch": step * run.batch_size / run.num_examples,
        "train/images_per_second": rate,
        "train/images_per_second_per_device": rate / jax.device_count(),
    }
    run.writer.write(step, line)
    progress.log(step, line["train/loss"], line["train/lr"], rate)


def _due(step: int, every: int | None) -> bool:
    return bool(every) and step > 0 and step % every == 0


def _due_evaluations(
    run: Run, step: int, missing: bool = False
) -> dict[str, Evaluation]:
    """Returns the evaluators that run after a step, or those that should have."""
    done = run.writer.restored if missing else {}
    return {
        name: evaluation
        for name, evaluation in run.evaluations.items()
        if (step == run.schedule.total or _due(step, evaluation.every))
        and not any(metric.startswith(f"{name}/") for metric in done)
    }


def _evaluate(
    run: Run,
    state: TrainState,
    step: int,
    evaluations: Mapping[str, Evaluation],
    alive: Callable[[], Any],
) -> None:
    for evaluation in evaluations.values():
        results = dict(evaluation.run(state))
        alive()
        run.writer.write(step, results)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in results.items())
        logging.info("step %d  %s", step, shown)


def _judge(run: Run, step: int) -> tuple[bool, bool]:
    """Returns whether a step's weights are the best so far, and whether to end."""
    stopping = run.early_stopping
    if stopping is None:
        return False, False
    best, since = stopping.best(run.writer.lines)
    if best is not None:
        run.checkpoints.keep(best)
    over = stopping.patience is not None and since >= stopping.patience
    if over:
        logging.info(
            "%s has not improved in %d evaluations; the best was after step %s",
            stopping.metric,
            since,
            best,
        )
    return best == step, over


def _check_finite(
    window: Sequence[Mapping[str, Any]], step: int, saved: Sequence[int]
) -> None:
    """Raises if a loss or gradient of the last `len(window)` updates is not finite."""
    for offset, measured in enumerate(window):
        if not all(math.isfinite(value) for value in measured.values()):
            bad = step - len(window) + offset + 1
            kept = f"the last good checkpoint is of step {saved[-1]}"
            values = ", ".join(f"{k} {float(v)}" for k, v in measured.items())
            raise UserError(
                f"not finite in update {bad} ({values}), seen when checking updates "
                f"{step - len(window) + 1} to {step}; "
                f"{kept if saved else 'there is no checkpoint yet'}; "
                "lower config.optimizer.lr, set config.optimizer.clip_norm=1, or "
                "lengthen the warm-up"
            )

# SPDX-License-Identifier: Apache-2.0
"""Cadences and endings of the loop, with an update that only counts."""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from vit_jax import metrics
from vit_jax.errors import UserError
from vit_jax.train.loop import Evaluation, Run, Schedule, train
from vit_jax.train.state import TrainState


class Saves:
    """Remembers what the loop saves."""

    def __init__(self) -> None:
        self.steps: tuple[int, ...] = ()

    def save(self, step: int, state: Any) -> None:
        assert int(state.step) == step
        self.steps += (step,)

    def keep(self, step: int) -> None:
        self.best = step

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def closed_writers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes every writer, as `build_run` does."""
    made: list[metrics.MetricWriter] = []
    init = metrics.MetricWriter.__init__

    def remember(self: metrics.MetricWriter, *args: Any) -> None:
        made.append(self)
        init(self, *args)

    monkeypatch.setattr(metrics.MetricWriter, "__init__", remember)
    yield
    for writer in made:
        writer.close()


def make_run(
    workdir: pathlib.Path, schedule: Schedule, *, first: int = 0, bad: int = -1, **every
) -> tuple[Run, Saves, list[tuple[str, int]]]:
    """A run whose loss is the step, not finite in update `bad`."""
    seen: list[tuple[str, int]] = []

    @jax.jit
    def count(step: jax.Array) -> tuple[jax.Array, jax.Array]:
        step = step + 1
        return step, jnp.where(step == bad, jnp.nan, step.astype(jnp.float32))

    def update(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        assert batch["step"] == int(state.step)
        step, loss = count(state.step)
        return state.replace(step=step), {"loss": loss, "grad_norm": loss}

    def evaluation(name: str, cadence: int | None) -> Evaluation:
        def run(state: TrainState):
            seen.append((name, int(state.step)))
            yield f"{name}/top1", 0.5

        return Evaluation(run, cadence)

    saves = Saves()
    run = Run(
        state=TrainState(jnp.int32(first), {}, {}, None),
        update=update,
        batches=({"step": s} for s in itertools.count(first)),
        schedule=schedule,
        batch_size=4,
        num_examples=8,
        learning_rate=lambda step: step / 10,
        evaluations={n: evaluation(n, c) for n, c in every.items()},
        checkpoints=saves,
        writer=metrics.MetricWriter(str(workdir), first),
        profile=lambda step: seen.append(("profile", step)),
    )
    return run, saves, seen


def test_every_cadence_is_its_own(workdir: pathlib.Path):
    schedule = Schedule(total=12, log=3, checkpoint=5, profile=None)
    run, saves, seen = make_run(workdir, schedule, val=4, test=None)
    _, stopped = train(run, lambda: False)
    assert not stopped
    assert saves.steps == (5, 10, 12)
    assert [s for n, s in seen if n == "val"] == [4, 8, 12]
    assert [s for n, s in seen if n == "test"] == [12]
    assert [s for n, s in seen if n == "profile"] == list(range(1, 13))
    logged = [m for m in metrics.read_metrics(str(workdir)) if "train/loss" in m]
    assert [m["step"] for m in logged] == [3, 6, 9, 12]
    assert [m["train/loss"] for m in logged] == [3.0, 6.0, 9.0, 12.0]
    # The rate that update s used is that of schedule(s - 1).
    assert [m["train/lr"] for m in logged] == pytest.approx([0.2, 0.5, 0.8, 1.1])
    assert [m["train/epoch"] for m in logged] == [1.5, 3.0, 4.5, 6.0]
    assert all(m["train/images_per_second"] > 0 for m in logged)


def test_metrics_of_a_step_are_on_disk_before_its_checkpoint(workdir: pathlib.Path):
    schedule = Schedule(total=4, log=2, checkpoint=2, profile=None)
    run, saves, _ = make_run(workdir, schedule, val=2)
    at_save = []

    def save(step: int, state: Any) -> None:
        del state
        at_save.append((step, len(metrics.read_metrics(str(workdir)))))

    saves.save = save
    train(run, lambda: False)
    assert at_save == [(2, 2), (4, 4)]  # one training and one evaluation line each


def test_a_resumed_run_does_the_rest(workdir: pathlib.Path):
    schedule = Schedule(total=12, log=3, checkpoint=5, profile=None)
    run, saves, seen = make_run(workdir, schedule, first=10, val=4)
    state, _ = train(run, lambda: False)
    assert int(state.step) == 12
    assert saves.steps == (12,)
    assert [s for n, s in seen if n == "val"] == [12]


@pytest.mark.parametrize("step", [7, 8, 12])
def test_a_stop_writes_a_checkpoint_and_leaves_the_evaluation(
    workdir: pathlib.Path, step: int
):
    schedule = Schedule(total=12, log=3, checkpoint=None, profile=None)
    run, saves, seen = make_run(workdir, schedule, val=4)
    asked = itertools.count(1)
    state, stopped = train(run, lambda: next(asked) == step)
    assert stopped
    assert int(state.step) == step
    assert saves.steps == (step,)
    assert ("val", step) not in seen
    # The next start makes up for it, once.
    for expected in ([("val", step)] if step % 4 == 0 else [], []):
        resumed, _, seen = make_run(workdir, schedule, first=step, val=4)
        train(dataclasses.replace(resumed, schedule=schedule), lambda: True)
        assert [e for e in seen if e == ("val", step)] == expected


def test_no_steps_is_an_evaluation_of_the_start(workdir: pathlib.Path):
    schedule = Schedule(total=0, log=3, checkpoint=5, profile=None)
    run, saves, seen = make_run(workdir, schedule, val=4)
    train(run, lambda: False)
    assert seen == [("val", 0)]
    assert saves.steps == ()


def test_a_finished_run_is_left_alone(workdir: pathlib.Path):
    schedule = Schedule(total=4, log=3, checkpoint=5, profile=None)
    train(make_run(workdir, schedule, val=4)[0], lambda: False)
    before = (workdir / "metrics.jsonl").read_text()
    run, saves, seen = make_run(workdir, schedule, first=4, val=4)
    state, stopped = train(run, lambda: False)
    assert (int(state.step), stopped) == (4, False)
    assert (seen, saves.steps) == ([], ())
    assert (workdir / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("bad", [6, 7, 8])
def test_a_loss_that_is_not_finite_stops_before_the_next_checkpoint(
    workdir: pathlib.Path, bad: int
):
    schedule = Schedule(total=12, log=5, checkpoint=4, profile=None)
    run, saves, _ = make_run(workdir, schedule, bad=bad)
    with pytest.raises(
        UserError,
        match=rf"not finite in update {bad} .*updates 6 to 8; .* of step 4; lower",
    ):
        train(run, lambda: False)
    assert saves.steps == (4,)


def test_an_array_that_is_moved_unasked_is_an_error(workdir: pathlib.Path):
    schedule = Schedule(total=1, log=1, checkpoint=None, profile=None)
    run, _, _ = make_run(workdir, schedule)

    def update(state: TrainState, batch: dict) -> tuple[TrainState, dict]:
        del batch
        return state, {"loss": jnp.sin(1.0), "grad_norm": jnp.sin(1.0)}

    with pytest.raises(jax.errors.JaxRuntimeError, match="host-to-device transfer"):
        train(dataclasses.replace(run, update=update), lambda: False)

# SPDX-License-Identifier: Apache-2.0
"""The learning rate that the log shows is the one that moves the weights."""

import dataclasses
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from tests.cases import tiny
from vit_jax import build, metrics
from vit_jax.train import loop

CLIP = 0.01
# Cosine to 0 over 100 updates after 10 of warm-up, peak 1: of update s + 1, by s.
RATES = {0: 0.0, 1: 0.1, 5: 0.5, 9: 0.9, 10: 1.0, 11: 0.999695, 32: 0.859670}
RATES |= {55: 0.5, 78: 0.140330, 99: 0.000305}


def copied(tree: Any) -> Any:
    """NumPy arrays that stay when the device's are given away."""
    return jax.tree.map(lambda leaf: np.array(leaf, copy=True), jax.device_get(tree))


@dataclasses.dataclass
class Moves:
    """What each update of a run did: how far it went, and what it left of its input."""

    lengths: list[float] = dataclasses.field(default_factory=list)
    kept: list[int] = dataclasses.field(default_factory=list)

    def train(self, workdir: pathlib.Path, stop_after: int) -> None:
        config = tiny.config(
            "synthetic:4@size=8;train=32",
            total_steps=100,
            optimizer={
                **{"lr": 1.0, "schedule": "cosine", "warmup_steps": 10},
                **{"clip_norm": CLIP, "momentum": 0.0, "ema_decay": 0.9},
            },
        )
        made = build.make_blueprint(config, devices=jax.devices()[:1])
        with build.build_run(made, str(workdir)) as run:

            def update(state: Any, batch: Any) -> Any:
                before = copied(state.params)
                leaves = jax.tree.leaves(state)
                state, measured = run.update(state, batch)
                after = copied(state.params)
                moved = jax.tree.map(np.subtract, after, before)
                parts = [np.linalg.norm(part) for part in jax.tree.leaves(moved)]
                self.lengths.append(float(np.linalg.norm(parts)))
                self.kept.append(sum(not leaf.is_deleted() for leaf in leaves))
                return state, measured

            watched = dataclasses.replace(run, update=update)
            loop.train(watched, lambda: len(self.lengths) == stop_after)


@pytest.fixture(scope="module")
def stopped_at_37(tmp_path_factory: pytest.TempPathFactory) -> tuple[Moves, list]:
    """A run of 100 updates in two parts, and the lines of its log."""
    workdir, moves = tmp_path_factory.mktemp("runs") / "a", Moves()
    moves.train(workdir, stop_after=37)
    assert len(moves.lengths) == 37
    moves.train(workdir, stop_after=-1)
    return moves, metrics.read_metrics(str(workdir))


def test_the_log_has_the_literal_rates_also_after_a_restart(stopped_at_37):
    _, lines = stopped_at_37
    assert [line["step"] for line in lines] == list(range(1, 101))
    for s, rate in RATES.items():
        assert lines[s]["train/lr"] == pytest.approx(rate, abs=1e-6), s


def test_the_logged_rate_is_the_one_that_moves_the_weights(stopped_at_37):
    moves, lines = stopped_at_37
    assert len(moves.lengths) == 100
    # The gradient is longer than the limit, so an update goes rate times limit far.
    for s, (line, length) in enumerate(zip(lines, moves.lengths, strict=True)):
        gradient = min(CLIP, line["train/grad_norm"])
        assert length == pytest.approx(line["train/lr"] * gradient, rel=5e-3), s


def test_an_update_takes_the_memory_of_the_whole_state_before(stopped_at_37):
    moves, _ = stopped_at_37
    assert moves.kept == [0] * 100

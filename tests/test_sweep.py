# SPDX-License-Identifier: Apache-2.0
"""The selection of a learning rate: which runs there are, what is taken from them."""

import json
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from vit_jax import config as config_lib, sweep
from vit_jax.errors import UserError

FINETUNE = pathlib.Path(__file__).parent.parent / "configs" / "finetune.py"
ARGUMENTS = ["--config=configs/finetune.py:smoke", "--init=w.npz"]

# Accuracy on the dev split by learning rate, and on the test split by seed.
DEV = {"0.001": 0.5, "0.003": 0.7, "0.01": 0.7, "0.03": 0.2}
TEST = {"0": 0.80, "1": 0.86}


class Ended:
    """A process that has ended."""

    def __init__(self, status: int):
        self.status = status

    def wait(self) -> int:
        return self.status


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for the processes: writes what the run of a command would."""
    done: list[list[str]] = []

    def run(command: list[str], **settings: Any) -> Any:
        del settings
        done.append(command)
        flags = dict(arg[2:].split("=", 1) for arg in command if "=" in arg)
        dev = flags.get("config.evaluators.val.split") == "train[48:]"
        seed = flags.get("config.seed", "0")
        value = DEV[flags["config.optimizer.lr"]] if dev else TEST[seed]
        workdir = pathlib.Path(flags["workdir"])
        workdir.mkdir(parents=True)
        lines = [
            {"step": 1, "time": 1.0, "val/top1": 0.1, "val_ema/top1": 0.1},
            {"step": 2, "time": 2.0, "train/loss": 1.0},
            {"step": 2, "time": 2.0, "val/top1": value, "val_ema/top1": value + 0.01},
        ]
        text = "\n".join(map(json.dumps, lines))
        (workdir / "metrics.jsonl").write_text(text)
        return Ended(0)

    monkeypatch.setattr(subprocess, "Popen", run)
    return done


def start(workdir: pathlib.Path, jobs: int = 1, dry_run: bool = False) -> int:
    config = config_lib.load(f"{FINETUNE}:smoke")
    return sweep.run(config, str(workdir), ARGUMENTS, jobs, dry_run)


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_best_rate_on_the_dev_split_is_trained_on_everything(
    workdir: pathlib.Path, runs: list, jobs: int, capsys: pytest.CaptureFixture
):
    assert start(workdir, jobs) == 0
    assert len(runs) == 6
    for command in runs[:4]:
        assert "--config.data.split=train[:48]" in command
        assert command[3:5] == ARGUMENTS
    for command in runs[4:]:
        # The lower of two equal rates; all of train, since nothing changes the split.
        assert "--config.optimizer.lr=0.003" in command
        assert not any("split" in arg for arg in command)
    table = capsys.readouterr().out
    assert "| 0.003 (best) | 0.7000 |" in table
    # Mean 0.83 and sample deviation 0.03 * sqrt(2) of 0.80 and 0.86.
    assert "| val | 0.8300 ± 0.0424 |" in table
    assert "| val_ema | 0.8400 ± 0.0424 |" in table
    assert (workdir / "sweep.md").read_text() == table


def test_a_sweep_goes_on_where_it_was_stopped(
    workdir: pathlib.Path, runs: list, monkeypatch: pytest.MonkeyPatch
):
    finish: Callable = subprocess.Popen

    def stop_third(command: list[str], **settings: Any) -> Any:
        return Ended(75) if len(runs) == 2 else finish(command, **settings)

    monkeypatch.setattr(subprocess, "Popen", stop_third)
    assert start(workdir) == 75
    assert len(runs) == 2
    monkeypatch.setattr(subprocess, "Popen", finish)
    assert start(workdir) == 0
    assert len(runs) == 6
    # All is done: nothing runs again.
    assert start(workdir) == 0
    assert len(runs) == 6


def test_a_run_that_fails_is_named(
    workdir: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(subprocess, "Popen", lambda command, **settings: Ended(1))
    with pytest.raises(UserError, match=r"lr_0.001 in .*run failed .* status 1"):
        start(workdir)


def test_a_dry_run_prints_what_is_left(
    workdir: pathlib.Path, runs: list, capsys: pytest.CaptureFixture
):
    assert start(workdir, dry_run=True) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert all("-m vit_jax.finetune --config=configs/" in line for line in printed)
    assert runs == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "vall/top1"}, "is of no evaluator of the config; there are val"),
        ({"lrs": ()}, "at least one of lrs"),
        ({"lr": 0.1}, "field of config.sweep: 'lr'; did you mean 'lrs'"),
    ],
)
def test_a_mistake_is_named(workdir: pathlib.Path, change: dict, message: str):
    config = config_lib.load(f"{FINETUNE}:smoke")
    with config.sweep.ignore_type():
        config.sweep.update(change)
    with pytest.raises(UserError, match=message):
        sweep.run(config, str(workdir), ARGUMENTS, 1, False)


def test_a_config_without_a_sweep_is_refused(workdir: pathlib.Path):
    config = config_lib.load(f"{FINETUNE}:smoke")
    del config["sweep"]
    with pytest.raises(UserError, match=r"config.sweep is missing; --sweep needs"):
        sweep.run(config, str(workdir), ARGUMENTS, 1, False)

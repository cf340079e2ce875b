# SPDX-License-Identifier: Apache-2.0
"""A run that is killed again and again equals one that never was, bit for bit."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from vit_jax import metrics, trees

ROOT = pathlib.Path(__file__).parents[2]
DIE_AT = pathlib.Path(__file__).with_name("die_at.py")
CONFIG = pathlib.Path(__file__).with_name("resume_config.py")
ONE_DEVICE = "--xla_force_host_platform_device_count=1"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One CPU device, and compiled programs shared by all processes."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return {
        **os.environ,
        "XLA_FLAGS": "",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
    }


Train = Callable[..., int]


@pytest.fixture(scope="module")
def train(
    tmp_path_factory: pytest.TempPathFactory, environment: dict
) -> Iterator[Train]:
    """Trains in a process of its own and returns its exit status; see die_at.py."""
    log = tmp_path_factory.mktemp("log") / "stderr"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, str(DIE_AT)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        jobs, statuses = process.stdin, process.stdout

        def train(
            workdir: pathlib.Path, moment: str = "", step: int = -1, **environment: str
        ) -> int:
            job = {"workdir": str(workdir), "moment": moment, "step": step}
            jobs.write(json.dumps({**job, "environment": environment}) + "\n")
            jobs.flush()
            status = int(statuses.readline() or 1)
            assert status in (0, -signal.SIGKILL), log.read_text()[-3000:]
            return status

        yield train


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, train: Train) -> pathlib.Path:
    """The run that nobody interrupts."""
    workdir = tmp_path_factory.mktemp("straight")
    assert train(workdir) == 0
    return workdir


def state_of(workdir: pathlib.Path, step: int = 20) -> dict[str, np.ndarray]:
    path = workdir / "checkpoints" / str(step)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        stored = checkpointer.metadata(path).item_metadata.tree
        numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), stored)
        args = ocp.args.PyTreeRestore(restore_args=numpy)
        return trees.flatten(checkpointer.restore(path, args=args))


def metrics_of(workdir: pathlib.Path) -> list[dict]:
    """The lines, without what tells the time."""
    clocks = ("time", "train/images_per_second", "train/images_per_second_per_device")
    return [
        {k: v for k, v in line.items() if k not in clocks}
        for line in metrics.read_metrics(str(workdir))
    ]


def assert_same_run(found: pathlib.Path, wanted: pathlib.Path) -> None:
    a, b = state_of(found), state_of(wanted)
    assert a.keys() == b.keys()
    assert any(name.startswith("ema/") for name in a)
    assert any("mu/" in name for name in a)
    for name, value in b.items():
        np.testing.assert_array_equal(a[name], value, err_msg=name)
    assert metrics_of(found) == metrics_of(wanted)


def test_the_straight_run_logs_what_it_should(straight: pathlib.Path):
    lines = metrics_of(straight)
    assert [m["step"] for m in lines if "train/loss" in m] == list(range(2, 21, 2))
    assert [m["step"] for m in lines if "val/top1" in m] == [4, 8, 12, 16, 20]
    assert all("val_ema/top1" in m for m in lines if "val/top1" in m)


MOMENTS = [
    ("update", 3),  # before there is any checkpoint
    ("save", 5),  # in the middle of the first save
    ("update", 8),  # after the update, before its line
    ("write", 12),  # in the middle of a line
    ("save", 15),  # in the middle of a later save
    ("update", 16),  # at once after resuming from 15 or 10
    ("update", 19),
]


def test_a_run_killed_seven_times_equals_the_straight_one(
    straight: pathlib.Path, workdir: pathlib.Path, train: Train
):
    for moment in MOMENTS:
        assert train(workdir, *moment) == -signal.SIGKILL, moment
    assert train(workdir) == 0
    assert_same_run(workdir, straight)


def start_main(workdir: pathlib.Path, environment: dict, *flags: str):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "vit_jax.main"),
            *(f"--config={CONFIG}", f"--workdir={workdir}"),
            *flags,
        ],
        # Nothing is compared bit for bit, so the compiler makes no effort.
        env={**environment, "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {ONE_DEVICE}"},
        cwd=workdir.parent,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_step(workdir: pathlib.Path, step: int, process) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if any(m["step"] >= step for m in metrics.read_metrics(str(workdir))):
            return
        time.sleep(0.005)
    pytest.fail(f"step {step} never came: {process.communicate()[1][-3000:]}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_writes_a_checkpoint_and_exits_75(
    workdir: pathlib.Path, environment: dict, number: signal.Signals
):
    workdir = workdir.parent / number.name  # A folder for each, both given relative.
    flags = ["--compilation_cache=off", "--config.total_steps=1000000"]
    flags.append("--config.checkpoint_steps=None")
    process = start_main(workdir, environment, f"--workdir={number.name}", *flags)
    wait_for_step(workdir, 4, process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stderr[-3000:]
    assert number.name in stderr
    (step,) = [int(p.name) for p in (workdir / "checkpoints").iterdir()]
    assert step >= 4
    assert int(state_of(workdir, step)["step"]) == step


def test_eight_devices_see_the_same_batches_and_losses(
    straight: pathlib.Path, workdir: pathlib.Path, train: Train
):
    # The flags of the tests: eight devices, and a compiler that makes no effort.
    assert train(workdir, XLA_FLAGS=os.environ["XLA_FLAGS"]) == 0
    for found, wanted in zip(metrics_of(workdir), metrics_of(straight), strict=True):
        assert found.keys() == wanted.keys()
        for name in found:
            # Sums over eight devices round otherwise. A gradient is a difference of
            # large numbers, so its norm feels that more than a loss does.
            tolerance = 1e-4 if name == "train/grad_norm" else 1e-5
            assert found[name] == pytest.approx(wanted[name], abs=tolerance), name

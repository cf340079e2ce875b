# SPDX-License-Identifier: Apache-2.0
"""Who a process is; and several processes on this machine that train together."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import jax
import pytest

from vit_jax import metrics, sharding
from vit_jax.distributed import Cluster, count_ahead, find_cluster, start
from vit_jax.errors import UserError
from vit_jax.sharding import mesh as mesh_module

ROOT = pathlib.Path(__file__).parents[1]
FLAGS = [
    "--config.total_steps=8",
    "--config.log_steps=1",
    "--config.checkpoint_steps=None",
    "--config.model.depth=1",
    "--config.evaluators.val.every_steps=None",
    "--heartbeat_seconds=10",
    "--compilation_cache=off",  # The variable below names another.
]
# The compiler makes no effort, see conftest.py; the last of two equal flags wins.
XLA_FLAGS = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count="
Job = Callable[..., list[int]]

SLURM = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
VARIABLES = {
    "JAX_COORDINATOR_ADDRESS": "run-workers-0-0.run:8476",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
}


def test_a_process_that_nothing_is_told_to_is_alone():
    assert find_cluster({}, {}, None) is None
    assert find_cluster({}, {}, "cpu") is None


def test_flags_and_variables_say_who_a_process_is():
    given = {"coordinator_address": "a:1", "num_processes": 2, "process_id": 0}
    assert find_cluster(given, {}, None) == Cluster("a:1", 2, 0)
    found = find_cluster({}, VARIABLES, None)
    assert found == Cluster("run-workers-0-0.run:8476", 4, 3)
    # A flag wins over its variable, and both over what else there is.
    found = find_cluster({"process_id": 0}, VARIABLES | SLURM, "tpu,cpu")
    assert found == Cluster("run-workers-0-0.run:8476", 4, 0)


def test_processes_are_counted_before_they_start(monkeypatch: pytest.MonkeyPatch):
    for name in (*VARIABLES, *SLURM):
        monkeypatch.delenv(name, raising=False)
    assert count_ahead({}) == 1
    given = {"coordinator_address": "a:1", "num_processes": 3, "process_id": 0}
    assert count_ahead(given) == 3
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert count_ahead({}) == 2


def test_a_sweep_in_one_of_several_processes_is_refused(workdir: pathlib.Path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "vit_jax.finetune", "--sweep", f"--init={workdir}"),
            *("--config=configs/finetune.py:smoke", f"--workdir={workdir}"),
            *("--coordinator_address=localhost:1", "--num_processes=2"),
            "--process_id=0",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: --sweep starts many trainings from one process, and this is one of 2 "
        "that start together; use a single machine, or run each command that --dry_run"
    )
    assert not workdir.exists()


def test_one_process_of_one_is_alone():
    assert (
        find_cluster(
            {}, VARIABLES | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None
        )
        is None
    )
    assert find_cluster({}, SLURM | {"SLURM_NTASKS": "1"}, None) is None


def test_slurm_and_tpus_are_left_to_jax():
    assert find_cluster({}, SLURM, "cuda") == Cluster(method="slurm")
    # Not a task of srun, but the script of sbatch itself.
    script = {k: v for k, v in SLURM.items() if k != "SLURM_STEP_NODELIST"}
    assert find_cluster({}, script, None) is None
    assert find_cluster({}, {}, "tpu,cpu") == Cluster(method=None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"process_id": 1}, r"needs --coordinator_address and --num_processes as well"),
        ({"coordinator_address": "a"}, r"--num_processes and --process_id"),
        (
            {"coordinator_address": "a", "num_processes": 2, "process_id": 1},
            r"coordinator_address='a' must be HOST:PORT",
        ),
        (
            {"coordinator_address": "a:1", "num_processes": 2, "process_id": 2},
            r"process_id=2 must lie in 0 to num_processes - 1, that is 1",
        ),
        (
            {"coordinator_address": "a:1", "num_processes": "x", "process_id": 2},
            r"must be whole numbers: .*'x'",
        ),
    ],
)
def test_half_of_an_identity_is_refused(given: dict, message: str):
    with pytest.raises(UserError, match=message):
        find_cluster(given, {}, None)


def test_a_process_alone_starts_nothing(monkeypatch: pytest.MonkeyPatch):
    for name in (*VARIABLES, *SLURM):
        monkeypatch.delenv(name, raising=False)
    start({}, 10)  # JAX runs already, so that a start would fail.


def test_a_coordinator_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch):
    def initialize(*args: object, **kwargs: object) -> None:
        raise RuntimeError("UNKNOWN: Failed to start RPC server\nat port 1")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    given = {"coordinator_address": "a:1", "num_processes": 2, "process_id": 0}
    with pytest.raises(UserError, match=r"join .* at a:1: UNKNOWN.* its port is free"):
        start(given, 10)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Trains in processes of their own; returns their statuses. See start_together."""
    log = tmp_path_factory.mktemp("log") / "stderr"
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{XLA_FLAGS}1",
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": str(ROOT),
    }
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).parent / "start_together.py")],
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

        def job(
            workdir: pathlib.Path, processes: int, *flags: str, **deed
        ) -> list[int]:
            content = {
                "processes": processes,
                "flags": [f"--workdir={workdir}", *FLAGS, *flags],
                "log": str(workdir) + ".log",
                **deed,
            }
            jobs.write(json.dumps(content) + "\n")
            jobs.flush()
            answer = statuses.readline()
            assert answer, log.read_text()[-3000:]
            return json.loads(answer)

        yield job


def log_of(workdir: pathlib.Path, number: int) -> str:
    return pathlib.Path(f"{workdir}.log.{number}").read_text()


def batches_of(workdir: pathlib.Path) -> list[tuple[int, list[float]]]:
    lines = (workdir / "batches.jsonl").read_text().splitlines()
    return [tuple(json.loads(line).values()) for line in lines]


def assert_same_run(found: pathlib.Path, wanted: pathlib.Path) -> None:
    """The same batches in the same order, and losses but for rounding."""
    a, b = batches_of(found), batches_of(wanted)
    assert [step for step, _ in a] == [step for step, _ in b] == list(range(8))
    for (_, found_sums), (_, wanted_sums) in zip(a, b, strict=True):
        assert found_sums == pytest.approx(wanted_sums, abs=1e-3)
    a, b = (metrics.read_metrics(str(workdir)) for workdir in (found, wanted))
    assert [line["step"] for line in a] == [line["step"] for line in b]
    for found_line, wanted_line in zip(a, b, strict=True):
        assert found_line.keys() == wanted_line.keys()
        for name in found_line:
            if name.endswith(("/loss", "/top1", "/examples", "/lr", "/epoch")):
                assert found_line[name] == pytest.approx(wanted_line[name], abs=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, job: Job) -> pathlib.Path:
    """The run of a single process."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    assert job(workdir, 1) == [0], log_of(workdir, 0)
    return workdir


@pytest.mark.slow
@pytest.mark.parametrize(("what", "count", "devices"), [("term", 4, 1), ("int", 1, 4)])
def test_processes_stop_together_and_others_go_on_as_one_would(
    alone: pathlib.Path,
    workdir: pathlib.Path,
    job: Job,
    what: str,
    count: int,
    devices: int,
):
    # Two processes of two devices; one of them gets the signal.
    two = {"XLA_FLAGS": f"{XLA_FLAGS}2"}
    deed = {"process": 1, "step": 3, "what": what, "environment": two}
    assert job(workdir, 2, **deed) == [75, 75], log_of(workdir, 0)
    (saved,) = [int(path.name) for path in (workdir / "checkpoints").iterdir()]
    assert 4 <= saved < 8
    assert "a process was told to stop" in log_of(workdir, 0)
    # Four processes of one device, or one of four, do the rest.
    statuses = job(workdir, count, environment={"XLA_FLAGS": f"{XLA_FLAGS}{devices}"})
    assert statuses == [0] * count, log_of(workdir, 0)
    assert f"resuming after step {saved} of 8" in log_of(workdir, 0)
    assert_same_run(workdir, alone)


@pytest.mark.slow
def test_one_killed_process_ends_the_others(workdir: pathlib.Path, job: Job):
    start = time.monotonic()
    statuses = job(workdir, 2, process=1, step=3, what="kill")
    assert statuses[1] == -signal.SIGKILL
    # By an error of the step, or by XLA when the heartbeats stop.
    assert statuses[0] in (70, -signal.SIGABRT), log_of(workdir, 0)
    assert time.monotonic() - start < 60
    assert re.search(r"Gloo|heartbeat|error", log_of(workdir, 0))


@pytest.mark.slow
def test_a_mistake_that_one_process_finds_ends_all_with_its_words(
    workdir: pathlib.Path, job: Job
):
    assert job(workdir, 2, process=1, step=3, what="mistake") == [1, 1]
    assert log_of(workdir, 1).endswith(
        "error: a broken image in photo.jpg; mend the data set\n"
    )
    assert re.search(
        r"error: process 1 on \S+ ended the run: UserError: a broken image in photo",
        log_of(workdir, 0),
    )


@pytest.mark.slow
def test_what_one_process_cannot_read_all_leave(workdir: pathlib.Path, job: Job):
    flags = ("--config.checkpoint_steps=3", "--config.keep_checkpoints=5")
    assert job(workdir, 2, *flags) == [0, 0], log_of(workdir, 0)
    blind = {"blind": [1], "unreadable": [8]}
    flags = (*flags, "--config.total_steps=9")
    assert job(workdir, 2, *flags, **blind) == [0, 0], log_of(workdir, 0)
    here, there = log_of(workdir, 1), log_of(workdir, 0)
    assert re.search(r"skipped the broken checkpoint \S+/8: cannot read 8", here)
    assert "/8: read here, but not by the processes [1]" in there
    assert "resuming after step 6 of 9" in there
    # And where nothing is left, all end with the same words instead of waiting.
    blind["unreadable"] = [3, 6, 8, 9]
    assert job(workdir, 2, *flags, **blind) == [1, 1]
    for number in (0, 1):
        assert re.search(
            r"error: .*none of the checkpoints \[.*\] in \S+ can be read; move the",
            log_of(workdir, number),
        )


@pytest.mark.slow
def test_a_process_that_hangs_is_found_and_ends_all(workdir: pathlib.Path, job: Job):
    deed = {"process": 0, "step": 3, "what": "sleep"}
    assert job(workdir, 2, "--config.watchdog_seconds=8", **deed) == [70, 70]
    logs = log_of(workdir, 0) + log_of(workdir, 1)
    assert "no step or evaluation has ended for 8 s" in logs
    assert "start_together.py" in logs  # The stacks show where.
    assert "in act" in logs or "in update" in logs


class Placed:
    """A sharding of which this process has some parts."""

    def __init__(self, parts: list[int]):
        self._parts = parts

    def addressable_devices_indices_map(self, shape: tuple[int]) -> dict:
        del shape
        # Of a single part, an index is a slice of everything.
        return {i: (slice(p or None, p + 1),) for i, p in enumerate(self._parts)}


@pytest.mark.parametrize(
    ("held", "part"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], (0, 1)),
        ([2, 3], (1, 4)),
        ([7], (7, 8)),
        # Two devices share a layer, here or with another process.
        ([4, 4, 5, 5], (2, 4)),
    ],
)
def test_the_part_of_a_batch_is_that_of_the_devices(
    monkeypatch: pytest.MonkeyPatch, held: list[int], part: tuple[int, int]
):
    monkeypatch.setattr(mesh_module, "batch_sharding", lambda mesh: Placed(held))
    assert sharding.process_part(sharding.make_mesh()) == part


@pytest.mark.parametrize("held", [[0, 2], [1, 2], [0, 1, 2], []])
def test_scattered_parts_are_refused(monkeypatch: pytest.MonkeyPatch, held: list[int]):
    monkeypatch.setattr(mesh_module, "batch_sharding", lambda mesh: Placed(held))
    with pytest.raises(UserError, match=r"devices of a process lie next to each other"):
        sharding.process_part(sharding.make_mesh())


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    process_index: int


def test_devices_of_a_process_lie_next_to_each_other():
    # On a TPU slice, numbers go along rows that cross hosts.
    owners = [0, 0, 1, 1, 0, 0, 1, 1]
    devices = [Device(i, p) for i, p in enumerate(owners)]
    mesh = sharding.make_mesh(data=2, fsdp=4, devices=devices)
    ids = [[device.id for device in row] for row in mesh.devices[:, :, 0]]
    assert ids == [[0, 1, 4, 5], [2, 3, 6, 7]]

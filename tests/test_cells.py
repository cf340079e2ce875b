# SPDX-License-Identifier: Apache-2.0
"""Cells are processes that run once: after kills, beside each other, with failures.

The cells here are small programs that count, as a training counts its steps.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest

from vit_jax import cells

ROOT = pathlib.Path(__file__).parent.parent

# Counts to --steps with a checkpoint after each, goes on from it, and tells its end.
CELL = """
import json, pathlib, signal, sys, time
flags = dict(arg[2:].split("=", 1) for arg in sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
workdir = pathlib.Path(flags["workdir"])
workdir.mkdir(parents=True, exist_ok=True)
with (workdir / "starts").open("a") as file:
    file.write("start\\n")
print("step by step")
if "fail" in flags:
    sys.exit("error: no such thing; do another")
checkpoint = workdir / "checkpoint"
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
while step < int(flags["steps"]):
    time.sleep(0.02)
    step += 1
    with (workdir / "updates").open("a") as file:
        file.write(f"{step}\\n")
    temporary = workdir / "checkpoint.tmp"
    temporary.write_text(str(step))
    temporary.replace(checkpoint)
line = {"step": step, "time": 0.0, "test/top1": 0.5}
(workdir / "metrics.jsonl").write_text(json.dumps(line) + "\\n")
(workdir / "run.json").write_text(json.dumps({"finished_step": step}))
"""

# A study without its plan: it runs the commands in a file and prints what ended.
STUDY = """
import json, sys
from vit_jax import cells
commands = json.loads(open(sys.argv[1]).read())
statuses = cells.run_processes(commands, 1, lambda *_: None, logs=True)
print(json.dumps(statuses))
"""


@pytest.fixture
def cell(tmp_path: pathlib.Path) -> Callable[..., list[str]]:
    """Makes the command of a cell of so many steps."""
    program = tmp_path / "cell.py"
    program.write_text(CELL)

    def command(name: str, steps: int, *more: str) -> list[str]:
        flags = [f"--workdir={tmp_path}/{name}", f"--steps={steps}", *more]
        return [sys.executable, str(program), *flags]

    return command


@pytest.fixture
def study(tmp_path: pathlib.Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts a study as a process that leads a group of its own."""
    program = tmp_path / "study.py"
    program.write_text(textwrap.dedent(STUDY))
    started = []

    def start(commands: dict[str, list[str]]) -> subprocess.Popen:
        file = tmp_path / "commands.json"
        file.write_text(json.dumps(commands))
        process = subprocess.Popen(
            [sys.executable, str(program), str(file)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def lines(path: pathlib.Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_a_killed_machine_goes_on_from_the_checkpoint(tmp_path, cell, study):
    commands = {"a": cell("a", 3), "b": cell("b", 200)}
    first = study(commands)
    wait_for(lambda: len(lines(tmp_path / "b" / "updates")) > 5)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = len(lines(tmp_path / "b" / "updates"))
    assert 5 < before < 200
    second = study(commands)
    assert json.loads(second.communicate()[0]) == {"a": 0, "b": 0}
    assert lines(tmp_path / "a" / "starts") == ["start"]
    assert lines(tmp_path / "b" / "starts") == ["start", "start"]
    updates = [int(line) for line in lines(tmp_path / "b" / "updates")]
    # The update that was under way when the kill came may be done twice, no other.
    assert set(updates) == set(range(1, 201))
    assert len(updates) <= 201


def test_a_cell_that_outlives_its_study_is_waited_for(tmp_path, cell, study):
    commands = {"a": cell("a", 100), "b": cell("b", 2)}
    first = study(commands)
    wait_for(lambda: len(lines(tmp_path / "a" / "updates")) > 5)
    first.kill()
    first.wait()
    second = study(commands)
    assert json.loads(second.communicate()[0]) == {"a": 0, "b": 0}
    assert lines(tmp_path / "a" / "starts") == ["start"]
    assert [int(n) for n in lines(tmp_path / "a" / "updates")] == list(range(1, 101))


def test_a_signal_reaches_what_runs_and_nothing_more_starts(tmp_path, cell, study):
    commands = {"a": cell("a", 3000), "b": cell("b", 2)}
    process = study(commands)
    wait_for(lambda: len(lines(tmp_path / "a" / "updates")) > 2)
    process.terminate()
    statuses = json.loads(process.communicate()[0])
    assert statuses["a"] == cells.INTERRUPTED
    assert not (tmp_path / "b").exists()
    assert len(lines(tmp_path / "a" / "updates")) < 3000


def test_a_failure_is_logged_and_keeps_no_other_from_running(tmp_path, cell):
    commands = {"a": cell("a", 1, "--fail=yes"), "b": cell("b", 1)}
    ended: list[tuple[str, int]] = []
    statuses = cells.run_processes(
        commands, 1, lambda *each: ended.append(each), logs=True
    )
    assert statuses == {"a": 1, "b": 0}
    assert ended == [("a", 1), ("b", 0)]
    log = cells.log_of(f"{tmp_path}/a").read_text()
    assert log.splitlines()[-1] == "error: no such thing; do another"
    assert "step by step" in cells.log_of(f"{tmp_path}/b").read_text()


def test_without_logs_a_failure_is_the_last_to_start(tmp_path, cell, capfd):
    commands = {"a": cell("a", 1, "--fail=yes"), "b": cell("b", 1)}
    assert cells.run_processes(commands, 1, lambda *_: None) == {"a": 1}
    assert "error: no such thing" in capfd.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_finished_run_is_not_started(tmp_path, cell):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").write_text('{"finished_step": 3}')
    assert cells.finished_step(f"{tmp_path}/a") == 3
    statuses = cells.run_processes({"a": cell("a", 3)}, 1, lambda *_: None)
    assert statuses == {"a": 0}
    assert not (tmp_path / "a" / "starts").exists()


def test_runs_in_a_bucket_log_on_this_machine():
    log = cells.log_of("gs://bucket/study/a/seed_0")
    assert "://" not in str(log)
    assert str(log).endswith("bucket/study/a/seed_0.log")

# SPDX-License-Identifier: Apache-2.0
"""The cells of a study: training runs that are processes of their own, each done once.

A cell is a command with a workdir of its own. What a finished cell measured is kept in
a JSON file, by the name of the cell, so that the same study goes on after a stop.

A cell that outlives its study, which was killed, is waited for and not started beside
itself: its process holds the lock `WORKDIR.lock` as long as it lives.
"""

import concurrent.futures
import contextlib
import fcntl
import json
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from etils import epath

from vit_jax import metrics
from vit_jax.errors import UserError

INTERRUPTED = 75


def make_command(
    module: str, arguments: Sequence[str], workdir: str, changes: Mapping[str, Any]
) -> list[str]:
    """Returns the command of a cell.

    Args:
      module: `main` or `finetune`.
      arguments: Arguments that all cells share.
      workdir: The cell's own directory.
      changes: Values of fields of the config.
    """
    return [
        *(sys.executable, "-m", f"vit_jax.{module}"),
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

    def keep(name: str, status: int) -> None:
        if status == 0:
            state[name] = last_metrics(workdir_of(left[name]))
            path.parent.mkdir(parents=True, exist_ok=True)
            metrics.write_json(str(path), state)

    statuses = run_processes(left, jobs, keep)
    for name, status in statuses.items():
        if status not in (0, INTERRUPTED):
            raise UserError(
                f"the run {name} in {path.parent} failed with exit status {status}; "
                f"its error is above, its command: {shlex.join(left[name])}"
            )
    return INTERRUPTED if len(statuses) < len(left) or any(statuses.values()) else None


def run_processes(
    commands: Mapping[str, Sequence[str]],
    jobs: int,
    ended: Callable[[str, int], None],
    *,
    logs: bool = False,
) -> dict[str, int]:
    """Runs commands, each unless its run is finished.

    SIGTERM and SIGINT are passed on to what runs, which stops after a checkpoint; then
    nothing more is started.

    Args:
      commands: The command of each cell by its name.
      jobs: Cells at a time.
      ended: Called with the name and the exit status of each cell that ended.
      logs: Whether each cell writes into a file, `log_of` its workdir; cells are then
        independent: one that fails does not keep others from starting.

    Returns:
      The exit status of each cell that ended; the others were not started.
    """
    processes, statuses = _Processes(logs), dict[str, int]()
    with processes.passing_signals(), concurrent.futures.ThreadPoolExecutor(jobs) as p:
        running = {p.submit(processes.run, n, cmd): n for n, cmd in commands.items()}
        for future in concurrent.futures.as_completed(running):
            name, status = running[future], future.result()
            if status is not None:
                statuses[name] = status
                ended(name, status)
    return statuses


def last_metrics(workdir: str) -> dict[str, Any]:
    """Returns the last value of every metric of an evaluator, and the last step."""
    result: dict[str, Any] = {}
    for line in metrics.read_metrics(workdir):
        result |= {k: v for k, v in line.items() if not k.startswith("train/")}
    result.pop("time", None)
    return result


def finished_step(workdir: str) -> int | None:
    """Returns the last step of a run that came to its end; None of any other."""
    try:
        return load(epath.Path(workdir) / "run.json").get("finished_step")
    except ValueError:  # not written by us
        return None


def log_of(workdir: str) -> pathlib.Path:
    """Returns the file that what a cell says is written into, a local one always."""
    scheme, _, place = workdir.rpartition("://")
    folder = pathlib.Path(tempfile.gettempdir(), "vit_jax") if scheme else ""
    return pathlib.Path(folder, f"{place}.log")


def workdir_of(command: Sequence[str]) -> str:
    """Returns the workdir in the command of a cell."""
    (flag,) = [each for each in command if each.startswith("--workdir=")]
    return flag.removeprefix("--workdir=")


class _Processes:
    """The processes of the cells that run now."""

    def __init__(self, logs: bool) -> None:
        self._logs = logs
        self._stopped = False  # by a signal
        self._closed = False  # nothing more starts
        self._running: list[subprocess.Popen[Any]] = []
        self._starting = threading.Lock()

    def run(self, name: str, command: Sequence[str]) -> int | None:
        """Runs one command in its turn.

        Returns:
          The exit status, or None if it was not started.
        """
        workdir = workdir_of(command)
        with self._alone(workdir) as lock:
            if self._closed:
                return None
            if finished_step(workdir) is not None:
                return 0
            status = self._run(name, command, lock)
            # Here, as the thread goes on to the next command at once.
            if status == INTERRUPTED or (status and not self._logs):
                self._closed = True
            return status

    def _run(self, name: str, command: Sequence[str], lock: int | None) -> int | None:
        with contextlib.ExitStack() as stack:
            settings: dict[str, Any] = {"pass_fds": () if lock is None else (lock,)}
            if self._logs:
                log = log_of(workdir_of(command))
                log.parent.mkdir(parents=True, exist_ok=True)
                settings["stdout"] = stack.enter_context(log.open("ab"))
                settings["stderr"] = subprocess.STDOUT
                logging.info("start %s; it writes into %s", name, log)
            else:
                logging.info("run: %s", shlex.join(command))
            with self._starting:
                if self._closed:
                    return None
                process = subprocess.Popen(command, **settings)
                self._running.append(process)
            status = process.wait()
            self._running.remove(process)
        return INTERRUPTED if self._stopped and status else status

    @contextlib.contextmanager
    def _alone(self, workdir: str) -> Iterator[int | None]:
        """Waits for other processes in a local directory; yields the lock's number."""
        if "://" in workdir:
            yield None
            return
        path = pathlib.Path(f"{workdir}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        told = False
        with path.open("w") as file:
            while not self._closed:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not told:
                        logging.info("waiting for the process that runs in %s", workdir)
                    told = True
                    time.sleep(0.2)
                else:
                    break
            yield file.fileno()

    @contextlib.contextmanager
    def passing_signals(self) -> Iterator[None]:
        """Passes SIGTERM and SIGINT on, as often as they come."""

        def stop(number: int, frame: Any) -> None:
            del frame
            logging.info(
                "%s: stopping what runs after a checkpoint; again to stop at once",
                signal.Signals(number).name,
            )
            self._stopped = self._closed = True
            with self._starting:
                for process in tuple(self._running):
                    process.terminate()

        before = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

# SPDX-License-Identifier: Apache-2.0
"""Trains tests/train/resume_config.py in several processes, for test_distributed.py.

Each line of the standard input is a job, such as
{"processes": 2, "flags": ["--workdir=DIR"], "log": "FILE", "process": 1, "step": 3,
"what": "term", "environment": {}}: after update 3, process 1 does what `what` says, and
each step takes half a second. With "blind": [1], "unreadable": [8], process 1 cannot
read the checkpoint of step 8. Each line of the output is the list of exit statuses, the
first process first. FILE.0, FILE.1 and so on get what the processes write,
DIR/batches.jsonl the sums of each global batch.
The processes are forks of this one, as to import takes longer than to train.
"""

import dataclasses
import json
import os
import pathlib
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import process_allgather as gather

from vit_jax import build, command, main, record  # noqa: F401 - imported before a fork
from vit_jax.errors import UserError
from vit_jax.train import loop

CONFIG = str(pathlib.Path(__file__).parent / "train" / "resume_config.py")
train = loop.train


def act(what: str) -> None:
    """Does what a job asks of one of its processes."""
    if what in ("term", "int", "kill"):
        os.kill(os.getpid(), getattr(signal, f"SIG{what.upper()}"))
    elif what == "mistake":
        raise UserError("a broken image in photo.jpg; mend the data set")
    elif what == "bug":
        raise RuntimeError("a bug that nobody has found")
    elif what == "sleep":
        time.sleep(1000)


def watched_train(job: dict, workdir: pathlib.Path) -> Callable[..., Any]:
    """Returns the loop, with sums of what it is fed and a deed after a step."""

    def train_run(run: loop.Run, *args: Any) -> Any:
        done = int(run.state.step)

        def update(state: Any, batch: dict) -> Any:
            nonlocal done
            if jax.process_index() == job.get("process") and done == job.get("step"):
                act(job["what"])
            if "what" in job:
                time.sleep(0.5)
            with jax.transfer_guard("allow"):
                images = gather(batch["image"], tiled=True)
            if jax.process_index() == 0:
                with (workdir / "batches.jsonl").open("a") as file:
                    sums = images.astype(np.float64).sum(axis=(1, 2, 3)).tolist()
                    file.write(json.dumps({"step": done, "sums": sums}) + "\n")
            done += 1
            return run.update(state, batch)

        return train(dataclasses.replace(run, update=update), *args)

    return train_run


def work(job: dict, number: int, port: int) -> None:
    log = os.open(f"{job['log']}.{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(job.get("environment", {}))
    flags = [f"--config={CONFIG}", *job["flags"]]
    if job["processes"] > 1:
        flags += [
            f"--coordinator_address=localhost:{port}",
            f"--num_processes={job['processes']}",
            f"--process_id={number}",
        ]
    sys.argv = ["main", *flags]
    (workdir,) = [f.partition("=")[2] for f in flags if f.startswith("--workdir=")]
    loop.train = watched_train(job, pathlib.Path(workdir))
    if number in job.get("blind", ()):
        close_eyes(job["unreadable"])
    command.run(main.main, main.__doc__, main.FLAGS, trains=True)


def close_eyes(steps: list[int]) -> None:
    """Makes checkpoints unreadable for this process, as of a host with a bad mount."""
    restore = ocp.StandardCheckpointHandler.restore

    def refuse(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        if int(path.name) in steps:
            raise OSError(f"cannot read {path.name}")
        return restore(self, path, *args, **kwargs)

    ocp.StandardCheckpointHandler.restore = refuse


def start(job: dict, number: int, port: int) -> int:
    """Forks a process of a job; JAX has not started in this one."""
    if child := os.fork():
        return child
    try:
        work(job, number, port)
    except SystemExit as err:
        status = err.code
    except BaseException:  # noqa: BLE001 - it must not return into the fork's parent
        traceback.print_exc()
        status = 1
    jax._src.api.clean_up()
    sys.stderr.flush()
    os._exit(int(status or 0))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return sock.getsockname()[1]


for line in sys.stdin:
    job, port = json.loads(line), free_port()
    children = [start(job, number, port) for number in range(job["processes"])]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.stdout.write(json.dumps(list(map(os.waitstatus_to_exitcode, statuses))) + "\n")
    sys.stdout.flush()

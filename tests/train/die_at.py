# SPDX-License-Identifier: Apache-2.0
"""Trains tests/train/resume_config.py and dies without warning at a chosen moment.

Each line of the standard input is a job, such as
{"workdir": "DIR", "moment": "save", "step": 5, "environment": {}}, and each line of the
output its exit status. A job is a process of its own, which shares with the others
nothing but what is imported: that takes longer than to train.
"""

import json
import os
import pathlib
import signal
import sys
import traceback
from typing import Any

from vit_jax import build, config as config_lib, metrics
from vit_jax.checkpoints.train_state import TrainCheckpoints
from vit_jax.train import loop

CONFIG = str(pathlib.Path(__file__).with_name("resume_config.py"))
save, write = TrainCheckpoints.save, metrics.MetricWriter.write


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train(workdir: str, moment: str, last: int) -> None:
    def die_in_save(self: TrainCheckpoints, step: int, state: Any) -> None:
        save(self, step, state)
        if step == last:
            temporary = list((pathlib.Path(workdir) / "checkpoints").glob("*tmp*"))
            assert temporary, "the save was finished before it could be interrupted"
            die()

    def die_in_write(self: metrics.MetricWriter, step: int, line: dict) -> None:
        if step == last:
            self._file.write(f'{{"step": {step}, "train/lo')
            self._file.flush()
            die()
        write(self, step, line)

    if moment == "save":
        TrainCheckpoints.save = die_in_save
    if moment == "write":
        metrics.MetricWriter.write = die_in_write

    with build.build_run(build.make_blueprint(config_lib.load(CONFIG)), workdir) as run:
        done = int(run.state.step)

        def after_update() -> bool:
            nonlocal done
            done += 1
            if moment == "update" and done == last:
                die()
            return False

        loop.train(run, after_update)


def work(job: dict) -> int:
    """Does a job in a fork of this process, in which JAX has not started yet."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        os.environ.update(job["environment"])
        train(job["workdir"], job["moment"], job["step"])
        status = 0
    finally:
        if status:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)


for line in sys.stdin:
    sys.stdout.write(f"{work(json.loads(line))}\n")
    sys.stdout.flush()

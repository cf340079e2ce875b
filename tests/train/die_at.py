# SPDX-License-Identifier: Apache-2.0
"""Trains tests/train/resume_config.py and dies without warning at a chosen moment.

python tests/train/die_at.py WORKDIR [MOMENT STEP]
"""

import os
import pathlib
import signal
import sys
from typing import Any

from vit_jax import build, config as config_lib, metrics
from vit_jax.checkpoints.train_state import TrainCheckpoints
from vit_jax.train import loop

WORKDIR = sys.argv[1]
MOMENT, STEP = (sys.argv[2], int(sys.argv[3])) if len(sys.argv) > 2 else ("", -1)
CONFIG = str(pathlib.Path(__file__).with_name("resume_config.py"))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_save(self: TrainCheckpoints, step: int, state: Any) -> None:
    save(self, step, state)
    if step == STEP:
        temporary = list((pathlib.Path(WORKDIR) / "checkpoints").glob("*tmp*"))
        assert temporary, "the save was finished before it could be interrupted"
        die()


def die_in_write(self: metrics.MetricWriter, step: int, line: dict) -> None:
    if step == STEP:
        self._file.write(f'{{"step": {step}, "train/lo')
        self._file.flush()
        die()
    write(self, step, line)


save, write = TrainCheckpoints.save, metrics.MetricWriter.write
if MOMENT == "save":
    TrainCheckpoints.save = die_in_save
if MOMENT == "write":
    metrics.MetricWriter.write = die_in_write

with build.build_run(build.make_blueprint(config_lib.load(CONFIG)), WORKDIR) as run:
    done = int(run.state.step)

    def after_update() -> bool:
        global done
        done += 1
        if MOMENT == "update" and done == STEP:
            die()
        return False

    loop.train(run, after_update)

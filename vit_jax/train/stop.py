# SPDX-License-Identifier: Apache-2.0
"""Stopping a run from outside without losing work."""

import os
import signal
from types import FrameType

from absl import logging


class StopRequest:
    """Remembers that SIGTERM or SIGINT came, for the loop to see between two steps.

    A second signal of the same kind ends the process at once.

    Of several processes, one that gets a signal is enough: all are told to stop after
    the same step. JAX takes SIGTERM over in `jax.distributed.initialize`, spreads the
    news and finds a step that no process has begun; the steps themselves carry
    nothing, so that they cost nothing.
    """

    def __init__(self) -> None:
        """Takes over the two signals."""
        self.requested = False
        self._asked = 0
        self._passed_on = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def __call__(self) -> bool:
        """Returns whether to stop; asked by every process after each of its steps."""
        # Imported here: a signal may come before JAX is imported.
        import jax
        from jax.experimental import multihost_utils

        if jax.process_count() == 1:
            return self.requested
        if self.requested and not self._passed_on:
            self._passed_on = True
            os.kill(os.getpid(), signal.SIGTERM)
        self._asked += 1
        stop = multihost_utils.reached_preemption_sync_point(self._asked)
        if stop:
            logging.info("a process was told to stop: stopping after a checkpoint")
        return stop

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.requested = True
        signal.signal(number, signal.SIG_DFL)
        name = signal.Signals(number).name
        logging.info("%s: stopping after a checkpoint; again to stop at once", name)

# SPDX-License-Identifier: Apache-2.0
"""Stopping a run from outside without losing work."""

import signal
from types import FrameType

from absl import logging


class StopRequest:
    """Remembers that SIGTERM or SIGINT came, for the loop to see between two steps.

    A second signal of the same kind ends the process at once.
    """

    def __init__(self) -> None:
        """Takes over the two signals."""
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.requested = True
        signal.signal(number, signal.SIG_DFL)
        name = signal.Signals(number).name
        logging.info("%s: stopping after a checkpoint; again to stop at once", name)

# SPDX-License-Identifier: Apache-2.0
"""Ending a run that hangs, with a look at where it does."""

import faulthandler
import sys
import threading
from types import TracebackType
from typing import Any

import jax

from vit_jax import distributed
from vit_jax.errors import UserError

SEVERAL_PROCESSES_SECONDS = 1800.0
"""Without a setting, for a run of several processes; one alone is not watched."""


def check_seconds(given: Any) -> float | None:
    """Returns how long a step or an evaluation may take; None for as long as it likes.

    Args:
      given: `config.watchdog_seconds`: None for the default, 0 for no watchdog.

    Raises:
      UserError: It is no such number.
    """
    if given is None:
        return SEVERAL_PROCESSES_SECONDS if jax.process_count() > 1 else None
    if isinstance(given, bool) or not isinstance(given, int | float) or given < 0:
        raise UserError(
            f"config.watchdog_seconds={given!r} must be a number of seconds, such as "
            "1800, or 0 for no watchdog"
        )
    return float(given) or None


class Watchdog:
    """Ends all processes when nothing has ended here for some time.

    It prints where each thread stands, for whoever looks for the cause, and leaves
    with status 70, for whoever starts the run again.
    """

    def __init__(self, seconds: float | None):
        """Does nothing yet.

        Args:
          seconds: How long a step or an evaluation may take; None: no watchdog.
        """
        self._seconds = seconds
        self._alive, self._left = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        """Begins to watch; the first step is given its time from here."""
        if self._seconds is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops to watch."""
        self._left = True
        self._alive.set()

    def alive(self) -> None:
        """Is called when something has ended."""
        self._alive.set()

    def _watch(self) -> None:
        while self._alive.wait(self._seconds):
            if self._left:
                return
            self._alive.clear()
        why = f"no step or evaluation has ended for {self._seconds:g} s"
        sys.stderr.write(f"error: {why}; this is where the threads are:\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        distributed.end_all(distributed.FAILED, why)

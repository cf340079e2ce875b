# SPDX-License-Identifier: Apache-2.0
"""Times of calls, and what a line says of them."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any


def time_calls(call: Callable[[], Any], count: int) -> tuple[float, list[float]]:
    """Calls a function again and again.

    Args:
      call: The function.
      count: How often to call it after the first time.

    Returns:
      The seconds of the first call, and of each of the calls after it.
    """
    seconds = []
    for _ in range(1 + count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1:]


def rate(seconds: Sequence[float], batch_size: int) -> dict[str, Any]:
    """Describes timed steps; the rate is that of all of them together."""
    return {
        "batch_size": batch_size,
        "steps": len(seconds),
        "images_per_second": round(len(seconds) * batch_size / sum(seconds), 2),
        "median_step_ms": round(1000 * statistics.median(seconds), 2),
    }

# SPDX-License-Identifier: Apache-2.0
"""Where the numbers of a run go: `metrics.jsonl`, TensorBoard, and one progress line.

Only the first process writes. Averaging over examples is not done here: evaluators
yield finished numbers, and a training line holds the measurements of its own step, so
that a resumed run writes the very same numbers.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
from absl import logging
from etils import epath


class MetricWriter:
    """Appends metrics to `metrics.jsonl` and to TensorBoard's event file.

    Attributes:
      restored: The metrics that the file held for `first_step`.
      lines: All that the file holds, in the order of writing.
    """

    def __init__(self, workdir: str, first_step: int):
        """Opens the files of a run that starts or goes on after `first_step`.

        Lines of later steps, which a killed run wrote after its last checkpoint, are
        dropped: the run is about to write them again.
        """
        self._path = epath.Path(workdir) / "metrics.jsonl"
        self._events = None
        lines = self.lines = read_metrics(workdir, until=first_step)
        self.restored: dict[str, Any] = {}
        for line in lines:
            if line["step"] == first_step:
                self.restored |= line
        if jax.process_index() == 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(json.dumps(line) + "\n" for line in lines)
            _replace(self._path, text)
            self._file = self._path.open("a")
            # Imported here: clu's writers import TensorFlow, which takes seconds.
            from clu import metric_writers

            self._events = metric_writers.SummaryWriter(workdir)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics of a step, a rate being a fraction of 1."""
        line = {"step": step, "time": round(time.time(), 3), **metrics}
        self.lines.append(line)
        if self._events is None:
            return
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self._events.write_scalars(step, dict(metrics))

    def close(self) -> None:
        """Flushes and closes the files."""
        if self._events is not None:
            self._file.close()
            self._events.close()


def read_metrics(workdir: str, until: int | None = None) -> list[dict[str, Any]]:
    """Returns the lines of `metrics.jsonl`, those of steps up to `until`.

    A line that a killed process left unfinished is left out.
    """
    path = epath.Path(workdir) / "metrics.jsonl"
    lines = []
    for text in path.read_text().splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if until is None or line["step"] <= until:
            lines.append(line)
    return lines


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Writes a JSON file so that a reader sees the old or the new one, never half."""
    _replace(epath.Path(path), json.dumps(content, indent=2) + "\n")


def _replace(path: epath.Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


class Clock:
    """Time spent in updates since the last look, without what `pause` covers."""

    def __init__(self) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()
        self._paused = 0.0
        self._pause_start = 0.0

    def __enter__(self) -> None:
        """Begins a pause, such as an evaluation."""
        self._pause_start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        """Ends the pause."""
        self._paused += time.perf_counter() - self._pause_start

    def lap(self) -> float:
        """Returns the seconds since the last lap and starts the next one."""
        now = time.perf_counter()
        seconds = now - self._start - self._paused
        self._start, self._paused = now, 0.0
        return max(seconds, 1e-9)


class Progress:
    """One progress line: live on a terminal, a line for each logged step in a file."""

    def __init__(self, first_step: int, total_steps: int):
        """Starts at `first_step`; only the first process shows anything."""
        self._total = total_steps
        self._first = first_step
        self._start = time.monotonic()
        self._shown = 0.0
        self._metrics = ""
        self._live = sys.stderr.isatty()
        self._silent = jax.process_index() != 0

    def log(self, step: int, loss: float, lr: float, images_per_second: float) -> None:
        """Shows the numbers of a logged step."""
        self._metrics = (
            f"loss {loss:.4f}  lr {lr:.3g}  {images_per_second:,.0f} images/s"
        )
        if not self._live and not self._silent:
            logging.info("%s", self._line(step))

    def tick(self, step: int) -> None:
        """Refreshes the live line after an update, at most five times a second."""
        now = time.monotonic()
        if self._live and not self._silent and now - self._shown > 0.2:
            self._shown = now
            filled = round(20 * step / max(self._total, 1))
            bar = "█" * filled + "░" * (20 - filled)
            # A line that wraps could not be written over.
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\033[K{f'{bar} {self._line(step)}'[:width]}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Takes the live line away so that a log line can be written."""
        if self._live and not self._silent:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def _line(self, step: int) -> str:
        done = step - self._first
        left = self._total - step
        seconds = (time.monotonic() - self._start) / max(done, 1) * left
        percent = 100 * step / max(self._total, 1)
        parts = [f"{percent:5.1f} %", f"step {step:,}/{self._total:,}", self._metrics]
        return "  ".join([*filter(None, parts), f"ETA {duration(seconds)}"])


def duration(seconds: float) -> str:
    """Returns a duration for people.

    Example:
      >>> duration(75), duration(7265)
      ('1m15s', '2h01m')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"

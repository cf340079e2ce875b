# SPDX-License-Identifier: Apache-2.0
"""Ending a run when a metric has stopped to improve."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.errors import UserError, unknown


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """When a run ends early, and which of its checkpoints is the best.

    All is computed from the metrics that were written, so a resumed run decides as an
    uninterrupted one.

    Attributes:
      metric: Such as "val/top1" or "val_ema/loss".
      patience: Evaluations without improvement after which the run ends; None never
        ends it, and only the best checkpoint is kept.
      mode: Whether the "max" or the "min" of the metric is best; None takes "min" for
        a loss or an error, "max" otherwise.
      min_delta: Improvements up to this do not count.
    """

    metric: str
    patience: int | None = None
    mode: str | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in (None, "max", "min"):
            raise UserError(
                f"early_stopping.mode={self.mode!r} must be 'max', 'min' or None"
            )
        if self.patience is not None and self.patience < 1:
            raise UserError(
                f"early_stopping.patience={self.patience} must be at least 1, or None "
                "never to stop"
            )

    def best(self, lines: Iterable[Mapping[str, Any]]) -> tuple[int | None, int]:
        """Looks at the metrics of a run so far.

        Args:
          lines: Lines of `metrics.jsonl`, in the order in which they were written.

        Returns:
          The step of the best evaluation, None before the first, and how many
          evaluations without improvement have followed.

        Raises:
          UserError: The evaluator writes other metrics, but not this one.
        """
        smaller = self.mode == "min" or (
            self.mode is None and self.metric.endswith(("loss", "rmse", "mae", "ece"))
        )
        best, best_step, since = -math.inf, None, 0
        evaluator = self.metric.partition("/")[0] + "/"
        for line in lines:
            if self.metric not in line:
                written = sorted(name for name in line if name.startswith(evaluator))
                if written:
                    raise unknown("metric in early_stopping", self.metric, written)
                continue
            value = -line[self.metric] if smaller else line[self.metric]
            if value > best + (self.min_delta if best_step is not None else 0.0):
                best, best_step, since = value, int(line["step"]), 0
            else:
                since += 1
        return best_step, since

# SPDX-License-Identifier: Apache-2.0
"""Learning rates as pure functions of the number of updates already done.

`schedule(s)` is the rate of update s + 1, so with a warm-up the first update has rate
0 (the convention of Google's ViT code). A Python or NumPy number is answered by NumPy,
without touching a device; a JAX array or tracer by JAX. Both agree to float32.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.errors import UserError, unknown

Schedule = Callable[[Any], Any]

NAMES = ("constant", "cosine", "linear", "rsqrt")


def build_schedule(
    name: str,
    *,
    lr: float,
    total_steps: int,
    warmup_steps: int = 0,
    cooldown_steps: int = 0,
    linear_end: float | None = None,
    timescale: float | None = None,
) -> Schedule:
    """Builds the learning rate as a function of the step.

    With t = step - warmup_steps, never below 0, and
    progress = min(1, t / (total_steps - warmup_steps)):

    - `constant`: lr
    - `cosine`: lr * (1 + cos(pi * progress)) / 2
    - `linear`: linear_end + (lr - linear_end) * (1 - progress)
    - `rsqrt`: lr / sqrt(1 + t / timescale), Zhai et al., arXiv:2106.04560 section 3.5

    each times min(1, step / warmup_steps) and, with a cool-down, times
    min(1, (total_steps - step) / cooldown_steps). A warm-up as long as the run or
    longer is allowed; the run then ends before or at the peak.

    Args:
      name: One of `NAMES`.
      lr: The peak.
      total_steps: Updates of the whole run; later steps keep the last value.
      warmup_steps: Updates over which the rate rises linearly from 0.
      cooldown_steps: Updates at the end over which the rate falls linearly to 0 on
        top of its curve; meant for `rsqrt` and `constant`.
      linear_end: The rate that `linear` ends at, not relative to `lr`; None is 0.
        Google's ViT code ends at 1e-5.
      timescale: Steps after which `rsqrt` has fallen by sqrt(2); None is 10 000.

    Returns:
      A function from a step to a rate.

    Raises:
      UserError: An unknown name, a negative number, or an option of another schedule.

    Example:
      >>> schedule = build_schedule("cosine", lr=1.0, total_steps=100, warmup_steps=10)
      >>> [round(float(schedule(step)), 4) for step in (0, 5, 10, 55, 100)]
      [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    _check(name, linear_end=linear_end, timescale=timescale)
    for what, value in {
        "lr": lr,
        "total_steps": total_steps,
        "warmup_steps": warmup_steps,
        "cooldown_steps": cooldown_steps,
        "linear_end": linear_end or 0.0,
    }.items():
        if value < 0:
            raise UserError(f"{what} is {value}; use a number that is 0 or more")
    if timescale is not None and timescale <= 0:
        raise UserError(f"timescale is {timescale}; use a number of steps above 0")
    curve = _curve(name, lr, linear_end or 0.0, timescale or 10_000.0)

    def schedule(step: Any) -> Any:
        xp: Any = jnp if isinstance(step, jax.Array) else np
        step = xp.minimum(xp.asarray(step, dtype=xp.float32), float(total_steps))
        t = xp.maximum(0.0, step - float(warmup_steps))
        progress = xp.minimum(1.0, t / max(1, total_steps - warmup_steps))
        rate = curve(xp, t, progress)
        if warmup_steps:
            rate = rate * xp.minimum(1.0, step / warmup_steps)
        if cooldown_steps:
            rate = rate * xp.minimum(1.0, (total_steps - step) / cooldown_steps)
        return rate

    return schedule


def _curve(
    name: str, lr: float, linear_end: float, timescale: float
) -> Callable[[Any, Any, Any], Any]:
    """Returns the part of the formula that the name decides."""
    if name == "cosine":
        return lambda xp, t, progress: lr * 0.5 * (1.0 + xp.cos(np.pi * progress))
    if name == "linear":
        return lambda xp, t, progress: linear_end + (lr - linear_end) * (1.0 - progress)
    if name == "rsqrt":
        return lambda xp, t, progress: lr / xp.sqrt(1.0 + t / timescale)
    return lambda xp, t, progress: lr * xp.ones_like(progress)


def _check(name: str, **options: float | None) -> None:
    if name not in NAMES:
        raise unknown("schedule", name, NAMES)
    owners = {"linear_end": "linear", "timescale": "rsqrt"}
    for option, value in options.items():
        if value is not None and owners[option] != name:
            raise UserError(
                f"{option} belongs to schedule {owners[option]!r}, and the schedule is "
                f"{name!r}; leave {option} out or change the schedule"
            )

# SPDX-License-Identifier: Apache-2.0
"""Taking the sections of a config apart: single fields and durations."""

from collections.abc import Mapping
from typing import Any

from vit_jax.config import UNITS, steps
from vit_jax.data.feed import TrainFeed
from vit_jax.errors import UserError
from vit_jax.train.loop import Schedule


def take(fields: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """Returns the fields without `names`, and the values of `names` (None if unset)."""
    rest = {key: value for key, value in fields.items() if key not in names}
    return rest, *(fields.get(name) for name in names)


def take_steps(
    fields: Mapping[str, Any], name: str, data: TrainFeed, total: int | None
) -> tuple[dict[str, Any], int | None]:
    """Returns the fields without the duration `name`, and that duration in steps."""
    units = {f"{name}_{unit}" for unit in UNITS}
    rest = {key: value for key, value in fields.items() if key not in units}
    return rest, steps_of(fields, name, data, total)


def steps_of(
    fields: Mapping[str, Any], name: str, data: TrainFeed, total: int | None
) -> int | None:
    """Returns a duration in steps; None where no unit of it is set."""
    return steps(
        name,
        fields,
        batch_size=data.batch_size,
        num_examples=len(data.source),
        total_steps=total,
    )


def schedule(fields: Mapping[str, Any], data: TrainFeed) -> Schedule:
    """Returns length and cadences of a run.

    Raises:
      UserError: The length is missing.
    """
    total = steps_of(fields, "total", data, None)
    if total is None:
        raise UserError(
            "config.total_steps (or _epochs, _examples) is missing; say how long to "
            "train, such as --config.total_steps=1000"
        )
    return Schedule(
        total=total,
        log=steps_of(fields, "log", data, total) or 50,
        checkpoint=steps_of(fields, "checkpoint", data, total),
        profile=fields.get("profile_steps"),
    )

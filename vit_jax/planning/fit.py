# SPDX-License-Identifier: Apache-2.0
"""What to change in a config whose step does not fit, in the order of what it costs.

Accumulating gradients costs a little time, computing blocks again a third more
operations, splitting the parameters collectives; none of them changes what is learned.
"""

from collections.abc import Iterator
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from vit_jax.planning.plan import Plan, make_plan
from vit_jax.tpu.compiler import OutOfMemoryError, Slice

Changes = dict[str, Any]


def candidates(plan: Plan) -> Iterator[Changes]:
    """Yields changes to try, the cheapest first.

    Args:
      plan: Of the config as it is, which does not fit.
    """
    images = plan.batch_size // (plan.cores // plan.mesh["tensor"])
    powers = [2**i for i in range(1, images.bit_length()) if 2**i <= images]
    if not isinstance(plan.cost, OutOfMemoryError):
        return
    if plan.state_bytes < plan.cost.available:
        for steps in powers:
            # What the step keeps shrinks to a part; the state does not.
            least = plan.state_bytes + (plan.cost.used - plan.state_bytes) / steps
            if least < plan.cost.available:
                yield {"optimizer.accumulation_steps": steps}
        yield {"mesh.remat": "dots"}
        yield {"mesh.remat": "full"}
        for steps in powers:
            yield {"mesh.remat": "full", "optimizer.accumulation_steps": steps}
    for fsdp in (8, 32, 128, 512):
        if plan.cores % (fsdp * plan.mesh["tensor"]) == 0:
            yield {"mesh.data": -1, "mesh.fsdp": fsdp}
            yield {"mesh.data": -1, "mesh.fsdp": fsdp, "mesh.remat": "full"}


def find_fitting(config: ConfigDict, slice_: Slice, plan: Plan) -> Plan:
    """Changes a config until its step fits.

    Args:
      config: The config.
      slice_: What to compile for.
      plan: Of the config as it is.

    Returns:
      The first plan that fits, or the last that does not.
    """
    if plan.fits:
        return plan
    for changes in candidates(plan):
        logging.info("does not fit: %s; trying %s", plan.cost, as_flags(changes))
        plan = make_plan(config, slice_, changes)
        if plan.fits:
            break
    return plan


def as_flags(changes: Changes) -> str:
    """Returns changes as one writes them on the command line."""
    return " ".join(f"--config.{key}={value}" for key, value in changes.items())

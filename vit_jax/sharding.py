# SPDX-License-Identifier: Apache-2.0
"""One device mesh with the axes `data`, `fsdp` and `tensor`, and who lies where on it.

A batch is split over `data` and `fsdp` together. A parameter lies as the first rule
whose pattern matches its name says; without rules every device holds all of them.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax import trees
from vit_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

Rules = Sequence[tuple[str, Sequence[str | None]]]
REPLICATED: Rules = ((".*", ()),)


def make_mesh(
    *,
    data: int = -1,
    fsdp: int = 1,
    tensor: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Lays the devices out as a mesh.

    Args:
      data: Devices along the axis of plain data parallelism; -1 takes what is left.
      fsdp: Devices along the axis that splits the batch and may split parameters.
      tensor: Devices along the axis that splits single layers.
      devices: All devices of all processes by default.

    Raises:
      UserError: The sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [data, fsdp, tensor]
    if any(size != -1 and size < 1 for size in sizes) or sizes.count(-1) > 1:
        raise UserError(
            f"config.mesh data={data}, fsdp={fsdp}, tensor={tensor}: sizes must be "
            "positive, and at most one of them -1 for 'what is left'"
        )
    if -1 in sizes:
        rest = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = max(len(devices) // rest, 1)
    if math.prod(sizes) != len(devices):
        raise UserError(
            f"config.mesh {dict(zip(AXES, sizes, strict=True))} needs "
            f"{math.prod(sizes)} devices, but there are {len(devices)}; choose sizes "
            f"whose product is {len(devices)}"
        )
    return Mesh(np.asarray(devices).reshape(sizes), AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns where a batch lies: its first axis over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def batch_parts(mesh: Mesh) -> int:
    """Returns into how many parts a batch is split."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of what every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def tree_shardings(tree: Any, mesh: Mesh, rules: Rules = REPLICATED) -> Any:
    """Gives each leaf of a tree its sharding.

    Args:
      tree: A state or any part of it; moments and averages end in the same names as
        the parameters, so that one rule `.*NAME` serves them all.
      mesh: The device mesh.
      rules: Pairs of a regular expression for the whole slash-joined name and the
        mesh axis (or None) of each array axis.

    Raises:
      UserError: An axis that the mesh lacks, or a leaf that no rule matches.
    """
    for pattern, spec in rules:
        for axis in spec:
            if axis is not None and axis not in AXES:
                raise UserError(
                    f"config.mesh.rules: {pattern!r} names the axis {axis!r}; allowed "
                    f"are {', '.join(AXES)} and None"
                )
    wrapped = [(p, NamedSharding(mesh, PartitionSpec(*spec))) for p, spec in rules]
    return trees.match_rules(tree, wrapped, "sharding")


def check_batch_size(batch_size: Any, mesh: Mesh, what: str) -> None:
    """Checks that the devices can share a batch evenly.

    Raises:
      UserError: They cannot; the text names the nearest sizes that can be shared.
    """
    parts = batch_parts(mesh)
    if isinstance(batch_size, bool) or not isinstance(batch_size, int):
        raise UserError(f"{what}={batch_size!r} must be a whole number of images")
    if batch_size < 1 or batch_size % parts:
        above = max(math.ceil(batch_size / parts), 1) * parts
        below = above - parts
        nearest = f"{below} or {above}" if below >= parts else str(above)
        raise UserError(
            f"{what}={batch_size} is not divisible by {parts} devices; use a multiple "
            f"of {parts}, such as {nearest}"
        )

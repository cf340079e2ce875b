# SPDX-License-Identifier: Apache-2.0
"""The device mesh, and how a batch is split over it."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")


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
      fsdp: Devices along the axis that splits the batch and the parameters too.
      tensor: Devices along the axis that splits single layers.
      devices: All devices of all processes by default. Those of a process come next to
        each other, so that its part of a batch is one slice.

    Raises:
      UserError: The sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    devices = sorted(devices, key=lambda device: device.process_index)
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


def process_part(mesh: Mesh) -> tuple[int, int]:
    """Returns which part of a batch this process holds: its number, of how many.

    Processes that share a layer (axis `tensor`) hold the same part.

    Raises:
      UserError: The devices of this process hold no such part.
    """
    parts = batch_parts(mesh)
    places = batch_sharding(mesh).addressable_devices_indices_map((parts,))
    held = sorted({(index[0].start or 0) for index in places.values() if index})
    size = len(held)
    first = held[0] if held else 0
    whole = size and not (parts % size or first % size)
    if not whole or held != list(range(first, first + size)):
        raise UserError(
            f"process {jax.process_index()} has {size} of the {parts} parts of a batch "
            f"in {batch_sharding(mesh)}; choose config.mesh so that the devices of a "
            "process lie next to each other"
        )
    return first // size, parts // size


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of what every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def on_tpu(mesh: Mesh) -> bool:
    """Returns whether the devices are TPUs, present or only compiled for."""
    return mesh.devices.flat[0].platform == "tpu"


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

# SPDX-License-Identifier: Apache-2.0
"""How a kernel is run: each device computes its part of the batch and of the heads.

The compiler does not split a kernel over devices. Which parts there are is written in
the types of the arrays.
"""

import math
from collections.abc import Callable

import jax
from jax.sharding import AbstractMesh, PartitionSpec
from jaxtyping import Array, Float

from vit_jax.sharding import AXES, BATCH_AXES

# Their matrix units take no bfloat16 from a kernel, only float32, which they round.
_OLD = ("TPU v2", "TPU v3")


def chip_of(x: Array) -> str:
    """Returns the kind of the devices that `x` lies on, such as "TPU v3"."""
    device = _mesh(x).abstract_device
    return (device or jax.devices()[0]).device_kind


def is_old(x: Array) -> bool:
    """Returns whether kernels must multiply in float32 where `x` lies."""
    return chip_of(x) in _OLD


def on_new_tpus(x: Array) -> bool:
    """Returns whether the types say that `x` lies on TPUs from v4 on."""
    device = _mesh(x).abstract_device
    return device is not None and device.platform == "tpu" and not is_old(x)


def can_split(x: Array) -> bool:
    """Returns whether it is known how `x` is split over devices, if it is."""
    mesh = _mesh(x)
    return mesh.empty or (set(mesh.axis_names) <= set(AXES) and mesh.are_all_axes_auto)


def head_parts(x: Array, heads: int) -> int:
    """Returns over how many devices the heads are split."""
    parts = _mesh(x).shape.get("tensor", 1)
    return 1 if heads % parts else parts


def on_each_device(
    run: Callable[..., Array],
    query: Float[Array, "b q *m"],
    key: Float[Array, "b n *m"],
    value: Float[Array, "b n *m"],
    *,
    heads: int,
) -> Float[Array, "b q *m"]:
    """Returns `run(query, key, value)`, of which each device computes its part.

    Args:
      run: Computes the heads that it is given of each example that it is given.
      query: The heads are the third axis, or lie next to one another in it.
      key: The same.
      value: The same.
      heads: Their number.
    """
    mesh = _mesh(query)
    if mesh.empty or not mesh.are_all_axes_auto:
        return run(query, key, value)
    on_heads = "tensor" if head_parts(query, heads) > 1 else None
    spec = PartitionSpec(_batch_axes(mesh, query.shape[0]), None, on_heads)
    # What replicates a result over an axis is not checked: kernels do not tell.
    split = jax.shard_map(
        run, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
    )
    return split(query, key, value)


def _mesh(x: Array) -> AbstractMesh:
    return jax.typeof(x).sharding.mesh


def _batch_axes(mesh: AbstractMesh, batch: int) -> tuple[str, ...] | None:
    """Returns the axes of the mesh that split the examples."""
    axes = tuple(axis for axis in BATCH_AXES if mesh.shape.get(axis, 1) > 1)
    while batch % math.prod(mesh.shape[axis] for axis in axes):
        axes = axes[:-1]
    return axes or None

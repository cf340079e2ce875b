# SPDX-License-Identifier: Apache-2.0
"""softmax(q k^T) v by the kernel for TPUs that comes with JAX.

The kernel ("splash attention", after arXiv:2205.14135) keeps the products of queries
and keys in the fast memory of a core, forward and backward. It takes tokens in blocks
of 128: others are filled up, and belong to a segment of their own that no token of the
image attends to. A kernel is not split over devices by the compiler, so each device
runs it on its part of the batch and of the heads; which parts there are is written in
the types of the arrays.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
    splash_attention_mask as masks,
)
from jax.sharding import AbstractMesh, PartitionSpec
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.sharding import AXES, BATCH_AXES

_LANES = 128
# Their matrix units do not take the kernel's products in bfloat16.
_OLD = ("TPU v2", "TPU v3")
# From how many tokens on `auto` takes the kernel.
_LONG = 512
# The most bytes of the tokens of a block, if a token were one number, and the most keys
# of a block that meet all its queries at once: what the kernel keeps of them has to fit
# into the fast memory of v4 and v5e, 16 MB.
_BLOCK = 3072
_STEP = 768


def flash(
    query: Float[Array, "b q m e"],
    key: Float[Array, "b n m e"],
    value: Float[Array, "b n m e"],
    *,
    interpret: bool = False,
) -> Float[Array, "b q m e"]:
    """Returns the values weighted by attention.

    Args:
      query: The queries, scaled.
      key: The keys.
      value: The values.
      interpret: Whether the kernel is interpreted, on any platform and slowly.
    """
    mesh = _mesh(query)
    run = functools.partial(_run, interpret=interpret)
    if mesh.size == 1 or not mesh.are_all_axes_auto:
        return run(query, key, value)
    spec = PartitionSpec(*_axes(mesh, query.shape[0], query.shape[2]))
    # What replicates a result over an axis is not checked: kernels do not tell.
    split = jax.shard_map(
        run, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
    )
    return split(query, key, value)


def pays(query: Float[Array, "b q m e"], key: Float[Array, "b n m e"]) -> bool:
    """Returns whether the kernel costs less than `compact`, on the arrays' devices.

    It is so for long sequences by the compiler's schedules for v4, see
    `models/README.md`. Arrays that lie on no mesh tell no devices.
    """
    mesh, tokens = _mesh(query), key.shape[1]
    device = mesh.abstract_device
    if device is None or device.platform != "tpu" or device.device_kind in _OLD:
        return False
    known = set(mesh.axis_names) <= set(AXES) and mesh.are_all_axes_auto
    return known and query.shape[1] == tokens and tokens >= _LONG


def check_chip(query: Float[Array, "b q m e"]) -> None:
    """Checks that the kernel runs where the arrays are, if that is on a TPU.

    Raises:
      UserError: The TPU is too old.
    """
    kind = (_mesh(query).abstract_device or jax.devices()[0]).device_kind
    if kind in _OLD:
        raise UserError(
            f"attention='flash' is a kernel for TPUs from v4 on, and this is a {kind}; "
            "use attention='auto'"
        )


def _mesh(x: Array) -> AbstractMesh:
    return jax.typeof(x).sharding.mesh


def _axes(mesh: AbstractMesh, batch: int, heads: int) -> tuple:
    """Returns the axes of the mesh that split (batch, tokens, heads)."""
    spread = tuple(axis for axis in BATCH_AXES if mesh.shape.get(axis, 1) > 1)
    while batch % math.prod(mesh.shape[axis] for axis in spread):
        spread = spread[:-1]
    whole = heads % mesh.shape.get("tensor", 1) or "tensor" not in mesh.shape
    return spread or None, None, None if whole else "tensor"


def _run(query: Array, key: Array, value: Array, *, interpret: bool) -> Array:
    """Runs the kernel on what one device holds."""
    (_, q, m, _), n = query.shape, key.shape[1]
    size = query.dtype.itemsize
    (long_q, block_q), (long_n, block_n) = _blocks(q, size), _blocks(n, size)
    steps = range(_LANES, min(block_n, _STEP) + 1, _LANES)
    step = max(step for step in steps if block_n % step == 0)
    sizes = splash.BlockSizes(
        block_q=block_q,
        block_kv=block_n,
        block_kv_compute=step,
        block_q_dkv=block_q,
        block_kv_dkv=block_n,
        block_kv_dkv_compute=step,
        use_fused_bwd_kernel=True,
    )
    mask = masks.MultiHeadMask([masks.FullMask((long_q, long_n))] * m)
    kernel = splash.make_splash_mha_single_device(
        mask, block_sizes=sizes, interpret=interpret
    )
    segments = None
    if long_n > n:
        segments = splash.SegmentIds(_filling(q, long_q), _filling(n, long_n))
    y: Any = jax.vmap(lambda *args: kernel(*args, segment_ids=segments))(
        _filled(query, long_q), _filled(key, long_n), _filled(value, long_n)
    )
    return y[:, :, :q].swapaxes(1, 2)


def _blocks(tokens: int, itemsize: int) -> tuple[int, int]:
    """Returns to how many tokens to fill up, and how many of them make a block.

    Few blocks are fast, and little filling: all tokens are one if they fit.
    """
    count = math.ceil(tokens * itemsize / _BLOCK)
    block = math.ceil(tokens / count / _LANES) * _LANES
    return count * block, block


def _filled(x: Float[Array, "b n m e"], tokens: int) -> Float[Array, "b m t e"]:
    short = tokens - x.shape[1]
    return jnp.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (0, short), (0, 0)))


def _filling(tokens: int, filled: int) -> Array:
    return (jnp.arange(filled) >= tokens).astype(jnp.int32)

# SPDX-License-Identifier: Apache-2.0
"""softmax(q k^T) v by the kernel for TPUs that comes with JAX.

The kernel ("splash attention", after arXiv:2205.14135) keeps the products of queries
and keys in the fast memory of a core, forward and backward. It takes tokens in blocks
of 128: others are filled up, and belong to a segment of their own that no token of the
image attends to.
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
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.layers.kernel import (
    can_split,
    chip_of,
    is_old,
    on_each_device,
    on_new_tpus,
)

_LANES = 128
# From how many tokens on `auto` takes the kernel.
_LONG = 512
# The most bytes of the tokens of a block, if a token were one number, and the most keys
# of a block that meet all its queries at once: what the kernel keeps of them has to fit
# into the fast memory of v4 and v5e, 16 MB.
_BLOCK = 3072
_STEP = 768


def flash(
    query: Float[Array, "b q d"],
    key: Float[Array, "b n d"],
    value: Float[Array, "b n d"],
    *,
    heads: int,
    interpret: bool = False,
) -> Float[Array, "b q d"]:
    """Returns the values weighted by attention.

    Args:
      query: The queries, scaled; the channels of a head lie next to one another.
      key: The keys.
      value: The values.
      heads: Number of heads, which divides d.
      interpret: Whether the kernel is interpreted, on any platform and slowly.
    """
    width = query.shape[2] // heads
    run = functools.partial(_run, width=width, interpret=interpret)
    return on_each_device(run, query, key, value, heads=heads)


def pays(query: Float[Array, "b q d"], key: Float[Array, "b n d"]) -> bool:
    """Returns whether the kernel costs less than the plain form where the arrays lie.

    It is so for long sequences by the compiler's schedules, see `models/README.md`.
    Arrays that lie on no mesh tell no devices.
    """
    q, n = query.shape[1], key.shape[1]
    return on_new_tpus(query) and can_split(query) and q == n and n >= _LONG


def check_chip(query: Float[Array, "b q d"]) -> None:
    """Checks that the kernel runs where the arrays are, if that is on a TPU.

    Raises:
      UserError: The TPU is too old.
    """
    if is_old(query):
        raise UserError(
            "attention='flash' is a kernel for TPUs from v4 on, and this is a "
            f"{chip_of(query)}; use attention='auto'"
        )


def _run(
    query: Array, key: Array, value: Array, *, width: int, interpret: bool
) -> Array:
    """Runs the kernel on what one device holds."""
    (b, q, d), n, m = query.shape, key.shape[1], query.shape[2] // width
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
        *(
            _filled(x, m, long)
            for x, long in zip(
                (query, key, value), (long_q, long_n, long_n), strict=True
            )
        )
    )
    return y[:, :, :q].swapaxes(1, 2).reshape(b, q, d)


def _blocks(tokens: int, itemsize: int) -> tuple[int, int]:
    """Returns to how many tokens to fill up, and how many of them make a block.

    Few blocks are fast, and little filling: all tokens are one if they fit.
    """
    count = math.ceil(tokens * itemsize / _BLOCK)
    block = math.ceil(tokens / count / _LANES) * _LANES
    return count * block, block


def _filled(x: Float[Array, "b n d"], m: int, tokens: int) -> Float[Array, "b m t e"]:
    b, n, _ = x.shape
    x = x.reshape(b, n, m, -1).swapaxes(1, 2)
    return jnp.pad(x, ((0, 0), (0, 0), (0, tokens - n), (0, 0)))


def _filling(tokens: int, filled: int) -> Array:
    return (jnp.arange(filled) >= tokens).astype(jnp.int32)

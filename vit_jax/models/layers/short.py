# SPDX-License-Identifier: Apache-2.0
"""softmax(q k^T) v by a kernel for the short sequences that images mostly are.

On TPUs a training step waits for memory, and the products of every query with every key
are most of what attention reads and writes. A core's fast memory holds a whole row of
them: the kernel computes the softmax of such rows as it is written, without the running
maxima that longer sequences need, and the backward pass computes it again from queries
and keys, so that nothing of that size ever leaves the fast memory (Section 3.1 of
arXiv:2205.14135, without its tiles of keys).

The arrays are flat, (b, n, d), since heads of 64 on an axis of their own would be
filled up to the 128 lanes of a register, and moved to be so. The matrix unit multiplies
128 lanes at a time anyway: of the lanes around a head, those of others are made 0 on
one side of a product, and dropped from what a product results in.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.layers.kernel import (
    can_split,
    chip_of,
    head_parts,
    is_old,
    on_each_device,
)

_LANES = 128
# Bytes of a core's fast memory that a kernel may take, and how many of them the arrays
# below may; v2, v3 and v4 have 16 MB, later ones 64 or 128.
_MEMORY, _LARGE_MEMORY = 16 * 2**20, 48 * 2**20
_SMALL = ("TPU v2", "TPU v3", "TPU v4")
_SHARE = 13 / 16
# How many there are in the backward kernel: of the arrays that go in and out, of those
# of a head, and of the products of a part of its queries with all keys.
_ARRAYS, _HEADS, _PRODUCTS = 7, 6, 6
# How many queries such a part may have if all are too many.
_PARTS = (512, 256, 128)


def short(
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
    fixed = _Fixed(
        width=query.shape[2] // heads,
        operand=jnp.dtype(jnp.float32 if is_old(query) else query.dtype),
        memory=_memory(query),
        interpret=interpret,
    )

    def run(query: Array, key: Array, value: Array) -> Array:
        return _attend(query, key, value, fixed)

    return on_each_device(run, query, key, value, heads=heads)


def takes(query: Float[Array, "b q d"], key: Float[Array, "b n d"], heads: int) -> bool:
    """Returns whether the kernel is for where the arrays lie, and they fit into it."""
    (_, q, d), n = query.shape, key.shape[1]
    part, width = d // head_parts(query, heads), d // heads
    layout = _layout(max(q, n), part, width, query.dtype, _memory(query))
    fits = layout is not None and min(q, n) > 1
    return fits and chip_of(query).startswith("TPU") and can_split(query)


class _Fixed(NamedTuple):
    """What is known of a kernel before its arrays.

    Attributes:
      width: Of a head.
      operand: Dtype of what the matrix unit multiplies.
      memory: Bytes of fast memory that it may take.
      interpret: Whether it is interpreted.
    """

    width: int
    operand: np.dtype
    memory: int
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(query: Array, key: Array, value: Array, fixed: _Fixed) -> Array:
    return _call(_forward, (query, key, value), (query,), fixed)[0]


def _keep(
    query: Array, key: Array, value: Array, fixed: _Fixed
) -> tuple[Array, tuple[Array, Array, Array]]:
    return _attend(query, key, value, fixed), (query, key, value)


def _pull(fixed: _Fixed, kept: tuple, change: Array) -> tuple[Array, ...]:
    return _call(_backward, (*kept, change), kept, fixed)


_attend.defvjp(_keep, _pull)


def _forward(
    query: Any, key: Any, value: Any, y: Any, *, width: int, part: int, operand: Any
) -> None:
    """Computes the heads of a group of lanes of one example."""

    def head(own: Array, at: Any) -> None:
        keys, values = (_load(ref, at).astype(operand) for ref in (key, value))

        def turn(rows: Any, carry: tuple) -> tuple:
            queries = jnp.where(own, _load(query, at, rows), 0).astype(operand)
            logits = _product(queries, keys, (1, 1))  # (q, n)
            exp = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
            total = jnp.sum(exp, axis=1, keepdims=True)
            mixed = _product(exp.astype(operand), values, (1, 0)) / total
            _store(y, at, own, mixed, rows)
            return carry

        _loop(turn, query.shape[1], part, ())

    _for_each_head(head, query.shape[2], width)


def _backward(
    query: Any,
    key: Any,
    value: Any,
    change: Any,
    d_query: Any,
    d_key: Any,
    d_value: Any,
    *,
    width: int,
    part: int,
    operand: Any,
) -> None:
    """The same for the gradients, with keys as rows, so that sums go over rows."""

    def head(own: Array, at: Any) -> None:
        keys, values = (_load(ref, at).astype(operand) for ref in (key, value))

        def turn(rows: Any, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            queries, changes = (
                jnp.where(own, _load(ref, at, rows), 0).astype(operand)
                for ref in (query, change)
            )
            logits = _product(keys, queries, (1, 1))  # (n, q)
            exp = jnp.exp(logits - jnp.max(logits, axis=0, keepdims=True))
            weights = exp / jnp.sum(exp, axis=0, keepdims=True)
            from_values = _product(weights.astype(operand), changes, (1, 0))
            d_weights = _product(values, changes, (1, 1))
            inner = jnp.sum(weights * d_weights, axis=0, keepdims=True)
            d_logits = (weights * (d_weights - inner)).astype(operand)
            from_logits = _product(d_logits, queries, (1, 0))
            _store(d_query, at, own, _product(d_logits, keys, (0, 0)), rows)
            return sums[0] + from_logits, sums[1] + from_values

        nothing = jnp.zeros((key.shape[1], own.shape[1]), jnp.float32)
        sums = _loop(turn, query.shape[1], part, (nothing, nothing))
        _store(d_key, at, own, sums[0])
        _store(d_value, at, own, sums[1])

    _for_each_head(head, query.shape[2], width)


def _call(
    kernel: Callable[..., None],
    arrays: Sequence[Array],
    results: Sequence[Array],
    fixed: _Fixed,
) -> tuple[Array, ...]:
    """Runs a kernel on each example and each group of lanes."""
    (b, q, d), n, width = arrays[0].shape, arrays[1].shape[1], fixed.width
    layout = _layout(max(q, n), d, width, arrays[0].dtype, fixed.memory)
    if layout is None:
        raise UserError(
            f"attention='short' is a kernel for short sequences, and {max(q, n)} "
            f"tokens of {d} channels are too many; use attention='auto'"
        )
    lanes, part, buffers = layout
    kernel_of_part = functools.partial(
        kernel, width=width, part=part, operand=fixed.operand
    )

    def spec(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec(
            (1, x.shape[1], lanes),
            lambda i, j: (i, 0, j),
            pipeline_mode=pl.Buffered(buffers),
        )

    products = 2 if kernel is _forward else 5
    multiply_adds = products * b * (d // width) * q * n * _window(lanes, width)
    return tuple(
        pl.pallas_call(
            kernel_of_part,
            grid=(b, d // lanes),
            in_specs=[spec(x) for x in arrays],
            out_specs=[spec(x) for x in results],
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel"),
                vmem_limit_bytes=fixed.memory,
            ),
            cost_estimate=pl.CostEstimate(
                flops=2 * multiply_adds,
                transcendentals=b * (d // width) * q * n,
                bytes_accessed=sum(x.nbytes for x in (*arrays, *results)),
            ),
            interpret=fixed.interpret,
            name=f"short{kernel.__name__}",
        )(*arrays)
    )


def _layout(
    tokens: int, d: int, width: int, dtype: DTypeLike, memory: int
) -> tuple[int, int, int] | None:
    """Returns what is in fast memory at a time, or None if that is too much anyway.

    Returns:
      Lanes of each array, as many as fit, since starting a group takes time; how many
      queries meet all keys at once; copies of each array, one of which is filled while
      the other is computed.
    """
    unit = math.lcm(width, _LANES)
    groups = [g for g in range(unit, d + 1, unit) if d % g == 0]
    groups = [d] if d % unit else groups[::-1]
    # A part of one query is refused by the compilers for v4 and later.
    parts = [part - 16 * (tokens % part == 1) for part in _PARTS if part < tokens]
    rows, size = _round_up(tokens, 16), jnp.dtype(dtype).itemsize
    for buffers, part, lanes in itertools.product((2, 1), [tokens, *parts], groups):
        arrays = _ARRAYS * buffers * rows * _round_up(lanes) * size
        heads = _HEADS * rows * _round_up(_window(lanes, width)) * 4
        products = _PRODUCTS * _round_up(tokens) * _round_up(part) * 4
        if arrays + heads + products <= _SHARE * memory:
            return lanes, part, buffers
    return None


def _memory(x: Array) -> int:
    return _MEMORY if chip_of(x) in _SMALL else _LARGE_MEMORY


def _window(lanes: int, width: int) -> int:
    """Returns in how many lanes, of whole registers, each head lies."""
    if lanes % _LANES:
        return lanes
    starts = range(0, lanes, width)
    return min(lanes, max(_round_up(start % _LANES + width) for start in starts))


def _for_each_head(head: Callable[[Array, Any], None], lanes: int, width: int) -> None:
    """Calls `head` with which lanes of a window are its own, and the window."""
    window = _window(lanes, width)

    def turn(number: Array, carry: tuple) -> tuple:
        first = number * width
        start = jnp.minimum(first // _LANES * _LANES, lanes - window)
        if window == lanes:
            start, at = 0, slice(None)
        else:
            at = pl.ds(pl.multiple_of(start, _LANES), window)
        lane = start + lax.broadcasted_iota(jnp.int32, (1, window), 1)
        head((lane >= first) & (lane < first + width), at)
        return carry

    lax.fori_loop(0, lanes // width, turn, ())


def _loop(turn: Callable[[Any, Any], Any], count: int, part: int, carry: Any) -> Any:
    """Calls `turn` with one part of the rows after another."""
    part = min(part, count)
    whole = count // part

    def at(number: Array, carry: Any) -> Any:
        return turn(pl.ds(pl.multiple_of(number * part, part), part), carry)

    if whole == 1:
        carry = turn(slice(0, part), carry)
    else:
        carry = lax.fori_loop(0, whole, at, carry)
    return turn(slice(whole * part, count), carry) if count % part else carry


def _load(ref: Any, at: Any, rows: Any = slice(None)) -> Array:
    return ref[0, rows, at].astype(jnp.float32)


def _store(ref: Any, at: Any, own: Array, x: Array, rows: Any = slice(None)) -> None:
    ref[0, rows, at] = jnp.where(own, x, _load(ref, at, rows)).astype(ref.dtype)


def _product(a: Array, b: Array, axes: tuple[int, int]) -> Array:
    numbers = (((axes[0],), (axes[1],)), ((), ()))
    return lax.dot_general(a, b, numbers, preferred_element_type=jnp.float32)


def _round_up(count: int, to: int = _LANES) -> int:
    return math.ceil(count / to) * to

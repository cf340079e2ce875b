# SPDX-License-Identifier: Apache-2.0
"""The blocks of an encoder one after the other: a loop of Python, or of the program."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.layers.block import Outputs
from vit_jax.models.layers.remat import Remat, rematerialize
from vit_jax.models.layers.stochastic_depth import linear_rates

Step = Callable[..., tuple[Array, Outputs]]


def run_blocks(
    step: Step,
    make_block: Callable[..., nn.Module],
    x: Float[Array, "b ..."],
    tables: Float[Array, "l n d"] | None = None,
    *,
    depth: int,
    drop_path_rate: float,
    scan: bool,
    remat: Remat,
) -> tuple[Float[Array, "b ..."], Outputs]:
    """Sends tokens through `depth` blocks.

    Args:
      step: `(block, x, drop path rate or None, table or None) -> x and outputs`.
      make_block: Makes a block of a name.
      x: The tokens.
      tables: One for each block or for all; None is none.
      depth: Number of blocks.
      drop_path_rate: Of the last block; block i has i / (depth - 1) of it.
      scan: Whether the blocks are one loop of the program. Their parameters are then
        stacked, `encoderblock/...` with a leading axis for the layer: see
        `models/stacking.py`.
      remat: See `remat.py`.

    Returns:
      The tokens, and the outputs of every block, `block00/...`.
    """
    run = _scan_blocks if scan else _loop_blocks
    step = rematerialize(step, remat, looped=scan)
    x, outs = run(step, make_block, x, tables, linear_rates(drop_path_rate, depth))
    out = {
        f"block{i:02d}/{key}": y
        for i, block_out in enumerate(outs)
        for key, y in block_out.items()
    }
    return x, out


def _loop_blocks(
    step: Step,
    make_block: Callable[..., nn.Module],
    x: Array,
    tables: Array | None,
    rates: list[float],
) -> tuple[Array, list[Outputs]]:
    outs = []
    for i, rate in enumerate(rates):
        block = make_block(name=f"encoderblock_{i}")
        table = None if tables is None else tables[i % len(tables)]
        x, block_out = step(block, x, rate if any(rates) else None, table)
        outs.append(block_out)
    return x, outs


def _scan_blocks(
    step: Step,
    make_block: Callable[..., nn.Module],
    x: Array,
    tables: Array | None,
    rates: list[float],
) -> tuple[Array, list[Outputs]]:
    depth = len(rates)
    stacked_rates: Any = jnp.asarray(rates) if any(rates) else None
    if tables is not None:
        tables = jnp.broadcast_to(tables, (depth, *tables.shape[1:]))
    scan = nn.scan(
        step,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True, "drop_path": True},
        length=depth,
    )
    x, stacked = scan(make_block(name="encoderblock"), x, stacked_rates, tables)
    return x, [{key: y[i] for key, y in stacked.items()} for i in range(depth)]

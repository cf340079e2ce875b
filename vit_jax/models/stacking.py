# SPDX-License-Identifier: Apache-2.0
"""Parameters of encoder blocks, one by one or stacked as `scan=True` has them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from vit_jax import trees
from vit_jax.errors import UserError

_SINGLE = re.compile(r"(.*/|)encoderblock_(\d+)/(.*)")
_STACKED = re.compile(r"(.*/|)encoderblock/(.*)")


def stack_blocks(params: Mapping[str, Any]) -> dict[str, Any]:
    """Turns `encoderblock_0/x`, ..., into `encoderblock/x` with a leading axis.

    Nothing else changes, and no value: `unstack_blocks` gives the same tree back.

    Args:
      params: Parameters of a model with `scan=False`.

    Returns:
      Those of the same model with `scan=True`.

    Raises:
      UserError: There are no single blocks, or they differ from one another.
    """
    result: dict[str, Any] = {}
    found: dict[str, dict[int, Any]] = {}
    for name, leaf in trees.flatten(params).items():
        if match := _SINGLE.fullmatch(name):
            before, block, after = match.groups()
            found.setdefault(f"{before}encoderblock/{after}", {})[int(block)] = leaf
        else:
            result[name] = leaf
    if not found:
        raise UserError(
            "there are no parameters of single blocks, encoderblock_0/..., to stack; "
            "these are stacked already, or of a model without an encoder"
        )
    depth = max(len(leaves) for leaves in found.values())
    for name, leaves in found.items():
        shapes = {leaf.shape for leaf in leaves.values()}
        if sorted(leaves) != list(range(depth)) or len(shapes) > 1:
            raise UserError(
                f"{name} cannot be stacked: its blocks are {sorted(leaves)} of {depth} "
                f"and their shapes {sorted(shapes)}; only blocks of one form, numbered "
                "from 0, make a scanned model"
            )
        result[name] = _stack([leaves[block] for block in range(depth)])
    return trees.unflatten(result)


def unstack_blocks(params: Mapping[str, Any]) -> dict[str, Any]:
    """Turns `encoderblock/x` into `encoderblock_0/x`, ..., the inverse of stacking.

    Args:
      params: Parameters of a model with `scan=True`.

    Returns:
      Those of the same model with `scan=False`.

    Raises:
      UserError: There are no stacked blocks.
    """
    flat = trees.flatten(params)
    if not any(_STACKED.fullmatch(name) for name in flat):
        raise UserError(
            "there are no stacked parameters, encoderblock/..., to take apart; these "
            "are single already, or of a model without an encoder"
        )
    result: dict[str, Any] = {}
    for name, leaf in flat.items():
        if match := _STACKED.fullmatch(name):
            before, after = match.groups()
            for block, part in enumerate(leaf):
                result[f"{before}encoderblock_{block}/{after}"] = part
        else:
            result[name] = leaf
    return trees.unflatten(result)


def _stack(leaves: Sequence[Any]) -> Any:
    on_host = all(isinstance(leaf, np.ndarray) for leaf in leaves)
    return np.stack(leaves) if on_host else jnp.stack(leaves)

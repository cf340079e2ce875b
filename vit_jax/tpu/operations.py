# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds of a traced program: what it multiplies, whatever the compiler does.

Matrix products and convolutions alone are counted, as in `models/flops.py`, but of the
whole program: forward, backward and what is computed again.
"""

import math
from typing import Any


def multiply_adds(jaxpr: Any) -> int:
    """Returns the multiply-adds of a jaxpr; a loop counts as often as it runs.

    Args:
      jaxpr: Of `jax.make_jaxpr` or of a traced function. A `while` loop, whose number
        of turns is not known, counts once, a branch as the dearest of its choices; of
        branches for platforms that for TPUs counts. A kernel counts for each step of
        its grid, and what a device does on its own for each device.
    """
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_of_equation(equation) for equation in inner.eqns)


def _of_equation(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        terms = math.prod(left[axis] for axis in contracted)
        return math.prod(equation.outvars[0].aval.shape) * terms
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        outputs = kernel[params["dimension_numbers"].rhs_spec[0]]
        return math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // outputs
    if name == "cond":
        return max(multiply_adds(branch) for branch in chosen_branches(params))
    turns = 1
    if name == "scan":
        turns = params["length"]
    elif name == "pallas_call":
        turns = math.prod(params["grid_mapping"].grid)
    elif name == "shard_map":
        turns = params["mesh"].size
    return turns * sum(multiply_adds(inner) for inner in inner_jaxprs(params))


def chosen_branches(params: Any) -> list[Any]:
    """Returns the branches of a `cond` of which one may run on a TPU."""
    branches, platforms = params["branches"], params.get("branches_platforms")
    if platforms is None:
        return list(branches)
    for branch, names in zip(branches, platforms, strict=True):
        if names is None or "tpu" in names:
            return [branch]
    return list(branches)


def inner_jaxprs(params: Any) -> list[Any]:
    """Returns the programs within the parameters of an equation."""
    values = []
    for value in params.values():
        values += value if isinstance(value, list | tuple) else [value]
    return [v for v in values if hasattr(getattr(v, "jaxpr", v), "eqns")]

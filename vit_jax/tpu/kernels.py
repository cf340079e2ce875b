# SPDX-License-Identifier: Apache-2.0
"""Time in kernels that are written by hand, which the compiler's sums leave out.

To the compiler a kernel is a call that costs what its author estimates: bytes and
products, of which it takes the longer, and nothing if there is no estimate. The traced
program holds it all.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.tpu.chips import Chip
from vit_jax.tpu.operations import chosen_branches, inner_jaxprs, multiply_adds

# These move numbers, or say where they are.
_FREE = {
    *("get", "swap", "addupdate", "broadcast_in_dim", "reshape", "squeeze", "slice"),
    *("tile", "concatenate", "iota", "program_id", "num_programs", "dot_general"),
}


class Kernel(NamedTuple):
    """What the calls of a kernel do on one device.

    Attributes:
      name: Its name.
      flops: Of its products, two for a multiply-add.
      vector_ops: Numbers that it computes one by one: sums, exponentials, comparisons.
      bytes: Of the arrays that go in and out; a part that it reads twice counts once.
      told_flops: Of its products, as its author tells the compiler beside its bytes;
        None tells nothing.
    """

    name: str
    flops: int
    vector_ops: int
    bytes: int
    told_flops: int | None = None

    def uncounted_seconds(self, core: Chip) -> float:
        """Returns how much longer it takes than the compiler counts."""
        arrays = self.bytes / core.memory_bandwidth
        products = self.flops / core.flops
        longest = max(arrays, products, self.vector_ops / core.vector)
        counted = 0.0
        if self.told_flops is not None:
            counted = max(arrays, self.told_flops / core.flops)
        return max(longest - counted, 0.0)

    @property
    def uncounted_bytes(self) -> int:
        """How many bytes the compiler does not count."""
        return self.bytes if self.told_flops is None else 0


def find_kernels(jaxpr: Any, turns: int = 1) -> Iterator[Kernel]:
    """Yields the kernels of a traced program; a loop counts as often as it runs.

    Args:
      jaxpr: Of `jax.make_jaxpr` or of a traced function.
      turns: How often it runs.
    """
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, params = equation.primitive.name, equation.params
        if name == "pallas_call":
            arrays = [v.aval for v in (*equation.invars, *equation.outvars)]
            told = params["cost_estimate"]
            steps = turns * math.prod(params["grid_mapping"].grid)
            yield Kernel(
                params["name"] or "kernel",
                steps * 2 * multiply_adds(params["jaxpr"]),
                steps * _vector_ops(params["jaxpr"]),
                turns * sum(math.prod(a.shape) * a.dtype.itemsize for a in arrays),
                turns * told.flops if told else None,
            )
        elif name == "cond":
            for branch in chosen_branches(params):
                yield from find_kernels(branch, turns)
        else:
            times = params["length"] if name == "scan" else 1
            for inner in inner_jaxprs(params):
                yield from find_kernels(inner, turns * times)


def _vector_ops(jaxpr: Any) -> int:
    total = 0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, params = equation.primitive.name, equation.params
        if name == "cond":
            total += max(_vector_ops(branch) for branch in chosen_branches(params))
        elif inner := inner_jaxprs(params):
            times = params["length"] if name == "scan" else 1
            total += times * sum(_vector_ops(jaxpr) for jaxpr in inner)
        elif name not in _FREE:
            # A reduction takes as long as its operand is large.
            arrays = (*equation.invars, *equation.outvars)
            total += max(math.prod(getattr(v.aval, "shape", ())) for v in arrays)
    return total

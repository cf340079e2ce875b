# SPDX-License-Identifier: Apache-2.0
"""What a compiled training step costs on one core of a slice."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.tpu import program as program_lib
from vit_jax.tpu.chips import Chip, Roofline, roofline
from vit_jax.tpu.kernels import find_kernels
from vit_jax.tpu.operations import multiply_adds


@dataclasses.dataclass(frozen=True)
class Cost:
    """Costs of a step; bytes are those of one core.

    Attributes:
      argument_bytes: Of the state and the batch.
      temp_bytes: Of what the step keeps while it runs.
      code_bytes: Of the program.
      flops: Operations of all cores together: two for a multiply-add, of matrix
        products and convolutions alone, as they stand in the traced program.
      hbm_bytes: Read and written.
      collectives: Count and bytes of each kind.
      compiler_seconds: Of a step, as the compiler sums up: each instruction takes as
        long as its operations or its bytes do. What kernels compute is added, see
        `kernels.py`. None where it does not say.
      roofline: The least times by the peak figures of the chip.
      compile_seconds: How long the compiler took.
    """

    argument_bytes: int
    temp_bytes: int
    code_bytes: int
    flops: int
    hbm_bytes: int
    collectives: Mapping[str, tuple[int, int]]
    compiler_seconds: float | None
    roofline: Roofline
    compile_seconds: float

    @property
    def memory(self) -> int:
        """Bytes of a core that the step needs."""
        return self.argument_bytes + self.temp_bytes + self.code_bytes

    @property
    def seconds(self) -> float:
        """The longest of the estimates of a step, which is at least what it takes."""
        return max(self.roofline.seconds, self.compiler_seconds or 0.0)


def measure(traced: Any, compiled: Any, core: Chip, cores: int, seconds: float) -> Cost:
    """Reads the costs of a step off what was traced and compiled.

    Args:
      traced: From `compiler.compile_for_tpu`.
      compiled: The same.
      core: What a core can do.
      cores: Number of cores.
      seconds: How long compiling took.
    """
    memory, sums = compiled.memory_analysis(), compiled.cost_analysis()
    program = program_lib.parse(compiled.as_text())
    flops = 2 * multiply_adds(traced.jaxpr)
    # The compiler counts the body of a loop once; our own sums, which come within a
    # few per cent of its, tell by how much that is too little.
    bytes_factor = program.hbm_bytes() / max(program.hbm_bytes(loops=False), 1)
    time_factor = program.cycles() / max(program.cycles(loops=False), 1)
    kernels = list(find_kernels(traced.jaxpr))
    hbm_bytes = round(sums["bytes accessed"] * bytes_factor)
    hbm_bytes += sum(kernel.uncounted_bytes for kernel in kernels)
    collectives = program.collectives()
    # It counts what it does not know, such as this, which moves nothing, as -1 second.
    unknown = compiled.as_text().count('custom_call_target="ConcatBitcast"')
    optimal = sums.get("optimal_seconds", 0.0) + unknown
    uncounted = sum(kernel.uncounted_seconds(core) for kernel in kernels)
    return Cost(
        argument_bytes=memory.argument_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        flops=flops,
        hbm_bytes=hbm_bytes,
        collectives=collectives,
        compiler_seconds=(
            optimal * max(time_factor, 1.0) + uncounted if optimal > 0 else None
        ),
        roofline=roofline(
            core,
            flops / cores,
            hbm_bytes,
            {kind: size for kind, (_, size) in collectives.items()},
        ),
        compile_seconds=seconds,
    )

# SPDX-License-Identifier: Apache-2.0
"""Peak figures of TPU chips, and how long a program takes at least.

Sources: v2 and v3 from Jouppi et al., "A Domain-Specific Supercomputer for Training
Deep Neural Networks", CACM 63(7), 2020, table 2 (four links of 496 and 656 Gbit/s a
chip); v4 from arXiv:2304.01433, table 4 (six links of 50 GB/s); v5e, v5p and v6e from
docs.cloud.google.com/tpu/docs/v5e, v5p and v6e (1,600, 4,800 and 3,200 Gbit/s a chip).
Clocks are 0.7, 0.94 and 1.05 GHz there for v2, v3 and v4; for the others they follow
from the operations a second of 4, 8 and 4 matrix units of 128, 128 and 256 a side.
"""

from collections.abc import Mapping
from typing import NamedTuple

from vit_jax.errors import unknown

GIB = 2**30


class Chip(NamedTuple):
    """What one chip can do at best.

    Attributes:
      name: Such as "v3".
      cores: Devices that JAX sees for a chip; each has its share of the rest.
      flops: Operations a second in bfloat16, two for a multiply-add.
      memory: Bytes of its HBM.
      memory_bandwidth: Bytes a second between the chip and its HBM.
      network_bandwidth: Bytes a second that all its links send together.
      vector: Numbers a second that its vector units of 1,024 lanes compute, taken as
        one operation a cycle, and two from v6e on. That is rough: an exponential is
        several, and the units can start several at a time.
    """

    name: str
    cores: int
    flops: float
    memory: int
    memory_bandwidth: float
    network_bandwidth: float
    vector: float

    @property
    def core(self) -> "Chip":
        """The share of one core, as if it were a chip of its own."""
        return Chip(
            self.name,
            1,
            self.flops / self.cores,
            self.memory // self.cores,
            self.memory_bandwidth / self.cores,
            self.network_bandwidth / self.cores,
            self.vector / self.cores,
        )


CHIPS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v2", 2, 46e12, 16 * GIB, 700e9, 4 * 496e9 / 8, 2 * 1024 * 0.7e9),
        Chip("v3", 2, 123e12, 32 * GIB, 900e9, 4 * 656e9 / 8, 2 * 1024 * 0.94e9),
        Chip("v4", 1, 275e12, 32 * GIB, 1200e9, 6 * 50e9, 2 * 1024 * 1.05e9),
        Chip("v5e", 1, 197e12, 16 * GIB, 819e9, 1600e9 / 8, 1024 * 1.5e9),
        Chip("v5p", 1, 459e12, 95 * GIB, 2765e9, 4800e9 / 8, 2 * 1024 * 1.75e9),
        Chip("v6e", 1, 918e12, 32 * GIB, 1638e9, 3200e9 / 8, 2 * 1024 * 1.75e9),
    )
}


class Roofline(NamedTuple):
    """Seconds that a program takes at least if all else costs nothing.

    Attributes:
      compute: Of its products.
      memory: Of its reads and writes.
      network: Of its collectives.
    """

    compute: float
    memory: float
    network: float

    @property
    def seconds(self) -> float:
        """The longest of the three, as if they overlapped wholly."""
        return max(self)

    @property
    def bound(self) -> str:
        """What the program waits for."""
        return self._fields[self.index(self.seconds)]


def find_chip(topology: str) -> Chip:
    """Returns the chip of a topology such as "v3:4x4".

    Raises:
      UserError: A generation that is not in the table.
    """
    generation = topology.partition(":")[0]
    if generation not in CHIPS:
        raise unknown("TPU generation", generation, CHIPS)
    return CHIPS[generation]


# How often a byte of the result passes a device's links in a ring of many devices: a
# sum is scattered and then gathered.
_PASSES = {"all-reduce": 2.0}


def roofline(
    core: Chip, flops: float, hbm_bytes: float, collectives: Mapping[str, int]
) -> Roofline:
    """Returns the least times of a program on one core.

    Args:
      core: From `Chip.core`.
      flops: Operations of a core, two for a multiply-add.
      hbm_bytes: Bytes that it reads and writes.
      collectives: Bytes of a core by kind, see `program.collectives`.
    """
    passed = sum(_PASSES.get(kind, 1.0) * size for kind, size in collectives.items())
    return Roofline(
        flops / core.flops,
        hbm_bytes / core.memory_bandwidth,
        passed / core.network_bandwidth,
    )

# SPDX-License-Identifier: Apache-2.0
"""The TPU compiler on a machine without TPUs.

The package `libtpu` holds it. It describes a slice by name and compiles for it like
for devices that are there.
"""

import importlib.metadata
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vit_jax.errors import UserError
from vit_jax.tpu.chips import GIB, Chip, find_chip

# The compiler asks a TPU's host for these; without them it waits for a network.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    # Several plans may be made at a time: libtpu's lock is for devices.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_MIN_LOG_LEVEL": "3",
}
_EXAMPLES = "v3:4x4 (32 cores), v3:16x16 (512), v4:2x2x4, v5e:8x8, v5p:4x4x4, v6e:8x8"


class Slice(NamedTuple):
    """A part of a TPU pod.

    Attributes:
      name: Such as "v3:4x4".
      chip: What its chips can do.
      devices: One for each core; to be compiled for, not to be run on.
    """

    name: str
    chip: Chip
    devices: Sequence[Any]


class OutOfMemoryError(Exception):
    """A program that does not fit into a core's memory.

    Attributes:
      used: Bytes that it would need.
      available: Bytes that there are.
    """

    def __init__(self, used: float, available: float):
        super().__init__(f"needs {used / GIB:.2f} of {available / GIB:.2f} GiB")
        self.used = used
        self.available = available


def set_up() -> None:
    """Prepares this process, before it starts JAX, for compiling for TPUs.

    Raises:
      UserError: The compiler is not installed, or JAX runs already on another platform.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            "the TPU compiler is not installed; it needs no TPU: pip install "
            f"{_wanted_libtpu()!r}"
        )
    if "jax" in sys.modules and os.environ.get("JAX_PLATFORMS", "cpu") != "cpu":
        raise UserError(
            f"JAX_PLATFORMS is {os.environ['JAX_PLATFORMS']!r}; plans are made on the "
            "CPU: unset it"
        )
    os.environ.update(_ENVIRONMENT)


def open_slice(name: str) -> Slice:
    """Describes a slice; `set_up` must have come before.

    Args:
      name: Generation, a colon and the shape in chips.

    Raises:
      UserError: A slice that does not exist.
    """
    chip = find_chip(name)
    from jax.experimental import topologies

    try:
        topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    except (RuntimeError, ValueError, NotImplementedError) as err:
        raise UserError(
            f"there is no TPU slice {name!r} ({' '.join(str(err).split())[:120]}); "
            f"examples: {_EXAMPLES}"
        ) from err
    devices = list(topology.devices)
    return Slice(name, chip._replace(cores=_cores_of_chip(devices)), devices)


def compile_for_tpu(
    function: Callable[..., Any], arguments: Sequence[Any], **options: Any
) -> tuple[Any, Any, float]:
    """Traces and compiles a function.

    Args:
      function: What to compile.
      arguments: Shapes with shardings on a slice's devices.
      **options: Of `jax.jit`.

    Returns:
      The traced and the compiled function, and the seconds that compiling took.

    Raises:
      OutOfMemoryError: It does not fit.
    """
    import jax

    traced = jax.jit(function, **options).trace(*arguments)
    lowered = traced.lower()
    start = time.monotonic()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as err:
        raise (parse_out_of_memory(str(err)) or err) from err
    return traced, compiled, time.monotonic() - start


def parse_out_of_memory(text: str) -> OutOfMemoryError | None:
    """Reads the compiler's complaint about a program that is too large.

    Returns:
      What it says, or None if it complains about something else.
    """
    # "Used 20.5G of 15.48G hbm", "... temporaries (81.29G) exceeds available HBM
    # (15.48G)": what is needed comes first, what there is second.
    sizes = re.findall(r"\b([\d.]+)([KMGT])\b", text)
    if "RESOURCE_EXHAUSTED" not in text or "hbm" not in text.lower() or len(sizes) < 2:
        return None
    factor = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    (used, unit), (available, other), *_ = sizes
    return OutOfMemoryError(
        float(used) * factor[unit], float(available) * factor[other]
    )


def _cores_of_chip(devices: Sequence[Any]) -> int:
    return len({getattr(device, "core_on_chip", 0) for device in devices})


def _wanted_libtpu() -> str:
    """Returns the requirement of the installed JAX for its TPU compiler."""
    for requirement in importlib.metadata.requires("jax") or ():
        match = re.match(r"libtpu\s*([=<>~!][^;\s]*)", requirement)
        if match:
            return f"libtpu{match[1]}"
    return "jax[tpu]"

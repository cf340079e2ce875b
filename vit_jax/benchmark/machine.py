# SPDX-License-Identifier: Apache-2.0
"""What results were measured on and with, in words."""

import importlib.metadata
import os
import pathlib
import platform

import vit_jax

_PACKAGES = (
    *("jax", "jaxlib", "libtpu", "flax", "optax", "orbax-checkpoint", "numpy"),
    *("tensorflow-cpu", "tensorflow"),
)


def describe() -> str:
    """Returns the cores, their kind, the memory and the system of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{os.cpu_count()} cores of {_processor()}, "
        f"{memory / 2**30:.0f} GiB of memory, {platform.system()} {platform.machine()}"
    )


def versions() -> dict[str, str]:
    """Returns the versions of what takes part."""
    found = {"vit_jax": vit_jax.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def load() -> float:
    """Returns how many programs ran or waited to run in the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    for line in lines:
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()

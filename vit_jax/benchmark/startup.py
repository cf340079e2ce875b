# SPDX-License-Identifier: Apache-2.0
"""Whole commands, each in a process of its own, from the command to its end."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from vit_jax.errors import UserError


def measure() -> dict[str, Any]:
    """Times --help and the smoke run of the quickstart.

    Raises:
      UserError: A command fails, as outside of the repository.
    """
    run = [sys.executable, "-m", "vit_jax.main"]
    with tempfile.TemporaryDirectory() as folder:
        smoke = [
            *run,
            "--config=configs/quickstart.py:smoke",
            f"--compilation_cache={folder}/cache",
        ]
        return {
            "help_seconds": _seconds([*run, "--help"]),
            "smoke_seconds": _seconds([*smoke, f"--workdir={folder}/cold"]),
            "smoke_again_seconds": _seconds([*smoke, f"--workdir={folder}/warm"]),
        }


def _seconds(arguments: Sequence[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(
            f"{' '.join(arguments)} ended with {done.returncode}: "
            f"{done.stderr[-500:]}; run this benchmark from the root of the repository"
        )
    return round(time.perf_counter() - start, 2)

# SPDX-License-Identifier: Apache-2.0
"""Eight CPU devices, strict shapes, and the fixtures that several folders use.

The environment is set before anything imports JAX, and vit_jax is not imported at the
top: the hook of jaxtyping (see addopts in pyproject.toml) must come first.
"""

import gc
import importlib.metadata
import os
import sys
import types

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Most programs of the tests run once, for microseconds; they compile in half the time
# if the compiler makes no effort. Tests of bits take the fixture `as_users`. Flags that
# are given come last and win.
if os.environ["JAX_PLATFORMS"] == "cpu":
    # jaxlib 0.12 has other emitters, and a flag that it does not know ends the process.
    EMITTERS = importlib.metadata.version("jaxlib").startswith(("0.10.", "0.11."))
    os.environ["XLA_FLAGS"] = (
        "--xla_force_host_platform_device_count=8 "
        "--xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true "
        "--xla_cpu_parallel_codegen_split_count=1 "
        + ("--xla_cpu_use_fusion_emitters=false " if EMITTERS else "")
    ) + os.environ.get("XLA_FLAGS", "")

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
# Traced programs are many small objects that live on; looking through all of them for
# garbage again and again takes a tenth of the time.
gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def as_users() -> dict[str, bool | int]:
    """Options for jax.jit that compile as for a user, where the bits are tested."""
    if jax.default_backend() != "cpu":
        return {}
    options = {
        "xla_backend_optimization_level": 3,
        "xla_llvm_disable_expensive_passes": False,
    }
    return options | ({"xla_cpu_use_fusion_emitters": True} if EMITTERS else {})


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in each run."""
    return np.random.default_rng(0)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A directory for one run that is not there yet."""
    return tmp_path / "run"


@pytest.fixture
def strict_dtypes() -> Iterator[None]:
    """Makes an implicit mix of dtypes an error, for tests of float32 numerics."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="session")
def timm() -> types.ModuleType:
    """The independent implementation, for tests with the marker `reference`.

    timm imports torchvision, whose wheel may be built for CUDA where torch is built
    for the CPU. Its import then fails in the module that describes its own operators
    to the compiler; nothing we compare needs them.
    """
    name = "torchvision._meta_registrations"
    sys.modules.setdefault(name, types.ModuleType(name))
    return pytest.importorskip("timm")

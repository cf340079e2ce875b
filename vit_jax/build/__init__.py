# SPDX-License-Identifier: Apache-2.0
"""From a config to a run: the last place that sees a ConfigDict.

Each section of the config is the keyword arguments of one function, so the signature
of that function is the schema of the section. What needs no device is checked first:
a typo fails in seconds, not after a pod has compiled.
"""

from vit_jax.build.blueprint import Blueprint, make_blueprint
from vit_jax.build.run import build_run, check_run

__all__ = ["Blueprint", "build_run", "check_run", "make_blueprint"]

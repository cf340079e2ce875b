# SPDX-License-Identifier: Apache-2.0
"""From a config to what its step costs on a TPU slice, compiled here and not run.

`plan.py` compiles the step of a config, `fit.py` changes the config until it fits,
`published.py` knows data sets and costs by name, `reference_step.py` is the step that
benchmarks compare, and `text.py` tells it all.
"""

from vit_jax.planning.fit import find_fitting
from vit_jax.planning.plan import Plan, make_plan
from vit_jax.planning.reference_step import compile_reference
from vit_jax.planning.text import to_json, to_text

__all__ = [
    "Plan",
    "compile_reference",
    "find_fitting",
    "make_plan",
    "to_json",
    "to_text",
]

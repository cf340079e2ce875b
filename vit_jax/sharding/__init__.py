# SPDX-License-Identifier: Apache-2.0
"""One device mesh with the axes `data`, `fsdp` and `tensor`, and who lies where on it.

A batch is split over `data` and `fsdp` together (`mesh.py`). A parameter, its moments
and its average lie as rules for its name say; without rules of the user's own, as the
sizes of the mesh ask for (`rules.py`). `gathering.py` is for states that lie in more
parts than the step computes with.
"""

from vit_jax.sharding.gathering import Gathering, make_gathering
from vit_jax.sharding.mesh import (
    AXES,
    BATCH_AXES,
    batch_parts,
    batch_sharding,
    check_batch_size,
    make_mesh,
    on_tpu,
    process_part,
    replicated,
)
from vit_jax.sharding.rules import REPLICATED, Rules, tree_shardings

__all__ = [
    "AXES",
    "BATCH_AXES",
    "REPLICATED",
    "Gathering",
    "Rules",
    "batch_parts",
    "batch_sharding",
    "check_batch_size",
    "make_gathering",
    "make_mesh",
    "on_tpu",
    "process_part",
    "replicated",
    "tree_shardings",
]

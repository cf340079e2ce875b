# SPDX-License-Identifier: Apache-2.0
"""What a model says about each example of a split, brought to the host in order.

Batches are padded and lie on a mesh. Each carries the rows of its examples, so the
result does not depend on batch size, devices or processes: every row is there once.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

Batch = dict[str, Any]
PerExample = Callable[[Any, Batch], Mapping[str, jax.Array]]


def gather(
    per_example: PerExample, params: Any, batches: Iterator[Batch], size: int
) -> dict[str, np.ndarray]:
    """Computes arrays for each example.

    Args:
      per_example: `(params, batch) ->` arrays whose first axis is that of the batch;
        a compiled function, kept from one pass to the next.
      params: The parameters.
      batches: One pass over a split, with `mask` and `row`.
      size: Number of examples of the split.

    Returns:
      The arrays by name, over all rows of the split, on every process.
    """
    found: dict[str, np.ndarray] = {}
    seen = np.zeros(size, bool)
    for batch in batches:
        placed = {"mask": batch["mask"], "row": batch["row"]}
        values = _to_host({**per_example(params, batch), **placed})
        real = values.pop("mask") > 0
        rows = values.pop("row")[real]
        for name, value in values.items():
            if name not in found:
                found[name] = np.empty((size, *value.shape[1:]), value.dtype)
            found[name][rows] = value[real]
        seen[rows] = True
    if not seen.all():
        raise RuntimeError(f"{int((~seen).sum())} of {size} examples were not reached")
    return found


def _to_host(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    if jax.process_count() > 1:
        arrays = multihost_utils.process_allgather(arrays, tiled=True)
    return jax.device_get(arrays)

# SPDX-License-Identifier: Apache-2.0
"""Moves batches from the host to the devices while the step before still computes."""

import collections
import concurrent.futures
from collections.abc import Generator, Iterator, Mapping

import jax
import numpy as np


def prefetch_to_device(
    batches: Iterator[Mapping[str, np.ndarray]],
    sharding: jax.sharding.Sharding,
    size: int = 2,
) -> Generator[dict[str, jax.Array], None, None]:
    """Yields each batch as global arrays on the devices, in order.

    A thread takes batches from the iterator, up to `size` ahead; it ends with this
    iterator. What the iterator raises comes out at the place of the batch in question.

    Args:
      batches: Each process's part of the global batches.
      sharding: Where the examples go, for arrays of any rank: it names the mesh axes of
        the first dimension.
      size: Batches in flight, at least 1.

    Yields:
      The same dictionaries with global arrays.
    """
    with concurrent.futures.ThreadPoolExecutor(1, "vit_jax_transfer") as executor:

        def put() -> dict[str, jax.Array] | None:
            batch = next(batches, None)
            if batch is None:
                return None
            return {
                name: jax.make_array_from_process_local_data(sharding, array)
                for name, array in batch.items()
            }

        flying = collections.deque(executor.submit(put) for _ in range(max(1, size)))
        try:
            while (batch := flying.popleft().result()) is not None:
                flying.append(executor.submit(put))
                yield batch
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

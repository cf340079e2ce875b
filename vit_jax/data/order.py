# SPDX-License-Identifier: Apache-2.0
"""Which examples each step takes, in what order, and from which seeds.

The batch of a training step is a function of (data, seed, step) alone. Global batch s
is positions [s * B, (s + 1) * B); position g is row permute(g % N) of epoch g // N, so
that batches straddle epochs and each epoch visits every example once. Process p of P
makes the p-th of P equal parts. Random ops draw from a seed made of (seed, g).
Evaluation is one pass in order, whose last batch is filled up. No TensorFlow here.
"""

import dataclasses

import numpy as np
from jaxtyping import Float32, Int

from vit_jax.data.permutation import example_seeds, permute


def batch_rows(
    step: int, batch_size: int, size: int, seed: int
) -> Int[np.ndarray, " b"]:
    """Returns the rows of the global training batch of a step, in order.

    Args:
      step: Number of updates done before it.
      batch_size: Size of the global batch.
      size: Number of examples.
      seed: Seed of the run.
    """
    return Plan(size, batch_size, 0, 1, seed).rows(step)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Says which examples a process takes at each step.

    Attributes:
      size: Number of examples.
      batch_size: Size of the global batch, a multiple of `process_count`.
      process_index: Number of this process.
      process_count: Number of processes.
      seed: Seed of the shuffle; None for one pass in order.
    """

    size: int
    batch_size: int
    process_index: int
    process_count: int
    seed: int | None

    @property
    def local_size(self) -> int:
        """Number of examples of a batch that this process makes."""
        return self.batch_size // self.process_count

    def positions(self, step: int) -> Int[np.ndarray, " b"]:
        """Returns the places of this process's examples in the stream of all."""
        first = step * self.batch_size + self.process_index * self.local_size
        return first + np.arange(self.local_size)

    def rows(self, step: int) -> Int[np.ndarray, " b"]:
        """Returns the rows of this process's examples; padding repeats the last."""
        positions = self.positions(step)
        if self.seed is None:
            return np.minimum(positions, self.size - 1)
        epochs, places = np.divmod(positions, self.size)
        rows = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            now = epochs == epoch
            rows[now] = permute(
                places[now], seed=self.seed, epoch=epoch, size=self.size
            )
        return rows

    def seeds(self, step: int) -> Int[np.ndarray, "b 2"]:
        """Returns the stateless seed of each example."""
        return example_seeds(self.positions(step), seed=self.seed or 0)

    def mask(self, step: int) -> Float32[np.ndarray, " b"]:
        """Returns 1 for each example of one ordered pass and 0 for padding."""
        return (self.positions(step) < self.size).astype(np.float32)

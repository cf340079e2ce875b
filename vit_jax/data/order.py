# SPDX-License-Identifier: Apache-2.0
"""Which examples each step takes, in what order, and from which seeds.

The batch of a training step is a function of (data, seed, step) alone. Global batch s
is positions [s * B, (s + 1) * B); position g is row permute(g % N) of epoch g // N, so
that batches straddle epochs and each epoch visits every example once. Process p of P
makes the p-th of P equal parts. Random ops draw from a seed made of (seed, g).
Evaluation is one pass in order, whose last batch is filled up. No TensorFlow here.

With r repeats (repeated augmentation, arXiv:1901.09335) positions r n to r n + r - 1
share example n of the order, each with a seed of its own. N positions, an epoch of the
config, then visit N / r examples.

A mixture repeats a block of L slots in which source k owns n_k; slot j of block b is
example b * n_k + (rank of j among the slots of k) of that source, which is shuffled by
epochs of its own. A single source is a mixture of one with one slot.

A row that is broken is replaced by a row of the same source that is a hash of (seed, g,
number of the attempt): the first that is not broken. So the batch remains a function of
(data, seed, step).
"""

import dataclasses
import fractions
import functools
import math
from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Float32, Int

from vit_jax.data.permutation import example_seeds, permute
from vit_jax.errors import UserError

MAX_SLOTS = 10_000
"""Slots of the longest block of a mixture."""
ATTEMPTS = 64
"""Replacements that are tried for a broken row."""


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
class Mixture:
    """Which of several sources each place of the stream of examples draws from.

    Rows are those of the sources one behind the other.

    Attributes:
      sizes: Number of examples of each source.
      slots: How many slots of a block each source owns.
    """

    sizes: tuple[int, ...]
    slots: tuple[int, ...]

    @functools.cached_property
    def owners(self) -> Int[np.ndarray, " l"]:
        """The source of each slot: always the one that is furthest behind its share."""
        length = sum(self.slots)
        owners = np.empty(length, np.int64)
        given = np.zeros(len(self.slots), np.int64)
        for slot in range(length):
            behind = np.array(self.slots) * (slot + 1) - given * length
            owners[slot] = np.argmax(np.where(given < self.slots, behind, -(2**62)))
            given[owners[slot]] += 1
        return owners

    def rows(
        self, positions: Int[np.ndarray, " b"], seed: int
    ) -> Int[np.ndarray, " b"]:
        """Returns the row at each place of the stream."""
        blocks, slots = np.divmod(positions, len(self.owners))
        owners = self.owners[slots]
        rows = np.empty_like(positions)
        first = 0
        for number, (size, share) in enumerate(
            zip(self.sizes, self.slots, strict=True)
        ):
            here = owners == number
            ranks = np.cumsum(self.owners == number) - 1
            examples = blocks[here] * share + ranks[slots[here]]
            own = _shuffled(examples, size, _seed_of(seed, number))
            rows[here] = first + own
            first += size
        return rows

    def replacements(
        self, positions: Int[np.ndarray, " b"], seed: int, attempt: int
    ) -> Int[np.ndarray, " b"]:
        """Returns rows that stand in for broken ones, from the same sources."""
        owners = self.owners[positions % len(self.owners)]
        pairs = example_seeds(positions, seed=_seed_of(seed, attempt))
        words = pairs.view(np.uint32).astype(np.uint64)
        sizes = np.array(self.sizes)
        firsts = np.cumsum(sizes) - sizes
        words = (words[:, 0] << np.uint64(32)) | words[:, 1]
        return firsts[owners] + (words % sizes[owners].astype(np.uint64)).astype(int)


def _shuffled(
    examples: Int[np.ndarray, " n"], size: int, seed: int
) -> Int[np.ndarray, " n"]:
    """Returns the rows of a source's n-th, ... examples, counted over all epochs."""
    epochs, places = np.divmod(examples, size)
    rows = np.empty_like(places)
    for epoch in np.unique(epochs).tolist():
        now = epochs == epoch
        rows[now] = permute(places[now], seed=seed, epoch=epoch, size=size)
    return rows


def _seed_of(seed: int, number: int) -> int:
    """Returns a seed of its own for each number, for 0 the seed itself."""
    return seed + (number << 64)


def whole_slots(weights: Sequence[float]) -> tuple[int, ...]:
    """Returns the smallest whole numbers in the proportion of some weights.

    Raises:
      UserError: A weight that is not positive, or proportions that take a block of more
        than 10,000 slots.

    Example:
      >>> whole_slots([0.5, 0.25, 0.25])
      (2, 1, 1)
    """
    exact = [fractions.Fraction(str(weight)) for weight in weights]
    denominator = math.lcm(*(weight.denominator for weight in exact))
    slots = [int(weight * denominator) for weight in exact]
    divisor = math.gcd(*slots)
    if min(slots) <= 0 or sum(slots) // divisor > MAX_SLOTS:
        raise UserError(
            f"the weights {', '.join(map(str, weights))} of a mixture must be positive "
            "and in the proportion of whole numbers whose sum is at most "
            f"{MAX_SLOTS:,}; use for example 3 and 1, or 0.75 and 0.25"
        )
    return tuple(slot // divisor for slot in slots)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Says which examples a process takes at each step.

    Attributes:
      size: Number of examples.
      batch_size: Size of the global batch, a multiple of `process_count`.
      process_index: Number of this process.
      process_count: Number of processes.
      seed: Seed of the shuffle; None for one pass in order.
      mixture: Whence each place draws; None for a single source.
      repeats: How many places next to each other share an example.
    """

    size: int
    batch_size: int
    process_index: int
    process_count: int
    seed: int | None
    mixture: Mixture | None = None
    repeats: int = 1

    @property
    def local_size(self) -> int:
        """Number of examples of a batch that this process makes."""
        return self.batch_size // self.process_count

    def positions(self, step: int) -> Int[np.ndarray, " b"]:
        """Returns the places of this process's examples in the stream of all."""
        first = step * self.batch_size + self.process_index * self.local_size
        return first + np.arange(self.local_size)

    def rows(self, step: int, broken: Collection[int] = ()) -> Int[np.ndarray, " b"]:
        """Returns the rows of this process's examples; padding repeats the last.

        Args:
          step: Number of updates done before it.
          broken: Rows that others stand in for.

        Raises:
          UserError: A row for which no replacement is found that is not broken.
        """
        positions = self.positions(step)
        if self.seed is None:
            return np.minimum(positions, self.size - 1)
        mixture = self.mixture or Mixture((self.size,), (1,))
        positions = positions // self.repeats
        rows = mixture.rows(positions, self.seed)
        if not broken:
            return rows
        known = np.fromiter(broken, np.int64)
        for attempt in range(1, ATTEMPTS + 1):
            wrong = np.isin(rows, known)
            if not wrong.any():
                return rows
            rows[wrong] = mixture.replacements(positions[wrong], self.seed, attempt)
        raise UserError(
            f"{ATTEMPTS} images that should stand in for a broken one are broken "
            f"themselves ({len(known)} of {self.size} were found so far); mend the "
            "data set: 'python -m vit_jax.data.scan DATASET' lists what is broken"
        )

    def seeds(self, step: int) -> Int[np.ndarray, "b 2"]:
        """Returns the stateless seed of each example."""
        return example_seeds(self.positions(step), seed=self.seed or 0)

    def mask(self, step: int) -> Float32[np.ndarray, " b"]:
        """Returns 1 for each example of one ordered pass and 0 for padding."""
        return (self.positions(step) < self.size).astype(np.float32)

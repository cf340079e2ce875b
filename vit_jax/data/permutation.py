# SPDX-License-Identifier: Apache-2.0
"""The shuffle: a permutation of any number of examples, computed on the fly.

Nothing is stored and nothing is buffered: the row that stands at any place of any
epoch is computed by itself, so that a run resumes anywhere at once. Here is also the
64-bit mixing function, from which the seeds of examples are made. No TensorFlow here.
"""

import functools

import numpy as np
from jaxtyping import Int, UInt64

from vit_jax.errors import UserError

NUM_ROUNDS = 6


def mix64(x: UInt64[np.ndarray, "*n"]) -> UInt64[np.ndarray, "*n"]:
    """Scrambles 64-bit words one to one: every input bit moves every output bit.

    The output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014; variant 13 of D. Stafford).
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def permute(
    index: Int[np.ndarray, "*n"], *, seed: int, epoch: int, size: int
) -> Int[np.ndarray, "*n"]:
    """Returns the rows that stand at the places `index` of a shuffled epoch.

    For a fixed seed, epoch and size the map is a bijection of 0..size-1. It is an
    alternating Feistel network (Luby and Rackoff, 1988) on the smallest power of two
    that holds `size`; places that land outside `size` walk on along their cycle
    (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).

    Args:
      index: Places in the epoch, each in 0..size-1, of any shape.
      seed: Seed of the run, 0 or more; all its bits count, however many.
      epoch: Number of the epoch, 0 or more.
      size: Number of examples.

    Returns:
      Row numbers as int64, in the shape of `index`.

    Raises:
      UserError: A negative seed.
      ValueError: A place outside the epoch.
    """
    index = np.asarray(index, np.int64)
    if index.size and (index.min() < 0 or index.max() >= size):
        raise ValueError(f"places must lie in 0..{size - 1}")
    keys = _keys(seed, epoch, size)
    rows = _feistel(index.astype(np.uint64).ravel(), size, keys)
    outside = np.flatnonzero(rows >= size)
    while outside.size:
        walked = _feistel(rows[outside], size, keys)
        rows[outside] = walked
        outside = outside[walked >= size]
    return rows.astype(np.int64).reshape(index.shape)


def example_seeds(
    positions: Int[np.ndarray, " n"], *, seed: int
) -> Int[np.ndarray, "n 2"]:
    """Returns the stateless seed of the example at each position of the run.

    It is word number `position` of SplitMix64 started from a hash of `seed`, cut in
    two: no two positions of a run share one.

    Args:
      positions: Places in the stream of all examples of the run, 0 or more.
      seed: Seed of the run, 0 or more.

    Returns:
      int32 pairs, as the stateless random ops take them.

    Raises:
      UserError: A negative seed.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    words = mix64(_stream_key(seed) + positions.astype(np.uint64) * golden)
    halves = np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=-1)
    return halves.astype(np.uint32).view(np.int32)


def _feistel(
    x: UInt64[np.ndarray, " n"], size: int, keys: UInt64[np.ndarray, " r"]
) -> UInt64[np.ndarray, " n"]:
    """Permutes the words below the power of two that holds `size`."""
    bits = max(2, (size - 1).bit_length())
    low_bits = np.uint64(bits // 2)
    low = x & ((np.uint64(1) << low_bits) - np.uint64(1))
    high = x >> low_bits
    widths = (np.uint64(bits) - low_bits, low_bits)
    for number, key in enumerate(keys):
        # The top bits of the product are its best; the keyed word fills all 64 bits.
        mixed = mix64(low ^ key) >> (np.uint64(64) - widths[number % 2])
        low, high = high ^ mixed, low
    return (high << low_bits) | low


@functools.lru_cache(maxsize=64)
def _keys(seed: int, epoch: int, size: int) -> np.ndarray:
    return _sequence(seed, epoch, size).generate_state(NUM_ROUNDS, np.uint64)


@functools.lru_cache(maxsize=64)
def _stream_key(seed: int) -> np.uint64:
    return _sequence(seed).generate_state(1, np.uint64)[0]


def _sequence(seed: int, *more: int) -> np.random.SeedSequence:
    if seed < 0:
        raise UserError(f"seed {seed} is negative; use 0 or a positive integer")
    return np.random.SeedSequence([seed, *more])

# SPDX-License-Identifier: Apache-2.0
"""Finds pairs of near-duplicate pictures among the hashes of two sets.

Two stages. Candidates are pairs whose 64-bit hashes differ in few bits, found without
comparing all pairs: the hash is cut into 4 bands of 16 bits, and two hashes that
differ in r bits agree in some band up to r // 4 bits (the multi-index hashing of
Norouzi, Punjani and Fleet, CVPR 2012). Pixels then confirm or refuse a candidate: a
perceptual hash of flat pictures, logos or pages of text collides now and then.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float32, Int, UInt8, UInt64
from PIL import Image

from vit_jax.errors import UserError

NUM_BANDS = 4
BAND_BITS = 16
MAX_RADIUS = 11
"""Beyond, three flips a band would make 697 look-ups of each hash, and most candidates
are none."""
THUMBNAIL_SIDE = 16
BLOCK = 65_536
"""Hashes that are looked up together."""


def find_candidates(
    hashes: UInt64[np.ndarray, " n"],
    others: UInt64[np.ndarray, " m"],
    radius: int,
) -> Int[np.ndarray, "p 3"]:
    """Finds all pairs of hashes that differ in at most `radius` bits.

    Args:
      hashes: One set, the large one.
      others: The other set.
      radius: Bits that may differ.

    Returns:
      Row in `hashes`, row in `others` and number of differing bits of each pair,
      sorted by rows.

    Raises:
      UserError: A radius outside 0..11.
    """
    if not 0 <= radius <= MAX_RADIUS:
        raise UserError(f"radius {radius} must lie in 0 to {MAX_RADIUS} bits")
    index = [_index(band) for band in _bands(others)]
    found = [np.empty((0, 3), np.int64)]
    for start in range(0, len(hashes), BLOCK):
        block = hashes[start : start + BLOCK]
        for rows, matched in _look_up(block, index, radius // NUM_BANDS):
            distance = np.bitwise_count(block[rows] ^ others[matched])
            near = distance <= radius
            columns = (rows[near] + start, matched[near], distance[near])
            found.append(np.stack(columns, axis=-1).astype(np.int64))
    return np.unique(np.concatenate(found), axis=0)


def _bands(hashes: np.ndarray) -> list[np.ndarray]:
    """Cuts hashes into numbers of 16 bits."""
    shifts = np.arange(NUM_BANDS, dtype=np.uint64) * np.uint64(BAND_BITS)
    return [
        ((hashes >> shift) & np.uint64(0xFFFF)).astype(np.int64) for shift in shifts
    ]


def _index(band: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows sorted by value, and where each of the 65,536 values starts."""
    counts = np.bincount(band, minlength=1 << BAND_BITS)
    return np.argsort(band, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


def _look_up(
    block: np.ndarray, index: list[tuple[np.ndarray, np.ndarray]], flips: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields pairs of rows that agree in a band but for up to `flips` bits."""
    masks = [
        sum(1 << bit for bit in bits)
        for count in range(flips + 1)
        for bits in itertools.combinations(range(BAND_BITS), count)
    ]
    for band, (order, starts) in zip(_bands(block), index, strict=True):
        for mask in masks:
            value = band ^ mask
            first, count = starts[value], starts[value + 1] - starts[value]
            rows = np.repeat(np.arange(len(block)), count)
            ends = np.cumsum(count)
            inside = np.arange(len(rows)) - np.repeat(ends - count, count)
            yield rows, order[first[rows] + inside]


def thumbnail(image: UInt8[np.ndarray, "h w 3"]) -> Float32[np.ndarray, "16 16"]:
    """Shrinks a picture for `pixel_distance`, whatever its shape.

    Grey, and mean 0 and variance 1, so that colour, brightness and contrast do not
    count. Levels of a flat picture are divided by 1, not by their tiny spread.
    """
    side = (THUMBNAIL_SIDE, THUMBNAIL_SIDE)
    grey = Image.fromarray(image).convert("L").resize(side, Image.Resampling.BOX)
    levels = np.asarray(grey).astype(np.float32)
    return (levels - levels.mean()) / max(levels.std(), np.float32(1.0))


def pixel_distance(
    first: Float32[np.ndarray, "16 16"], second: Float32[np.ndarray, "16 16"]
) -> float:
    """Returns the root mean square difference of two thumbnails.

    0 for equal pictures, sqrt(2) = 1.41 for unrelated ones, 2 for a negative.
    """
    return float(np.sqrt(np.mean(np.square(first - second))))

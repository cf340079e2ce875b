# SPDX-License-Identifier: Apache-2.0
"""Candidates by hash, and their confirmation by pixels."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.data.pictures import photo
from vit_jax.data.prepare.hash_matching import (
    find_candidates,
    pixel_distance,
    thumbnail,
)
from vit_jax.errors import UserError


@pytest.mark.parametrize("radius", [0, 1, 3, 4, 7, 8, 11])
def test_all_near_pairs_are_found_and_no_others(rng, radius):
    """Against a comparison of all pairs, of hashes whose distances are 0 to 16."""
    others = rng.integers(0, 2**64, 40, np.uint64)
    hashes = np.repeat(others, 17)
    for row, value in enumerate(hashes.tolist()):
        for bit in rng.permutation(64)[: row % 17].tolist():
            value ^= 1 << bit
        hashes[row] = value
    expected = [
        [row, match, (one ^ two).bit_count()]
        for (row, one), (match, two) in itertools.product(
            enumerate(hashes.tolist()), enumerate(others.tolist())
        )
        if (one ^ two).bit_count() <= radius
    ]
    assert len(expected) >= 40 * (radius + 1)
    assert find_candidates(hashes, others, radius).tolist() == expected


def test_no_hashes_have_no_candidates():
    none, one = np.array([], np.uint64), np.array([5], np.uint64)
    assert find_candidates(none, one, 8).shape == (0, 3)
    assert find_candidates(one, none, 8).shape == (0, 3)


@pytest.mark.parametrize("radius", [-1, 12])
def test_a_radius_outside_the_range_is_refused(radius):
    one = np.array([5], np.uint64)
    with pytest.raises(UserError, match=f"radius {radius} must lie in 0 to 11"):
        find_candidates(one, one, radius)


def noise(seed: int) -> Image.Image:
    """A picture of large, unrelated squares."""
    levels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(levels).resize((128, 96), Image.Resampling.NEAREST)


def distance(first: Image.Image, second: Image.Image) -> float:
    return pixel_distance(*(thumbnail(np.asarray(im)) for im in (first, second)))


def packed(image: Image.Image, quality: int) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer).convert("RGB")


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.resize((48, 48), Image.Resampling.BICUBIC),
        lambda image: packed(image, 40),
        lambda image: image.convert("L").convert("RGB"),
        lambda image: ImageEnhance.Contrast(image).enhance(0.7),
        lambda image: ImageEnhance.Brightness(image).enhance(0.8),
    ],
    ids=["shrunk", "packed", "grey", "dull", "dark"],
)
def test_copies_are_nearer_than_the_threshold(change):
    for seed in range(5):
        assert distance(noise(seed), change(noise(seed))) < 0.2


def test_unrelated_pictures_differ_by_the_square_root_of_two():
    """Independent numbers of variance 1 differ by numbers of variance 2."""
    distances = [distance(noise(seed), noise(seed + 100)) for seed in range(30)]
    assert np.mean(distances) == pytest.approx(2**0.5, abs=0.1)
    assert min(distances) > 0.8


def test_a_negative_has_distance_two():
    image = np.asarray(noise(0).convert("L").convert("RGB"))
    negative = 255 - image
    found = pixel_distance(thumbnail(image), thumbnail(negative))
    assert found == pytest.approx(2.0, abs=0.02)  # levels are rounded when shrunk


def test_flat_pictures_are_equal_and_unlike_others():
    flat = [Image.new("RGB", (32, 32), (level,) * 3) for level in (0, 128, 255)]
    assert distance(flat[0], flat[1]) == distance(flat[1], flat[2]) == 0.0
    assert distance(flat[0], photo()) == pytest.approx(1.0, abs=1e-3)

# SPDX-License-Identifier: Apache-2.0
"""Masked patch prediction: what is drawn, what is asked, and what a mistake costs."""

import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.masked_patch import (
    TARGETS,
    build_masked_patches,
    draw_corruption,
    to_patches,
)

BLACK, WHITE = (-1.0, -1.0, -1.0), (1.0, 1.0, 1.0)


def objective(target: str, patch_size: tuple[int, int] = (4, 4), **fields: Any):
    return build_masked_patches(
        target=target,
        patch_size=patch_size,
        **{"black": BLACK, "white": WHITE, **fields},
    )


def classes(image: np.ndarray, *args: Any, **fields: Any) -> np.ndarray:
    return np.asarray(jax.jit(objective(*args, **fields).classes)(image))


def keys(count: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


def scaled(levels: np.ndarray) -> np.ndarray:
    """What `value_range(-1, 1)` makes of levels."""
    return (levels.astype(np.float32) - np.float32(127.5)) * np.float32(1 / 127.5)


@pytest.mark.parametrize(("patches", "share"), [(196, 0.5), (49, 0.5), (196, 0.15)])
def test_the_shares_are_those_of_the_paper(patches: int, share: float):
    images = math.ceil(1e6 / patches)
    draw = jax.jit(lambda keys: draw_corruption(keys, patches, share))
    source, corrupted = jax.device_get(draw(keys(images)))
    own = np.broadcast_to(np.arange(patches), source.shape)
    total, count = source.size, int(corrupted.sum())
    assert total >= 1_000_000
    # Four standard deviations of a share of `of` independent draws.
    assert abs(count / total - share) < 4 * math.sqrt(share * (1 - share) / total)
    for fate, wanted in (
        (source == -1, 0.8),
        ((source != own) & (source >= 0), 0.1),
        (corrupted & (source == own), 0.1),
    ):
        assert not fate[~corrupted].any()
        found = fate.sum() / count
        assert abs(found - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / count)
    # Each image by itself has the share, rounded one way or the other.
    per_image = corrupted.sum(axis=1)
    assert set(per_image) <= {math.floor(share * patches), math.ceil(share * patches)}
    # No place is preferred.
    by_place = corrupted.mean(axis=0)
    assert np.abs(by_place - share).max() < 5 * math.sqrt(share * (1 - share) / images)


def test_the_other_patch_is_any_other_of_the_image():
    draw = jax.jit(lambda keys: draw_corruption(keys, 4, 1.0))
    source, _ = jax.device_get(draw(keys(20_000)))
    own = np.arange(4)
    counts = np.zeros((4, 4))
    for place in own:
        others = source[:, place][source[:, place] >= 0]
        counts[place] = np.bincount(others, minlength=4)
    # 10 % stay; the other 10 % are shared by the three others.
    assert np.abs(np.diag(counts) / 20_000 - 0.1).max() < 0.01
    off = counts[~np.eye(4, dtype=bool)] / 20_000
    assert np.abs(off - 0.1 / 3).max() < 4 * math.sqrt(0.033 / 20_000)


def test_the_draw_of_an_image_depends_on_its_key_alone():
    draw = jax.jit(lambda keys: draw_corruption(keys, 9, 0.5))
    both, alone = draw(keys(6)), draw(keys(6)[4:5])
    for whole, one in zip(both, alone, strict=True):
        np.testing.assert_array_equal(whole[4:5], one)
    assert len(np.unique(both[0], axis=0)) == 6


# Patches of 4x4 pixels in one colour, and the class: 64 r + 8 g + b of level // 32.
COLOURS = [
    ((0, 0, 0), 0),
    ((255, 255, 255), 511),
    ((255, 0, 0), 7 * 64),
    ((0, 255, 0), 7 * 8),
    ((0, 0, 255), 7),
    ((31, 32, 33), 9),
    ((63, 64, 223), 64 + 16 + 6),
    ((224, 191, 128), 7 * 64 + 5 * 8 + 4),
]


@pytest.mark.parametrize(
    ("black", "white"),
    [(BLACK, WHITE), ((0.0,) * 3, (1.0,) * 3), ((-2.1, -2.0, -1.8), (2.2, 2.4, 2.6))],
)
def test_the_classes_of_plain_patches(black: tuple, white: tuple):
    levels = np.zeros((1, 4, 4 * len(COLOURS), 3))
    for place, (colour, _) in enumerate(COLOURS):
        levels[:, :, 4 * place : 4 * place + 4] = colour
    low, high = np.float32(black), np.float32(white)
    image = (levels / 255 * (high - low) + low).astype(np.float32)
    for target, cells in (("mean_colour", 1), ("small_colours", 16)):
        found = classes(image, target, black=black, white=white)
        expected = [[number] * cells for _, number in COLOURS]
        np.testing.assert_array_equal(found, [expected])


def test_every_level_of_grey_is_its_highest_three_bits():
    levels = np.arange(256)[None, None, :, None].repeat(3, -1)
    found = classes(scaled(levels), "mean_colour", (1, 1))
    grey = np.arange(256) >> 5
    np.testing.assert_array_equal(found[0, :, 0], 73 * grey)


def test_the_mean_is_of_levels_and_exact_at_the_edge_of_a_class():
    # 15 pixels of 32 and one of 31 or 32: a mean just below 32, and 32.
    levels = np.full((2, 4, 4, 3), 32)
    levels[0, 3, 3] = 31
    found = classes(scaled(levels), "mean_colour")
    np.testing.assert_array_equal(found, [[[0]], [[73]]])


def test_small_colours_are_the_means_of_the_parts_in_raster_order():
    levels = np.zeros((1, 8, 8, 3), np.int64)
    levels[0, 0:2, 2:4] = (255, 0, 0)  # the second part of the first row
    levels[0, 6:8, 0:2] = (0, 64, 0)  # the first part of the last row
    levels[0, 2, 0] = (0, 0, 128)  # a quarter of a part: a mean of 32
    found = classes(scaled(levels), "small_colours", (8, 8))
    expected = np.zeros(16)
    expected[1], expected[12], expected[4] = 7 * 64, 2 * 8, 1
    np.testing.assert_array_equal(found[0, 0], expected)


@pytest.mark.parametrize("patch_size", [(7, 7), (14, 14), (2, 6), (16, 16)])
def test_pixels_in_several_parts_count_by_their_area(patch_size: tuple[int, int], rng):
    rows, columns = patch_size
    levels = rng.integers(0, 256, (1, rows, columns, 3))
    found = classes(scaled(levels), "small_colours", patch_size)

    def overlap(side: int, pixel: int, cell: int) -> Fraction:
        start = max(Fraction(pixel), Fraction(cell * side, 4))
        end = min(Fraction(pixel + 1), Fraction((cell + 1) * side, 4))
        return max(end - start, Fraction(0))

    expected = []
    for y in range(4):
        for x in range(4):
            number = 0
            for channel in range(3):
                total = sum(
                    overlap(rows, i, y)
                    * overlap(columns, j, x)
                    * int(levels[0, i, j, channel])
                    for i in range(rows)
                    for j in range(columns)
                )
                mean = total / Fraction(rows * columns, 16)
                number = 8 * number + int(mean // 32)
            expected.append(number)
    np.testing.assert_array_equal(found[0, 0], expected)


def test_values_beyond_the_range_are_cut():
    image = np.full((1, 4, 4, 3), [-1.5, 0.0, 7.0], np.float32)
    # 127.5 is rounded to the even 128.
    expected = 0 * 64 + 4 * 8 + 7
    assert classes(image, "mean_colour").item() == expected


@pytest.fixture
def example(rng) -> dict[str, Any]:
    image = scaled(rng.integers(0, 256, (3, 8, 12, 3)))
    batch = {"image": jnp.asarray(image)}
    return jax.jit(objective("mean_colour").corrupt)(keys(3), batch)


def numpy_loss(target: str, predictions: np.ndarray, batch: dict) -> np.ndarray:
    """The loss by loops over images and corrupted patches, in float64."""
    losses = []
    for b, image in enumerate(np.asarray(batch["image"], np.float64)):
        found = []
        for n in np.flatnonzero(batch["corrupted"][b]):
            y, x = divmod(int(n), 3)
            patch = image[4 * y : 4 * y + 4, 4 * x : 4 * x + 4]
            given = predictions[b, n].astype(np.float64)
            if target == "pixels":
                found.append(np.mean((given - patch.reshape(-1)) ** 2))
                continue
            levels = np.rint((patch + 1) * 127.5)
            if target == "mean_colour":
                levels = levels.mean(axis=(0, 1), keepdims=True)
            bits = (levels // 32).astype(int).reshape(-1, 3)
            logits = given.reshape(len(bits), 512)
            log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            classes = bits @ [64, 8, 1]
            found.append(-np.mean(log_p[np.arange(len(bits)), classes]))
        losses.append(np.mean(found))
    return np.array(losses)


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_equals_its_definition_in_numpy(target: str, example: dict, rng):
    asked = objective(target)
    size = {"mean_colour": 512, "small_colours": 16 * 512, "pixels": 48}[target]
    assert asked.outputs == size
    predictions = rng.normal(size=(3, 6, size)).astype(np.float32)
    found = jax.jit(asked)(jnp.asarray(predictions), example)
    host = jax.device_get(example)
    # float32 sums of 512 exponentials.
    np.testing.assert_allclose(found, numpy_loss(target, predictions, host), rtol=1e-5)


@pytest.mark.parametrize("target", ["mean_colour", "small_colours"])
def test_a_head_of_zeros_loses_the_log_of_512(target: str, example: dict):
    asked = objective(target)
    found = jax.jit(asked)(jnp.zeros((3, 6, asked.outputs)), example)
    np.testing.assert_allclose(found, np.log(512), rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_patches_that_are_not_corrupted_cost_and_teach_nothing(
    target: str, example: dict, rng
):
    asked = objective(target)
    predictions = jnp.asarray(rng.normal(size=(3, 6, asked.outputs)), jnp.float32)
    corrupted = np.asarray(example["corrupted"])
    loss = jax.jit(lambda predictions, batch: asked(predictions, batch).sum())
    value, gradient = jax.value_and_grad(loss)(predictions, example)
    touched = np.abs(np.asarray(gradient)).sum(-1) > 0
    np.testing.assert_array_equal(touched, corrupted)
    # Other pixels in the untouched patches are other targets there.
    pixels = np.asarray(to_patches(np.asarray(example["image"]), (4, 4))).copy()
    pixels[~corrupted] = -pixels[~corrupted]
    cut = pixels.reshape(3, 2, 3, 4, 4, 3).swapaxes(2, 3).reshape(3, 8, 12, 3)
    assert not np.array_equal(cut, example["image"])
    again = loss(predictions, {**example, "image": jnp.asarray(cut)})
    assert float(again) == float(value)


def test_accuracy_counts_right_classes_of_corrupted_patches():
    levels = np.zeros((1, 4, 16, 3))
    levels[:, :, :4] = 255
    batch = {
        "image": jnp.asarray(scaled(levels)),
        "corrupted": jnp.array([[True, True, True, False]]),
    }
    predictions = np.zeros((1, 4, 512), np.float32)
    predictions[0, [0, 1, 2, 3], [511, 0, 5, 5]] = 1
    found = jax.jit(objective("mean_colour").accuracy)(predictions, batch)
    np.testing.assert_allclose(found, [2 / 3], rtol=1e-6)


def test_a_filling_without_corrupted_patches_costs_nothing(example: dict):
    batch = {**example, "corrupted": jnp.zeros((3, 6), bool)}
    found = jax.jit(objective("pixels"))(jnp.ones((3, 6, 48)), batch)
    np.testing.assert_array_equal(found, np.zeros(3))


def test_unknown_targets_are_told_the_nearest():
    with pytest.raises(UserError, match=r"target 'mean_color'; did you mean 'mean_col"):
        objective("mean_color")


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_out_of_range_is_refused(share: float):
    with pytest.raises(UserError, match=r"corrupted=.* must lie in 0 < corrupted <= 1"):
        objective("pixels", corrupted=share)


@pytest.mark.parametrize(("patches", "share"), [(1, 0.5), (4, 0.15)])
def test_too_few_patches_are_refused(patches: int, share: float):
    with pytest.raises(UserError, match=f"an image of {patches} patches of which"):
        draw_corruption(keys(2), patches, share)

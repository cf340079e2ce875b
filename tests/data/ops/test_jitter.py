# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf
from PIL import ImageEnhance

from tests.data import pictures
from vit_jax.data.preprocess import build_preprocess
from vit_jax.errors import UserError

PHOTO = pictures.photo()
IMAGE = np.asarray(PHOTO)
GREY = np.array([124, 116, 104])  # ImageNet's mean in levels


def run_many(ops: str, image, count: int) -> np.ndarray:
    graph = tf.function(build_preprocess(ops))
    results = []
    for number in range(count):
        features = {"image": image, "seed": tf.constant([number, 8])}
        results.append(graph(features)["image"].numpy())
    return np.stack(results)


# Colour jitter


def test_brightness_factors_are_uniform_around_one():
    level = np.full((2, 2, 3), 100, np.uint8)
    levels = run_many("color_jitter(brightness=0.4)", level, 400)[:, 0, 0, 0]
    assert 59 <= levels.min() <= 63
    assert 136 <= levels.max() <= 140
    assert abs(levels.mean() - 99.5) < 3  # deviation of the mean 1.2
    assert np.histogram(levels, 4, (60, 140))[0].min() > 65  # 100 expected


@pytest.mark.parametrize(
    ("name", "enhance"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
def test_each_change_is_pillows_for_some_factor(name: str, enhance):
    theirs = np.stack(
        [enhance(PHOTO).enhance(f) for f in np.linspace(0.6, 1.4, 801)]
    ).astype(int)
    for image in run_many(f"color_jitter({name}=0.4)", IMAGE, 6).astype(int):
        worst = np.abs(theirs - image).reshape(801, -1).max(axis=1)
        assert worst.min() <= 1


def test_all_four_changes_are_made_in_any_order():
    results = run_many("color_jitter(0.4, 0.4, 0.4, 0.1)", IMAGE, 30)
    assert results.dtype == np.uint8
    assert len({result.tobytes() for result in results}) == 30
    assert results.std(axis=(1, 2, 3)).min() > 10
    # Where brightness clips, the order tells: a bright picture, made brighter and then
    # flatter, has lost its whites; flatter first, it keeps them.
    light = np.full((1, 2, 3), 250, np.uint8)
    light[0, 0] = 90
    bounds = run_many("color_jitter(0.4, 0.4)", light, 300)
    assert len(np.unique(bounds.reshape(300, -1), axis=0)) > 250


def test_more_jitter_moves_the_picture_farther():
    means = [
        np.abs(run_many(f"color_jitter({x}, {x}, {x}, {x / 4})", IMAGE, 20) - 0.0)
        for x in (0.1, 0.3, 0.6)
    ]
    moved = [np.abs(mean - IMAGE.astype(float)).mean() for mean in means]
    assert moved == sorted(moved)
    assert np.array_equal(run_many("color_jitter", IMAGE, 1)[0], IMAGE)


def test_even_the_strongest_jitter_leaves_something_to_see():
    results = run_many("color_jitter(1, 1, 1, 0.5)", IMAGE, 40)
    assert results.std(axis=(1, 2, 3)).min() > 0.5


# Random erasing


def box_of(result: np.ndarray, image: np.ndarray) -> tuple[int, int, int, int] | None:
    """The frame around what differs: top, left, height, width."""
    differs = (result != image).any(-1)
    if not differs.any():
        return None
    rows, columns = np.flatnonzero(differs.any(1)), np.flatnonzero(differs.any(0))
    top, left = rows[0], columns[0]
    return top, left, rows[-1] + 1 - top, columns[-1] + 1 - left


def test_boxes_have_the_stated_area_aspect_and_frequency():
    image = np.full((60, 80, 3), 255, np.uint8)
    results = run_many("random_erasing(prob=0.5, fill='const')", image, 300)
    boxes = [box for result in results if (box := box_of(result, image))]
    assert 120 < len(boxes) < 180  # 150 expected, deviation 9
    areas = np.array([h * w for _, _, h, w in boxes]) / 4800
    aspects = np.array([h / w for _, _, h, w in boxes])
    assert 0.015 < areas.min() < 0.05
    assert 0.28 < areas.max() < 0.35
    assert 0.25 < aspects.min() < 0.45
    assert 2.2 < aspects.max() < 3.8
    assert 0.7 < np.exp(np.log(aspects).mean()) < 1.2  # the log is uniform
    for result in results:
        if box := box_of(result, image):
            top, left, height, width = box
            assert (result[top : top + height, left : left + width] == GREY).all()


def test_noise_of_floats_is_standard_normal():
    image = np.full((64, 64, 3), 9.0, np.float32)
    (result,) = run_many("random_erasing(1, area=(0.4, 0.4), aspect=(1, 1))", image, 1)
    top, left, height, width = box_of(result, image)
    assert (height, width) == (40, 40)  # 64 sqrt(0.4) = 40.5, halves to even
    noise = result[top : top + height, left : left + width]
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05
    zeros = run_many("random_erasing(1, fill='const')", image, 1)[0]
    assert set(np.unique(zeros)) == {0.0, 9.0}


def test_noise_of_bytes_has_the_statistics_of_imagenet():
    image = np.zeros((80, 80, 3), np.uint8)
    (result,) = run_many("random_erasing(1, area=(0.6, 0.6), aspect=(1, 1))", image, 1)
    top, left, height, width = box_of(result, image)
    noise = result[top : top + height, left : left + width].reshape(-1, 3)
    # Clipped at 0 and 255, about two deviations away.
    np.testing.assert_allclose(noise.mean(0), GREY, atol=4)
    np.testing.assert_allclose(noise.std(0), [58, 57, 57], atol=5)


def test_erasing_is_stateless_and_never_total():
    first, second = (run_many("random_erasing(1)", IMAGE, 10) for _ in range(2))
    assert np.array_equal(first, second)
    for result in run_many("random_erasing(1, area=(0.9, 0.99))", IMAGE, 20):
        assert (result == IMAGE).all(-1).mean() > 0.005
    tiny = np.ones((1, 1, 3), np.uint8)
    assert np.array_equal(run_many("random_erasing(1)", tiny, 3)[2], tiny)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("color_jitter(-0.1)", "give 0 or more for the first three"),
        ("color_jitter(hue=0.6)", "a hue from 0 to 0.5"),
        ("random_erasing(1.5)", "prob=1.5; give 0 to 1"),
        ("random_erasing(area=(0.5, 0.1))", "two rising numbers"),
        ("random_erasing(area=(0.5, 1.0))", "areas between 0 and 1"),
        ("random_erasing(aspect=(0, 1))", "two rising numbers"),
        ("random_erasing(fill='rand')", "fill cannot be 'rand'"),
    ],
)
def test_what_has_no_meaning_is_refused(ops: str, message: str):
    with pytest.raises(UserError, match=message):
        build_preprocess(ops)


def test_color_jitter_refuses_float_images():
    features = {"image": tf.zeros((4, 4, 3)), "seed": tf.constant([1, 2])}
    with pytest.raises(UserError, match="color_jitter got a float32 image"):
        build_preprocess("color_jitter(0.4)")(features)

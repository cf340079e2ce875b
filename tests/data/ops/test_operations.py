# SPDX-License-Identifier: Apache-2.0
import colorsys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from tests.data import pictures
from vit_jax.data.ops import operations

PHOTO = pictures.photo()
IMAGE = np.asarray(PHOTO)
DULL = Image.fromarray((IMAGE // 3 + 40).astype(np.uint8))
GREY = operations.FILL


@pytest.mark.parametrize("image", [PHOTO, DULL, Image.new("RGB", (5, 4), (9, 9, 9))])
def test_histogram_operations_equal_pillow(image: Image.Image):
    levels = np.asarray(image)
    for name in ("autocontrast", "equalize", "invert"):
        ours = getattr(operations, name)(levels)
        assert np.array_equal(ours, getattr(ImageOps, name)(image)), name


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_equals_pillow(bits: int):
    ours = operations.posterize(tf.constant(IMAGE), bits)
    assert np.array_equal(ours, ImageOps.posterize(PHOTO, bits))


@pytest.mark.parametrize("threshold", [0, 1, 100, 255, 256])
def test_solarize_equals_pillow(threshold: int):
    ours = operations.solarize(tf.constant(IMAGE), threshold)
    assert np.array_equal(ours, ImageOps.solarize(PHOTO, threshold))


def test_solarize_add_brightens_the_dark_half():
    levels = np.array([0, 100, 127, 128, 200], np.uint8).reshape(1, 5, 1)
    ours = operations.solarize_add(tf.constant(levels), 120)
    assert ours.numpy().ravel().tolist() == [120, 220, 247, 128, 200]


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.55, 1.0, 1.9, 3.7])
@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_blends_equal_pillow_within_one_level(name: str, factor: float):
    for image in (PHOTO, DULL):
        ours = getattr(operations, name)(tf.constant(np.asarray(image)), factor)
        theirs = getattr(ImageEnhance, name.capitalize())(image).enhance(factor)
        assert np.abs(ours.numpy().astype(int) - np.asarray(theirs)).max() <= 1


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
def test_rotate_turns_anticlockwise_about_the_centre(degrees: int):
    square = IMAGE[:40, :40]
    ours = operations.rotate(tf.constant(square), degrees)
    assert np.array_equal(ours, np.rot90(square, degrees // 90))


def test_rotate_by_any_angle_agrees_with_pillow():
    theirs = PHOTO.rotate(30, Image.Resampling.NEAREST, fillcolor=(GREY, GREY, GREY))
    differs = (operations.rotate(tf.constant(IMAGE), 30).numpy() != theirs).any(-1)
    assert differs.mean() < 0.02  # pixels that lie between two


@pytest.mark.parametrize("share", [0.225, -0.225, 0.0, 1.0])
@pytest.mark.parametrize("axis", [0, 1])
def test_translate_shifts_by_a_share_of_the_side_and_fills_with_grey(axis, share):
    shifted = operations.translate(tf.constant(IMAGE), share, axis).numpy()
    side = IMAGE.shape[axis]
    pixels = round(share * side)
    source = np.arange(side) + pixels
    inside = (source >= 0) & (source < side)
    kept = np.compress(inside, shifted, axis)
    assert np.array_equal(kept, np.take(IMAGE, source[inside], axis))
    assert (np.compress(~inside, shifted, axis) == GREY).all()
    assert inside.sum() == side - abs(pixels)


def test_shear_keeps_the_middle_row_and_moves_the_others_apart():
    image = IMAGE[:39]
    sheared = operations.affine(tf.constant(image), (1, 0.3, 0, 1))
    assert np.array_equal(sheared[19], image[19])
    # Ten rows below the middle, the input is read 0.3 * 10 columns to the right.
    assert np.array_equal(sheared[29, :-3], image[29, 3:])
    assert np.array_equal(sheared[9, 3:], image[9, :-3])
    assert (sheared[29, -3:].numpy() == GREY).all()


def test_affine_takes_the_nearest_pixel():
    coordinates = np.zeros((7, 9, 3), np.uint8)
    coordinates[..., 0], coordinates[..., 1] = np.mgrid[1:8, 1:10]
    matrix = (0.9, 0.37, -0.41, 1.2)
    moved = operations.affine(tf.constant(coordinates), matrix).numpy()
    for y in range(7):
        for x in range(9):
            column = matrix[0] * (x - 4) + matrix[1] * (y - 3) + 4
            row = matrix[2] * (x - 4) + matrix[3] * (y - 3) + 3
            near = (int(np.floor(row + 0.5)), int(np.floor(column + 0.5)))
            inside = 0 <= near[0] < 7 and 0 <= near[1] < 9
            expected = coordinates[near] if inside else [GREY] * 3
            assert moved[y, x].tolist() == list(expected)


def test_cutout_paints_a_square_that_the_edge_cuts():
    white = tf.fill((40, 80, 3), tf.constant(255, tf.uint8))
    painted = operations.cutout(white, 0.5, (0.5, 0.5)).numpy() == GREY
    assert painted[10:30, 30:50].all()
    assert painted[..., 0].sum() == 20 * 20
    corner = operations.cutout(white, 0.5, (0.0, 0.0)).numpy() == GREY
    assert corner[..., 0].sum() == 10 * 10


def test_paste_covers_what_lies_below_and_nothing_else():
    patch = tf.fill((3, 2, 3), tf.constant(7, tf.uint8))
    covered = operations.paste(tf.constant(IMAGE), patch, tf.constant([5, 8])).numpy()
    expected = IMAGE.copy()
    expected[5:8, 8:10] = 7
    assert np.array_equal(covered, expected)
    nothing = tf.zeros((0, 0, 3), tf.uint8)
    same = operations.paste(tf.constant(IMAGE), nothing, tf.constant([40, 48]))
    assert np.array_equal(same, IMAGE)


def test_hue_turns_the_colour_circle():
    colours = np.uint8([[[255, 0, 0], [10, 200, 30], [90, 90, 90]]])
    turned = operations.hue(tf.constant(colours), 1 / 3).numpy()
    assert turned[0, 0].tolist() == [0, 255, 0]  # red becomes green
    assert turned[0, 2].tolist() == [90, 90, 90]
    for turn in (-0.4, 0.1, 0.25):
        turned = operations.hue(tf.constant(colours), turn).numpy()
        h, s, v = colorsys.rgb_to_hsv(*(colours[0, 1] / 255))
        expected = 255 * np.array(colorsys.hsv_to_rgb((h + turn) % 1, s, v))
        assert np.abs(turned[0, 1] - expected).max() <= 1

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from tests.data import pictures
from vit_jax.data import augment
from vit_jax.data.preprocess import build_preprocess
from vit_jax.errors import UserError

PHOTO = pictures.photo()
IMAGE = np.asarray(PHOTO)
DULL = Image.fromarray((IMAGE // 3 + 40).astype(np.uint8))
GREY = augment.FILL
FIXED = ("autocontrast", "equalize", "invert")


def distance(a, b) -> float:
    return float(np.abs(np.asarray(a, float) - np.asarray(b, float)).mean())


@pytest.mark.parametrize("image", [PHOTO, DULL, Image.new("RGB", (5, 4), (9, 9, 9))])
def test_histogram_operations_equal_pillow(image: Image.Image):
    levels = np.asarray(image)
    for name in ("autocontrast", "equalize", "invert"):
        ours = getattr(augment, name)(levels)
        assert np.array_equal(ours, getattr(ImageOps, name)(image)), name


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_equals_pillow(bits: int):
    ours = augment.posterize(tf.constant(IMAGE), bits)
    assert np.array_equal(ours, ImageOps.posterize(PHOTO, bits))


@pytest.mark.parametrize("threshold", [0, 1, 100, 255, 256])
def test_solarize_equals_pillow(threshold: int):
    ours = augment.solarize(tf.constant(IMAGE), threshold)
    assert np.array_equal(ours, ImageOps.solarize(PHOTO, threshold))


def test_solarize_add_brightens_the_dark_half():
    levels = np.array([0, 100, 127, 128, 200], np.uint8).reshape(1, 5, 1)
    ours = augment.solarize_add(tf.constant(levels), 120)
    assert ours.numpy().ravel().tolist() == [120, 220, 247, 128, 200]


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.55, 1.0, 1.9, 3.7])
@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_blends_equal_pillow_within_one_level(name: str, factor: float):
    for image in (PHOTO, DULL):
        ours = getattr(augment, name)(tf.constant(np.asarray(image)), factor)
        theirs = getattr(ImageEnhance, name.capitalize())(image).enhance(factor)
        assert np.abs(ours.numpy().astype(int) - np.asarray(theirs)).max() <= 1


@pytest.mark.parametrize("degrees", [0, 90, 180, -90])
def test_rotate_turns_anticlockwise_about_the_centre(degrees: int):
    square = IMAGE[:40, :40]
    ours = augment.rotate(tf.constant(square), degrees)
    assert np.array_equal(ours, np.rot90(square, degrees // 90))


def test_rotate_by_any_angle_agrees_with_pillow():
    theirs = PHOTO.rotate(30, Image.Resampling.NEAREST, fillcolor=(GREY, GREY, GREY))
    differs = (augment.rotate(tf.constant(IMAGE), 30).numpy() != theirs).any(-1)
    assert differs.mean() < 0.02  # pixels that lie between two


def test_translate_shifts_by_a_share_of_the_side_and_fills_with_grey():
    shifted = augment.OPERATIONS["translate_x"](tf.constant(IMAGE), 5.0, (0.9, 0, 0))
    pixels = round(0.045 * 5 * 48)
    assert np.array_equal(shifted[:, :-pixels], IMAGE[:, pixels:])
    assert (shifted[:, -pixels:].numpy() == GREY).all()
    other = augment.OPERATIONS["translate_y"](tf.constant(IMAGE), 5.0, (0.1, 0, 0))
    pixels = round(0.045 * 5 * 40)
    assert np.array_equal(other[pixels:], IMAGE[:-pixels])


def test_shear_keeps_the_middle_row_and_moves_the_others_apart():
    image = IMAGE[:39]
    sheared = augment.OPERATIONS["shear_x"](tf.constant(image), 10.0, (0.9, 0, 0))
    assert np.array_equal(sheared[19], image[19])
    # Ten rows below the middle, the input is read 0.3 * 10 columns to the right.
    assert np.array_equal(sheared[29, :-3], image[29, 3:])
    assert np.array_equal(sheared[9, 3:], image[9, :-3])


def test_cutout_paints_a_square_that_the_edge_cuts():
    white = tf.fill((40, 80, 3), tf.constant(255, tf.uint8))
    painted = augment.cutout(white, 0.5, (0.5, 0.5)).numpy() == GREY
    assert painted[10:30, 30:50].all()
    assert painted[..., 0].sum() == 20 * 20
    corner = augment.cutout(white, 0.5, (0.0, 0.0)).numpy() == GREY
    assert corner[..., 0].sum() == 10 * 10


@pytest.mark.parametrize("sign", [0.2, 0.8])
@pytest.mark.parametrize("name", augment.OPERATIONS)
def test_distance_grows_with_magnitude_and_no_picture_is_blanked(name, sign):
    operation = augment.OPERATIONS[name]
    moved = [
        operation(tf.constant(IMAGE), float(m), (sign, 0.5, 0.5)).numpy()
        for m in (0, 3, 10, 20, 30)
    ]
    assert all(image.dtype == np.uint8 for image in moved)
    assert all(image.std() > 3 for image in moved)
    distances = [distance(image, IMAGE) for image in moved]
    if name in FIXED:
        assert len(set(distances)) == 1
        return
    assert distances[0] == 0
    assert distances[1] < distances[2]
    assert name in ("shear_x", "shear_y") or distances == sorted(distances)


def test_all_operations_are_drawn_and_each_about_as_often(monkeypatch):
    count = len(augment.OPERATIONS)
    assert count == 16

    def paint(number: int):
        return lambda image, m, draw: tf.zeros_like(image) + tf.cast(number, tf.uint8)

    painted = {name: paint(number) for number, name in enumerate(augment.OPERATIONS)}
    monkeypatch.setattr(augment, "OPERATIONS", painted)
    graph = tf.function(build_preprocess("randaug(1, 10)"))
    drawn = [
        int(graph({"image": IMAGE, "seed": tf.constant([n, 3])})["image"][0, 0, 0])
        for n in range(800)
    ]
    counts = np.bincount(drawn, minlength=count)
    assert counts.min() > 25  # 50 expected, deviation 7
    assert counts.max() < 80


def test_randaug_is_stateless_and_keeps_dtype_and_shape():
    graph = tf.function(build_preprocess("randaug(2, magnitude=15)"))
    results = []
    for number in range(12):
        features = {"image": IMAGE, "seed": tf.constant([number, 3])}
        first, second = graph(features)["image"], graph(features)["image"]
        assert np.array_equal(first, second)
        assert (first.dtype, first.shape) == (tf.uint8, IMAGE.shape)
        results.append(first.numpy().tobytes())
    assert len(set(results)) > 9


def test_randaug_works_on_images_of_unknown_size():
    signature = {
        "image": tf.TensorSpec((None, None, 3), tf.uint8),
        "seed": tf.TensorSpec((2,), tf.int32),
    }
    graph = tf.function(build_preprocess("randaug"), input_signature=[signature])
    for number in range(20):
        result = graph({"image": IMAGE, "seed": tf.constant([number, 0])})
        assert result["image"].shape == IMAGE.shape


@pytest.mark.parametrize("ops", ["randaug(0)", "randaug(2, 31)", "randaug(2, -1)"])
def test_randaug_refuses_what_has_no_meaning(ops: str):
    with pytest.raises(
        UserError, match="at least 1 layer and a magnitude from 0 to 30"
    ):
        build_preprocess(ops)


def test_randaug_refuses_float_images():
    features = {"image": tf.zeros((4, 4, 3)), "seed": tf.constant([1, 2])}
    with pytest.raises(UserError, match="after decode and before value_range"):
        build_preprocess("randaug")(features)

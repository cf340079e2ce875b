# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf

from tests.data import pictures
from vit_jax.data.ops import augment
from vit_jax.data.preprocess import build_preprocess
from vit_jax.errors import UserError

IMAGE = np.asarray(pictures.photo())
FIXED = ("autocontrast", "equalize", "invert")
PLACE = tf.constant([0.5, 0.5])


def distance(a, b) -> float:
    return float(np.abs(np.asarray(a, float) - np.asarray(b, float)).mean())


def move(name: str, magnitude: float, draw: float) -> np.ndarray:
    amount = augment.draw_amount([name], 0, magnitude, draw)
    return augment.OPERATIONS[name].apply(tf.constant(IMAGE), amount, PLACE).numpy()


@pytest.mark.parametrize("sign", [0.2, 0.8])
@pytest.mark.parametrize("name", augment.OPERATIONS)
def test_distance_grows_with_magnitude_and_no_picture_is_blanked(name, sign):
    moved = [move(name, float(m), sign) for m in (0, 3, 10, 20, 30)]
    assert all(image.dtype == np.uint8 for image in moved)
    assert all(image.std() > 3 for image in moved)
    distances = [distance(image, IMAGE) for image in moved]
    if name in FIXED:
        assert len(set(distances)) == 1
        return
    assert distances[0] == 0
    assert distances[1] < distances[2]
    assert name in ("shear_x", "shear_y") or distances == sorted(distances)


@pytest.mark.parametrize(
    ("name", "amounts"),  # at magnitude 5, 10 and 30
    [
        ("rotate", (15, 30, 90)),
        ("posterize", (2, 4, 6)),
        ("solarize", (64, 128, 256)),
        ("solarize_add", (55, 110, 127)),
        ("color", (0.45, 0.9, 2.7)),
        ("shear_x", (0.15, 0.3, 0.9)),
        ("translate_y", (0.225, 0.45, 0.9)),
        ("cutout", (0.18, 0.36, 0.9)),
    ],
)
def test_amounts_are_those_of_the_documented_table(name: str, amounts):
    for magnitude, amount in zip((5.0, 10.0, 30.0), amounts, strict=True):
        drawn = float(augment.draw_amount([name], 0, magnitude, 0.7))
        assert drawn == pytest.approx(amount, rel=1e-6)
        negative = float(augment.draw_amount([name], 0, magnitude, 0.3))
        signed = name in ("rotate", "color", "shear_x", "translate_y")
        assert negative == (-drawn if signed else drawn)


@pytest.mark.parametrize("name", augment.OPERATIONS)
def test_pictures_of_a_pixel_or_a_line_keep_their_shape(name: str):
    for shape in ((1, 1, 3), (1, 5, 3), (4, 1, 3), (2, 2, 3)):
        image = tf.constant(IMAGE[: shape[0], : shape[1]])
        amount = augment.draw_amount([name], 0, 10.0, 0.7)
        assert augment.OPERATIONS[name].apply(image, amount, PLACE).shape == shape


def painted(name: str, number: int) -> augment.Operation:
    """An operation that paints all pixels with its number, or its strength."""

    def paint(image, amount, place):
        level = tf.cast(number if number >= 0 else tf.round(amount), tf.uint8)
        return tf.zeros_like(image) + level

    return augment.Operation(paint, slope=10.0, most=255.0)


def draw(ops: str, count: int) -> list[int]:
    graph = tf.function(build_preprocess(ops))
    features = {"image": IMAGE}
    return [
        int(graph({**features, "seed": tf.constant([n, 3])})["image"][0, 0, 0])
        for n in range(count)
    ]


def test_all_operations_are_drawn_and_each_about_as_often(monkeypatch):
    names = list(augment.OPERATIONS)
    assert len(names) == 16
    table = {name: painted(name, number) for number, name in enumerate(names)}
    monkeypatch.setattr(augment, "OPERATIONS", table)
    counts = np.bincount(draw("randaug(1, 10)", 800), minlength=16)
    assert counts.min() > 25  # 50 expected, deviation 7
    assert counts.max() < 80
    fewer = draw("randaug(1, 10, leave_out=['cutout', 'rotate'])", 200)
    assert set(fewer) == set(range(16)) - {names.index("cutout"), names.index("rotate")}


def test_prob_applies_a_share_of_the_operations(monkeypatch):
    table = {name: painted(name, 255) for name in augment.OPERATIONS}
    monkeypatch.setattr(augment, "OPERATIONS", table)
    applied = [level == 255 for level in draw("randaug(1, 10, prob=0.25)", 400)]
    assert 70 < sum(applied) < 130  # 100 expected, deviation 9


def test_std_spreads_the_magnitude_and_stays_within_its_range(monkeypatch):
    table = {name: painted(name, -1) for name in augment.OPERATIONS}
    monkeypatch.setattr(augment, "OPERATIONS", table)
    magnitudes = np.array(draw("randaug(1, 9, std=0.5)", 400)) / 10
    assert abs(magnitudes.mean() - 9) < 0.1
    assert abs(magnitudes.std() - 0.5) < 0.06
    assert len(set(magnitudes)) > 15  # not 0 or 1 times the deviation alone
    wide = np.array(draw("randaug(1, 1, std=3)", 100)) / 10
    assert wide.min() == 0


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


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("randaug(0)", "at least 1 layer and a magnitude from 0 to 30"),
        ("randaug(2, 31)", "at least 1 layer and a magnitude from 0 to 30"),
        ("randaug(2, -1)", "at least 1 layer and a magnitude from 0 to 30"),
        ("randaug(2, 9, std=-1)", "std=-1, prob=1.0; give a deviation of 0 or more"),
        ("randaug(2, 9, prob=0)", "a probability above 0, at most 1"),
        ("randaug(leave_out=['cutuot'])", "did you mean 'cutout'"),
        (f"randaug(leave_out={list(augment.OPERATIONS)})", "leave out fewer"),
    ],
)
def test_randaug_refuses_what_has_no_meaning(ops: str, message: str):
    with pytest.raises(UserError, match=message):
        build_preprocess(ops)


def test_randaug_refuses_float_images():
    features = {"image": tf.zeros((4, 4, 3)), "seed": tf.constant([1, 2])}
    with pytest.raises(UserError, match="after decode and before value_range"):
        build_preprocess("randaug")(features)

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.data import pictures
from vit_jax.data.preprocess import build_preprocess
from vit_jax.errors import UserError

IMAGE = np.asarray(pictures.photo())
COORDINATES = np.stack([*np.indices((40, 48)), np.zeros((40, 48))], -1).astype(np.uint8)


def crop(image, ops: str, number: int = 0) -> np.ndarray:
    features = {"image": tf.constant(image), "seed": tf.constant([number, 1])}
    return build_preprocess(ops)(features)["image"].numpy()


def test_inception_crop_cuts_boxes_of_the_stated_area_and_shape():
    areas, ratios = [], []
    for number in range(150):
        box = crop(COORDINATES, "inception_crop(area_min=20, area_max=60)", number)
        height, width = box.shape[:2]
        assert np.array_equal(box[0, :, 1], box[0, 0, 1] + np.arange(width))
        assert np.array_equal(box[:, 0, 0], box[0, 0, 0] + np.arange(height))
        areas.append(height * width / (40 * 48))
        ratios.append(width / height)
    assert 0.18 <= min(areas) < 0.25  # integer sides blur the bounds a little
    assert 0.55 < max(areas) <= 0.62
    assert 0.70 <= min(ratios) < 0.85
    assert 1.15 < max(ratios) <= 1.40


def test_inception_crop_of_the_whole_area_is_nearly_everything():
    box = crop(np.zeros((60, 60, 3), np.uint8), "inception_crop(area_min=98)")
    assert box.shape[0] * box.shape[1] >= 0.96 * 3600


@pytest.mark.parametrize("kind", ["jpeg", "jpeg turned by 180", "png", "webp"])
def test_fused_decoding_gives_the_same_box(kind: str):
    data = pictures.good()[kind]
    for number in range(8):
        # With a no-op between the two, they are not fused, and the number of the
        # random op is made the same by a no-op in front.
        fused = crop(data, "drop|decode|inception_crop(area_min=30)", number)
        apart = crop(data, "decode|drop|inception_crop(area_min=30)", number)
        assert fused.shape == apart.shape
        if kind != "jpeg":
            assert np.array_equal(fused, apart)
        # The outermost pixels lack neighbours for the interpolation of colour.
        assert np.array_equal(fused[1:-1, 1:-1], apart[1:-1, 1:-1])
        assert np.abs(fused.astype(int) - apart).max() <= 40


def test_fused_decoding_takes_arrays_too():
    fused = crop(IMAGE, "drop|decode|inception_crop(16)")
    apart = crop(IMAGE, "decode|drop|inception_crop(16)")
    assert np.array_equal(fused, apart)
    assert fused.shape == (16, 16, 3)


@pytest.mark.parametrize("kind", ["jpeg", "png", "array"])
def test_levels_keep_their_fractions_where_nothing_asks_for_whole_ones(kind: str):
    data = IMAGE if kind == "array" else pictures.good()[kind]
    for number in range(6):
        ours = crop(data, "decode|inception_crop(16)|drop|value_range(0, 255)", number)
        # pad(0) changes nothing, and is not known to take fractions.
        whole = "decode|inception_crop(16)|pad(0)|value_range(0, 255)"
        rounded = crop(data, whole, number)
        assert ours.dtype == rounded.dtype == np.float32
        assert np.abs(rounded - np.rint(rounded)).max() < 1e-4
        assert 0.3 < np.abs(ours - rounded).max() <= 0.5 + 1e-4


def test_a_flip_behind_a_crop_is_the_flip_of_the_crop():
    data = pictures.good()["jpeg"]
    flips = 0
    for number in range(20):
        fused = crop(data, "decode|inception_crop(16)|flip_lr|value_range", number)
        # The no-op keeps them apart; behind the flip it keeps the numbers equal.
        apart = crop(data, "decode|inception_crop(16)|flip_lr|pad(0)", number)
        plain = crop(data, "decode|inception_crop(16)|value_range", number)
        flipped = np.abs(fused - plain[:, ::-1]).max() < 1e-5
        assert flipped or np.abs(fused - plain).max() < 1e-5
        assert np.abs(fused - (apart / 127.5 - 1)).max() <= 0.51 / 127.5
        flips += flipped
    assert 4 <= flips <= 16  # 10 expected, deviation 2.2


@pytest.mark.parametrize("ops", ["inception_crop(16)", "inception_crop((16, 20))"])
def test_the_draws_of_a_flip_do_not_depend_on_its_neighbours(ops: str):
    for number in range(20):
        directly = crop(IMAGE, f"{ops}|flip_lr|drop", number)
        # As op number 1 of another string, whose crop is the whole picture.
        mirrored = crop(COORDINATES, "pad(0)|flip_lr", number)
        was_flipped = mirrored[0, 0, 1] > mirrored[0, -1, 1]
        plain = crop(IMAGE, ops, number)
        expected = plain[:, ::-1] if was_flipped else plain
        assert np.abs(directly.astype(int) - expected).max() <= 1


def test_scaled_decoding_shows_the_same_box():
    y, x = np.mgrid[0:600, 0:800]
    smooth = np.stack([x * 255 / 800, y * 255 / 600, (x + y) * 255 / 1400], -1)
    data = pictures.jpeg(Image.fromarray(smooth.astype(np.uint8)))
    moved = 0
    for number in range(12):
        ops = "decode|inception_crop(32, area_min=20{})"
        plain = crop(data, ops.format(""), number).astype(int)
        scaled = crop(data, ops.format(", scaled=True"), number).astype(int)
        assert scaled.shape == (32, 32, 3)
        # The end of the box moves by at most two pixels of the eighth-size picture: 16
        # rows, 6.8 levels.
        assert np.abs(plain - scaled).max() <= 8
        moved += not np.array_equal(plain, scaled)
    assert moved == 12
    small = pictures.good()["jpeg"]  # 48 x 40: a half would be too small
    for number in range(4):
        ops = "decode|inception_crop(30{})"
        scaled = crop(small, ops.format(", scaled=True"), number)
        assert np.array_equal(scaled, crop(small, ops.format(""), number))


def test_random_crop_reaches_every_place():
    image = COORDINATES[:6, :7]
    corners = set()
    for number in range(150):
        box = crop(image, "random_crop((4, 5))", number)
        assert box.shape == (4, 5, 3)
        corners.add(tuple(box[0, 0, :2].tolist()))
    assert corners == {(y, x) for y in range(3) for x in range(3)}


def test_random_crop_pads_with_black():
    white = np.full((4, 4, 3), 255, np.uint8)
    margins = set()
    for number in range(100):
        box = crop(white, "random_crop(4, padding=2)", number)
        assert box.shape == (4, 4, 3)
        margins.add(int((box[..., 0].max(axis=1) == 0).sum()))
    assert margins == {0, 1, 2}


def test_central_crop_takes_the_middle():
    box = crop(COORDINATES, "central_crop((10, 20))")
    assert box[0, 0, :2].tolist() == [15, 14]


def test_pad_puts_the_image_in_the_middle():
    padded = crop(np.ones((2, 3, 3), np.uint8), "pad(size=(5, 6), value=7)")
    assert np.argwhere(padded[..., 0] == 1).tolist() == [
        [y, x] for y in (1, 2) for x in (1, 2, 3)
    ]
    assert np.unique(padded).tolist() == [1, 7]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("inception_crop(8, area_min=0)", "percentages with"),
        ("inception_crop(8, 60, 50)", "area_min <= area_max"),
        ("inception_crop(scaled=True)", "needs a size"),
        ("random_crop(8, padding=-1)", "give 0 or more"),
        ("central_crop((8, 8, 3))", "one positive number or"),
        ("pad(1, 8)", "either pixels or size"),
        (
            "random_crop(41)",
            r"random_crop to 41 x 41 of an image that is too small: 40",
        ),
        ("central_crop(49)", r"central_crop to 49 x 49 .* too small: 40 x 48.*\(in"),
        ("pad(size=40)", "pad to 40 x 40 of an image that is too large: 40 x 48"),
    ],
)
def test_what_does_not_fit_is_refused(ops: str, message: str):
    with pytest.raises(UserError, match=message):
        crop(IMAGE, ops)


@pytest.mark.parametrize("ops", ["random_crop(41)", "central_crop(41)", "pad(size=41)"])
def test_images_of_unknown_size_are_checked_when_they_come(ops: str):
    graph = tf.function(
        build_preprocess(ops),
        input_signature=[
            {
                "image": tf.TensorSpec((None, None, 3), tf.uint8),
                "seed": tf.TensorSpec((2,), tf.int32),
            }
        ],
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="to 41 x 41 of an image"):
        graph({"image": IMAGE, "seed": tf.constant([1, 2])})

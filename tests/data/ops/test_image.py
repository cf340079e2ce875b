# SPDX-License-Identifier: Apache-2.0
import csv
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.data import pictures
from vit_jax.data import pixels
from vit_jax.data.ops.headers import picture_kind
from vit_jax.data.preprocess import build_preprocess
from vit_jax.errors import UserError

GOOD = pictures.good()
BROKEN = pictures.broken()
ODD_IMAGES = os.environ.get("VIT_JAX_ODD_IMAGES", "")


def run(image, ops: str, **features) -> np.ndarray:
    return build_preprocess(ops)({"image": tf.constant(image), **features})[
        "image"
    ].numpy()


@pytest.fixture(scope="module")
def decode_in_graph():
    """Decodes as a tf.data pipeline does, with and without EXIF."""
    text = tf.TensorSpec([], tf.string)
    return {
        exif: tf.function(
            build_preprocess(f"decode(exif={exif})"),
            input_signature=[{"image": text, "name": text}],
        )
        for exif in (True, False)
    }


@pytest.mark.parametrize("exif", [True, False])
@pytest.mark.parametrize("kind", GOOD)
def test_decode_equals_pillow_bit_for_bit(kind: str, exif: bool, decode_in_graph):
    ours = decode_in_graph[exif]({"image": GOOD[kind], "name": kind})["image"]
    assert np.array_equal(ours, pixels.decode_image(GOOD[kind], exif=exif))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("byte_order", ["<", ">"])
def test_decode_applies_every_exif_orientation(
    orientation: int, byte_order: str, decode_in_graph
):
    mark = {"<": b"II*\0", ">": b"MM\0*"}[byte_order]
    order = {"<": "little", ">": "big"}[byte_order]
    entry = b"".join(
        number.to_bytes(size, order)
        for number, size in [(8, 4), (1, 2), (0x112, 2), (3, 2), (1, 4)]
    )
    value = orientation.to_bytes(2, order) + b"\0\0"
    exif = b"Exif\0\0" + mark + entry + value + b"\0\0\0\0"
    data = pictures.jpeg(exif=exif)
    expected = pixels.decode_image(data)
    assert expected.shape[:2] == ((40, 48) if orientation < 5 else (48, 40))
    decoded = decode_in_graph[True]({"image": data, "name": ""})["image"]
    assert np.array_equal(decoded, expected)


@pytest.mark.parametrize("kind", GOOD)
def test_the_kind_may_be_given_and_changes_nothing(kind: str):
    data = GOOD[kind]
    given = {"image": tf.constant(data), "kind": tf.constant(picture_kind(data))}
    decoded = build_preprocess("decode")(given)
    assert set(decoded) == {"image"}
    assert np.array_equal(decoded["image"], pixels.decode_image(data))


@pytest.mark.parametrize("kind", BROKEN)
def test_decode_of_a_broken_file_gives_its_name(kind: str, decode_in_graph):
    data, message = BROKEN[kind]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"a/b.jpg: .*{message}"):
        decode_in_graph[True]({"image": data, "name": "a/b.jpg"})


@pytest.mark.skipif(not ODD_IMAGES, reason="VIT_JAX_ODD_IMAGES names no folder")
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_odd_images_decode_as_in_pillow_or_are_refused(decode_in_graph):
    """A folder of unusual files with manifest.csv (columns path, mode, result)."""
    with (Path(ODD_IMAGES) / "manifest.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        data = (Path(ODD_IMAGES) / row["path"]).read_bytes()
        features = {"image": data, "name": row["path"]}
        if row["result"] != "decodes" or row["mode"] in ("F", "LAB"):
            with pytest.raises(UserError):
                pixels.decode_image(data)
            with pytest.raises(tf.errors.InvalidArgumentError, match=row["path"]):
                decode_in_graph[True](features)
            continue
        for exif in (True, False):
            expected = pixels.decode_image(data, exif=exif)
            decoded = decode_in_graph[exif](features)["image"]
            assert np.array_equal(decoded, expected), row["path"]
            sides = {int(row["height"]), int(row["width"])}
            assert set(decoded.shape[:2]) == sides, row["path"]


def test_decode_passes_arrays_and_repeats_grey():
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    assert np.array_equal(run(grey, "decode"), np.repeat(grey, 3, axis=2))
    colour = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    assert np.array_equal(run(colour, "decode"), colour)
    with pytest.raises(UserError, match=r"decode got an array float32\[2, 3, 1\]"):
        run(grey.astype(np.float32), "decode")
    with pytest.raises(UserError, match=r"uint8\[2, 3, 4\]; it takes"):
        run(np.zeros((2, 3, 4), np.uint8), "decode")


@pytest.mark.parametrize(
    "ops",
    [
        "resize(24)",
        "resize((13, 57))",
        "resize(24, antialias=True)",
        "resize(96, 'bicubic')",
        "resize((11, 24), 'bicubic')",
        "resize((11, 24), 'bicubic', antialias=True)",
        "resize((17, 60), 'area')",
        "resize((17, 60), 'nearest')",
        "resize_small(20)",
        "resize_small(23, 'bicubic', antialias=True)",
        "resize_small(64)",
        "resize_small(24)|central_crop((20, 24))|pad(size=(31, 32), value=7)",
    ],
)
def test_resizing_agrees_with_numpy_within_one_level(ops: str):
    image = np.asarray(pictures.photo())
    ours, reference = run(image, ops), pixels.preprocess(image, ops)
    assert ours.dtype == reference.dtype == np.uint8
    assert ours.shape == reference.shape
    assert np.abs(ours.astype(int) - reference).max() <= 1


@pytest.mark.parametrize(
    "ops",
    [
        "value_range(-1, 1)",
        "value_range(0, 1, 10, 200, clip=True)",
        "normalize",
        "normalize((0.5, 0.5, 0.5), (0.5, 0.25, 0.5))",
        "multiply(1.3)",
        "value_range(0, 1)|multiply(2)",
        "central_crop(24)",
        "central_crop((21, 10))",
        "pad(3)",
        "pad(size=(51, 50), value=128)",
    ],
)
def test_the_other_ops_equal_their_numpy_forms(ops: str):
    image = np.asarray(pictures.photo())
    ours, reference = run(image, ops), pixels.preprocess(image, ops)
    assert ours.dtype == reference.dtype
    np.testing.assert_allclose(ours, reference, rtol=0, atol=2e-7)


def test_resize_gives_the_published_rows():
    values = np.array([0, 1, 4, 9, 16, 25, 36, 49], np.float32)
    column = np.tile(values[:, None, None], (1, 4, 3))
    for ops, expected in {
        "resize(4)": (0.5, 6.5, 20.5, 42.5),
        "resize(4, antialias=True)": (1, 7, 21, 40),
        "resize(4, 'area')": (0.5, 6.5, 20.5, 42.5),
        "resize(4, 'bicubic')": (0.2941, 6.25, 20.25, 43.5294),
        "resize(4, 'bicubic', antialias=True)": (0.41, 6.1892, 20.7568, 41.795),
    }.items():
        np.testing.assert_allclose(run(column, ops)[:, 0, 0], expected, atol=2e-3)


def test_antialias_blurs_a_checkerboard_and_its_absence_does_not():
    board = np.indices((12, 12)).sum(0) % 2 * np.ones((3, 1, 1))
    board = board.transpose(1, 2, 0).astype(np.float32)
    assert set(np.unique(run(board, "resize(4)"))) == {0.0, 1.0}
    assert np.abs(run(board, "resize(4, antialias=True)") - 0.5).max() <= 0.0064


def test_resizing_to_the_same_size_is_a_no_op():
    image = np.asarray(pictures.photo())
    for method in ("nearest", "bilinear", "bicubic", "area"):
        assert np.array_equal(run(image, f"resize((40, 48), {method!r})"), image)


def test_resize_keeps_white_white():
    white = np.full((37, 53, 3), 255, np.uint8)
    for method in ("bilinear", "bicubic", "area"):
        assert (run(white, f"resize(24, {method!r})") == 255).all()


def test_white_and_black_come_out_as_the_checkpoints_expect():
    white, black = (np.full((2, 2, 3), level, np.uint8) for level in (255, 0))
    assert (run(white, "value_range(-1, 1)") == 1).all()
    assert (run(black, "value_range(-1, 1)") == -1).all()
    np.testing.assert_allclose(
        run(white, "normalize")[0, 0], (2.249, 2.429, 2.640), atol=5e-4
    )
    np.testing.assert_allclose(
        run(black, "normalize")[0, 0], (-2.118, -2.036, -1.804), atol=5e-4
    )


def test_multiply_shows_pictures_of_0_and_1_in_black_and_white():
    levels = np.array([0, 1], np.uint8)[:, None, None]
    white = run(levels, "multiply(255)")
    assert white.dtype == np.uint8
    assert white[:, 0, 0].tolist() == [0, 255]
    # 0.6 * 1 is nearer to 1; 255 is the highest level; floats are not levels.
    assert run(levels, "multiply(0.6)")[:, 0, 0].tolist() == [0, 1]
    assert run(levels, "multiply(300)")[:, 0, 0].tolist() == [0, 255]
    assert run(levels.astype(np.float32), "multiply(300)")[1, 0, 0] == 300


def test_value_range_may_clip():
    levels = np.array([0, 50, 100, 255], np.uint8)[:, None, None]
    ops = "value_range(0, 1, 50, 100, clip={})"
    assert run(levels, ops.format(True))[:, 0, 0].tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(
        run(levels, ops.format(False))[:, 0, 0], [-1, 0, 1, 4.1], rtol=1e-6
    )


def test_flip_mirrors_half_of_the_examples():
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    flipped = 0
    for number in range(200):
        result = run(image, "flip_lr", seed=tf.constant([number, 5]))
        assert np.array_equal(result, image) or np.array_equal(result, image[:, ::-1])
        flipped += not np.array_equal(result, image)
    assert 70 <= flipped <= 130  # more than four standard deviations


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("resize(-1)", r"resize of size -1.*\(in \[resize\(-1\)\]\)"),
        ("resize_small(0)", "resize_small of size 0"),
        ("value_range(1, 1)", "smaller end first"),
        ("normalize('imagnet')", "did you mean 'imagenet'"),
        ("resize('8')", "size cannot be '8'"),
    ],
)
def test_wrong_arguments_are_refused_when_the_string_is_built(ops, message):
    with pytest.raises(UserError, match=message):
        build_preprocess(ops)

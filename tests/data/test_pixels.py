# SPDX-License-Identifier: Apache-2.0
import inspect
import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.data import pictures
from vit_jax.data import pixels
from vit_jax.data.ops.reference import NUMPY_OPS
from vit_jax.errors import UserError
from vit_jax.registry import OPS

GOOD = pictures.good()
BROKEN = pictures.broken()


def pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("kind", GOOD)
def test_every_kind_becomes_rgb_of_the_right_size(kind: str):
    image = pixels.decode_image(GOOD[kind])
    assert (image.shape, image.dtype) == ((40, 48, 3), np.uint8)
    assert image.std() > 10


@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_exif_orientations_give_the_same_picture(orientation: int):
    # What a camera stores for an upright scene: the inverse of the turn to apply.
    store = {
        1: lambda scene: scene,
        2: lambda scene: scene[:, ::-1],
        3: lambda scene: scene[::-1, ::-1],
        4: lambda scene: scene[::-1],
        5: lambda scene: scene.transpose(1, 0, 2),
        6: lambda scene: np.rot90(scene, 1),  # to be turned clockwise
        7: lambda scene: np.rot90(scene.transpose(1, 0, 2), 2),
        8: lambda scene: np.rot90(scene, -1),
    }[orientation]
    scene = np.asarray(pictures.photo())
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(store(scene)))
    data = pictures.encode(stored, "PNG", exif=exif)
    assert np.array_equal(pixels.decode_image(data), scene)
    assert np.array_equal(pixels.decode_image(data, exif=False), store(scene))


def test_orientation_may_come_from_xmp():
    turned = pixels.decode_image(GOOD["jpeg turned by xmp"])
    assert np.array_equal(turned, pixels.decode_image(GOOD["jpeg"])[::-1, ::-1])


@pytest.mark.parametrize("kind", ["png rgba", "png la", "webp with alpha"])
def test_clear_pixels_are_white_and_opaque_ones_are_kept(kind: str):
    image = pixels.decode_image(GOOD[kind])
    assert (image[:, 24:] == 255).all()
    if kind != "png la":
        assert np.array_equal(image[:, :24], np.asarray(pictures.photo())[:, :24])


def test_half_transparent_black_over_white_is_grey():
    data = pictures.encode(Image.new("RGBA", (2, 2), (0, 0, 0, 128)), "PNG")
    assert (pixels.decode_image(data) == 127).all()  # 255 * (1 - 128 / 255)


def test_the_clear_colour_of_a_palette_is_white():
    palette = pictures.photo().quantize(16)
    image = pixels.decode_image(GOOD["png palette with a clear colour"])
    clear = np.asarray(palette) == 3
    assert (image[clear] == 255).all()
    assert np.array_equal(image[~clear], np.asarray(palette.convert("RGB"))[~clear])


def test_16_bit_grey_keeps_the_high_byte_and_does_not_saturate():
    image = pixels.decode_image(GOOD["png grey 16 bit"])
    assert np.array_equal(image[..., 0], pictures.grey16() >> 8)
    assert (image == 255).mean() < 0.01


def test_cmyk_keeps_its_colours():
    # Full cyan, magenta and yellow in turn; Adobe files store them inverted.
    inks = np.zeros((8, 24, 4), np.uint8)
    for ink in range(3):
        inks[:, 8 * ink : 8 * ink + 8, ink] = 255
    data = pictures.encode(Image.fromarray(inks, "CMYK"), "JPEG", quality=100)
    image = pixels.decode_image(data).astype(int)
    expected = [(0, 255, 255), (255, 0, 255), (255, 255, 0)]
    assert np.abs(image[4, [4, 12, 20]] - expected).max() <= 3


def test_the_first_frame_of_a_movie_is_taken():
    assert np.array_equal(
        pixels.decode_image(GOOD["gif moving"]), pillow(GOOD["gif moving"])
    )


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_for_what_it_is(kind: str):
    data, message = BROKEN[kind]
    with pytest.raises(UserError, match=message):
        pixels.decode_image(data)


def test_floating_point_pictures_are_refused():
    data = pictures.encode(Image.new("F", (4, 4), 0.5), "TIFF")
    with pytest.raises(UserError, match=r"floating-point picture.*8 or 16 bit"):
        pixels.decode_image(data)


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(pixels, "MAX_PIXELS", 1000)
    with pytest.raises(UserError, match=r"more than 1000 pixels.* 48 x 40"):
        pixels.decode_image(GOOD["png"])


def test_pillows_guard_against_bombs_becomes_a_user_error(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UserError, match="make it smaller"):
        pixels.decode_image(GOOD["png"])


def test_formats_that_start_programs_are_not_opened():
    with pytest.raises(UserError, match="no known format"):
        pixels.decode_image(pictures.encode(pictures.photo(), "EPS"))


def test_white_and_black_come_out_as_the_checkpoints_expect():
    white, black = (np.full((2, 2, 3), level, np.uint8) for level in (255, 0))
    for image, google, imagenet in [
        (white, 1, (2.249, 2.429, 2.640)),
        (black, -1, (-2.118, -2.036, -1.804)),
    ]:
        assert (pixels.preprocess(image, "value_range(-1, 1)") == google).all()
        normalized = pixels.preprocess(image, "normalize")
        assert normalized.dtype == np.float32
        np.testing.assert_allclose(normalized[0, 0], imagenet, atol=5e-4)


SQUARES = (0, 1, 4, 9, 16, 25, 36, 49)


@pytest.mark.parametrize(
    ("values", "method", "antialias", "expected"),
    [
        ((0, 1, 2, 3), "bilinear", False, (0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3)),
        (
            (0, 1, 2, 3),
            "bicubic",
            False,
            (-0.0882, 0.1679, 0.7099, 1.25, 1.75, 2.2901, 2.8321, 3.0882),
        ),
        ((0, 1, 2, 3), "area", False, (0, 0, 1, 1, 2, 2, 3, 3)),
        (SQUARES, "bilinear", False, (0.5, 6.5, 20.5, 42.5)),
        (SQUARES, "area", False, (0.5, 6.5, 20.5, 42.5)),
        (SQUARES, "bilinear", True, (1, 7, 21, 40)),
        (SQUARES, "bicubic", False, (0.2941, 6.25, 20.25, 43.5294)),
        (SQUARES, "bicubic", True, (0.4100, 6.1892, 20.7568, 41.7950)),
    ],
)
def test_resize_gives_the_published_rows(values, method, antialias, expected):
    column = np.array(values, np.float32)[:, None, None] * np.ones((1, 4, 3))
    ops = f"resize(({len(expected)}, 4), {method!r}, antialias={antialias})"
    result = pixels.preprocess(column.astype(np.float32), ops)
    assert result.shape == (len(expected), 4, 3)
    np.testing.assert_allclose(result[:, 0, 0], expected, atol=1e-4)


@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_resize_with_antialias_agrees_with_pillow(resample: str):
    image = pictures.photo(97, 61)
    ours = pixels.preprocess(
        np.asarray(image), f"resize((40, 48), {resample!r}, antialias=True)"
    )
    method = getattr(Image.Resampling, resample.upper())
    theirs = np.asarray(image.resize((48, 40), method))
    assert np.abs(ours.astype(int) - theirs).max() <= 1


def test_resize_small_keeps_the_aspect_ratio():
    image = np.zeros((40, 61, 3), np.uint8)
    assert pixels.preprocess(image, "resize_small(20)").shape == (20, 31, 3)  # 30.5
    tall = np.zeros((61, 40, 3), np.uint8)
    assert pixels.preprocess(tall, "resize_small(80)").shape == (122, 80, 3)


def test_central_crop_and_pad_keep_the_middle():
    image = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    assert np.array_equal(
        pixels.preprocess(image, "central_crop((2, 4))"), image[1:3, 1:5]
    )
    padded = pixels.preprocess(image, "pad(size=(8, 9), value=9)")
    assert np.array_equal(padded[1:6, 1:8], image)
    assert (padded[0] == 9).all()
    assert (padded[6:] == 9).all()
    assert np.array_equal(pixels.preprocess(image, "pad(2)")[2:-2, 2:-2], image)


def test_ops_on_labels_are_passed_over():
    plain = pixels.preprocess(GOOD["png"], "decode|resize(8)")
    ops = "decode|resize(8)|onehot(10)|keep('image')|drop('label')"
    assert np.array_equal(pixels.preprocess(GOOD["png"], ops), plain)


def test_decode_takes_grey_arrays():
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    image = pixels.preprocess(grey, "decode")
    assert np.array_equal(image, np.repeat(grey, 3, axis=2))


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("decode|flip_lr", r"'flip_lr' draws random numbers.*decode\|\[flip_lr\]"),
        ("decode|inception_crop(8)", "'inception_crop' draws random numbers"),
        ("decode|randaug", "'randaug' draws random numbers"),
        ("decode|random_crop(8)", "'random_crop' draws random numbers"),
        ("decode|resise(8)", "unknown op 'resise'; did you mean 'resize'"),
        ("resize(0)", "resize of size 0; give one positive number or"),
        ("resize((1, 2, 3))", r"resize of size \(1, 2, 3\)"),
        ("decode|central_crop(41)", "central_crop of 41 x 41 from an image of 40 x 48"),
        ("decode|pad(size=41)", "pad to 41 x 41 of an image of 40 x 48"),
        ("decode|pad", "either pixels or size"),
        ("decode|pad(-1)", "pad of -1 pixels"),
        ("value_range(1, -1)", "smaller end first"),
        ("normalize('imagnet')", "unknown statistics 'imagnet'; did you mean 'imagen"),
        ("normalize((0.5, 0.5, 0.5))", "a mean but no std"),
        ("normalize((0.5,), (0.5, 0.5, 0.5))", "mean needs three numbers"),
        ("normalize('clip', (0, 1, 1))", r"std \(positive\) needs three numbers"),
        ("keep('image')", "leaves the picture encoded; start it with 'decode'"),
    ],
)
def test_a_string_that_cannot_run_is_explained(ops: str, message: str):
    with pytest.raises(UserError, match=message):
        pixels.preprocess(GOOD["png"], ops)


@pytest.mark.parametrize("array", [np.zeros((2, 2, 4), np.uint8), np.zeros((2, 2, 3))])
def test_decode_refuses_arrays_that_are_no_pictures(array: np.ndarray):
    with pytest.raises(UserError, match=r"decode got an array .*; it takes"):
        pixels.preprocess(array, "decode")


def test_every_op_is_one_of_those_that_tensorflow_has():
    import vit_jax.data.preprocess  # noqa: F401  (registers the ops)

    names = set(NUMPY_OPS.names()) | set(pixels.RANDOM_OPS) | set(pixels.LABEL_OPS)
    assert names == set(OPS.names())
    assert set(pixels.RANDOM_OPS) == {n for n in OPS.names() if OPS.is_random(n)}
    for name in NUMPY_OPS.names():
        assert NUMPY_OPS.signature(name).parameters == OPS.signature(name).parameters, (
            name
        )
        assert inspect.Parameter.VAR_KEYWORD not in {
            parameter.kind for parameter in OPS.signature(name).parameters.values()
        }


def test_pixels_needs_no_tensorflow_and_no_jax():
    program = (
        "import sys, vit_jax.data.pixels;"
        "sys.exit(bool({'tensorflow', 'jax'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

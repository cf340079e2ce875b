# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf

from tests.data import pictures
from vit_jax.data import pixels
from vit_jax.data.ops.headers import JPEG, OTHER, PNG, TURNED_JPEG, picture_kind

GOOD = pictures.good()

KINDS = {
    "jpeg": JPEG,
    "jpeg with full chroma": JPEG,
    "jpeg progressive": JPEG,
    "jpeg grey": JPEG,
    "jpeg cmyk": OTHER,
    "jpeg upright": JPEG,
    "jpeg turned by 180": TURNED_JPEG,
    "jpeg turned by xmp": TURNED_JPEG,
    "jpeg with a long profile": JPEG,
    "jpeg with bytes after its end": OTHER,
    "png": PNG,
    "png grey": PNG,
    "png upright": OTHER,
    "png turned by 180": OTHER,
    "png grey 16 bit": OTHER,
    "png rgba": OTHER,
    "png la": OTHER,
    "png 1 bit": OTHER,
    "png palette": OTHER,
    "png rgb with a clear colour": OTHER,
    "png with text": PNG,
    "gif": OTHER,
    "webp": OTHER,
    "bmp": OTHER,
    "tiff": OTHER,
}


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_each_sort_of_file(name: str):
    assert picture_kind(GOOD[name]) == KINDS[name]


def test_what_tensorflow_may_have_it_decodes_as_pillow_does():
    for name, data in GOOD.items():
        kind = picture_kind(data)
        exif = kind != TURNED_JPEG
        if kind in (JPEG, TURNED_JPEG):
            ours = tf.image.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE")
        elif kind == PNG:
            ours = tf.image.decode_png(data, 3)
        else:
            continue
        assert np.array_equal(ours, pixels.decode_image(data, exif=exif)), name


def test_no_cut_is_taken_for_a_whole_file():
    for name in ("jpeg", "jpeg progressive", "png"):
        data = GOOD[name]
        for end in [*range(60), *range(60, len(data), 37), len(data) - 1]:
            assert picture_kind(data[:end]) == OTHER, (name, end)


def test_a_thumbnail_does_not_stand_for_its_file():
    thumbnail = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + pictures.jpeg()
    cmyk = pictures.jpeg(pictures.photo().convert("CMYK"), exif=thumbnail)
    assert picture_kind(cmyk) == OTHER
    assert picture_kind(pictures.jpeg(exif=thumbnail)) == JPEG


def test_imagemagick_hides_exif_in_a_text_of_a_png():
    chunk = b"Raw profile type exif\0\nexif\n 12\n"
    assert picture_kind(pictures.with_png_chunk(GOOD["png"], b"tEXt", chunk)) == OTHER
    assert picture_kind(pictures.with_png_chunk(GOOD["png"], b"acTL", b"")) == OTHER


def test_an_orientation_in_the_pixels_does_no_harm():
    words = b"\x12\x01\x03\0\x01\0\0\0\x06" * 3
    assert picture_kind(pictures.jpeg(comment=words)) == JPEG

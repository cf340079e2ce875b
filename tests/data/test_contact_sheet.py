# SPDX-License-Identifier: Apache-2.0
import pathlib

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.contact_sheet import contact_sheet, save


def test_images_stand_in_reading_order_over_their_captions():
    images = np.zeros((3, 10, 20, 3), np.uint8)
    images[1] = (255, 0, 0)
    images[2] = (0, 255, 0)
    sheet = contact_sheet(images, ["a", "b", "c"], columns=2, side=20)
    # Cells of (20 + 4) x (10 + 14 + 4) pixels, an image starting 2 pixels inside.
    assert sheet.shape == (2 * 28, 2 * 24, 3)
    assert (sheet[2:12, 2:22] == 0).all()
    assert (sheet[2:12, 26:46] == (255, 0, 0)).all()
    assert (sheet[30:40, 2:22] == (0, 255, 0)).all()
    assert (sheet[12:26, :22] < 128).any()  # a caption


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-2.1, 2.6)])
def test_any_value_range_becomes_black_to_white(low: float, high: float):
    images = np.full((1, 4, 4, 3), low, np.float32)
    images[:, 2:] = high
    sheet = contact_sheet(images, ["x"], columns=1, side=4)
    assert (sheet[2:4, 2:6] == 0).all()
    assert (sheet[4:6, 2:6] == 255).all()


def test_small_images_grow_by_whole_numbers_and_large_ones_shrink():
    small = contact_sheet(np.zeros((1, 28, 28, 3), np.uint8), ["x"], columns=1)
    assert small.shape == (4 * 28 + 18, 4 * 28 + 4, 3)
    large = contact_sheet(np.zeros((1, 192, 384, 3), np.uint8), ["x"], columns=1)
    assert large.shape == (48 + 18, 96 + 4, 3)


def test_a_sheet_is_saved_as_png(tmp_path: pathlib.Path):
    sheet = contact_sheet(np.zeros((1, 8, 8, 3), np.uint8), ["x"], columns=1, side=8)
    save(str(tmp_path / "a.png"), sheet)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "a.png")), sheet)

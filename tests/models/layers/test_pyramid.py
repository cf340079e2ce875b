# SPDX-License-Identifier: Apache-2.0
import pytest

from vit_jax.errors import UserError
from vit_jax.models.layers.pyramid import Pyramid, check_heads


def pyramid(resolution=(224, 224), window=(7, 7), stages=4, tiled=True):
    return Pyramid(resolution, (4, 4), window, stages, tiled)


@pytest.mark.parametrize(
    ("resolution", "window", "windows"),
    [
        # Published models: Swin at 224 and 384, V2 at 192, 256 and 384 pixels.
        (224, 7, [7, 7, 7, 7]),
        (384, 12, [12, 12, 12, 12]),
        (192, 12, [12, 12, 12, 6]),
        (256, 8, [8, 8, 8, 8]),
        (256, 16, [16, 16, 16, 8]),
        (384, 24, [24, 24, 24, 12]),
        (32, 7, [7, 4, 2, 1]),
    ],
)
def test_windows_are_no_larger_than_the_map(resolution, window, windows):
    fitted = pyramid((resolution, resolution), (window, window)).windows
    assert fitted == [(side, side) for side in windows]


def test_sides_are_fitted_one_by_one():
    assert pyramid((224, 448), (7, 10)).windows[-1] == (7, 10)
    assert pyramid((32, 64)).windows == [(7, 7), (4, 7), (2, 4), (1, 2)]


@pytest.mark.parametrize("size", [(224, 224), (448, 224), (224, 672)])
def test_whole_multiples_fit(size):
    pyramid().check(size)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((112, 224), r"height 112 .*windows of 7, 7, 7, 7.*resize it to 224,"),
        ((224, 512), r"width 512 .*for resolution 224; resize it to 448 or 672"),
        ((192, 640), r"height 192 .*resize it to 224,"),
        ((224, 300), r"width 300 .*resize it to 224 or 448.*or pad=True"),
    ],
)
def test_image_that_does_not_divide_is_refused_with_the_nearest(size, words):
    with pytest.raises(UserError, match=words):
        pyramid().check(size)


def test_windows_do_not_follow_the_image():
    # At 192 pixels the last map has 6 rows, which a window of 7 would shrink to.
    with pytest.raises(UserError, match="resize it to 224"):
        pyramid().check((192, 192))


@pytest.mark.parametrize(
    ("resolution", "window", "words"),
    [
        # 64 / 4 = 16 tokens: 7 does not divide them, 8 does.
        (64, 7, "resolution 64 .height.*; use 224, or window_size=8, or pad=True"),
        # 112 is not a multiple of 4 * 2 * 2 * 2.
        (112, 7, "resolution 112 .*; use 224, or pad=True"),
        (250, 8, "resolution 250 .*; use 128 or 256, or pad=True"),
        (320, 12, "resolution 320 .*; use 192 or 384, or window_size=10, or pad"),
    ],
)
def test_resolution_that_does_not_divide_is_refused_with_the_nearest(
    resolution, window, words
):
    resolution = (resolution, resolution)
    with pytest.raises(UserError, match=words):
        pyramid(resolution, (window, window)).check(resolution)


def test_sliding_windows_only_need_patches_that_merge():
    sliding = pyramid(tiled=False)
    sliding.check((96, 160))
    with pytest.raises(UserError, match=r"merged 3 times of .*resize it to 96 or 128"):
        sliding.check((112, 160))


def test_an_empty_image_is_refused():
    with pytest.raises(UserError, match=r"height 0 .*resize it to 224,"):
        pyramid().check((0, 224))


def test_stages_without_heads_are_refused():
    with pytest.raises(UserError, match="depths has 3 stages, but num_heads has 2"):
        check_heads(32, (2, 2, 2), (1, 2))


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(UserError, match=r"width of stage 1, 64, is no multiple.* 3;"):
        check_heads(32, (2, 2), (1, 3))

# SPDX-License-Identifier: Apache-2.0
"""What augmentation does to a picture, in TensorFlow: colours, geometry, cut-outs.

Every operation takes and returns uint8 `(h, w, 3)`, and takes its strength as a number
or as a tensor. Colour operations equal Pillow's `ImageOps` and `ImageEnhance` (blends
within one level; hue within two). Geometric operations turn about the centre, take the
nearest pixel and fill with grey (128), as does the cut-out.

Written for speed on one core: arithmetic runs in float32 on `(h, 3 w)`, where Eigen
finds whole vectors, and in place. What pixels to show is looked up with `gather_nd`,
which takes half the time of `gather`.
"""

import math
from typing import Any

import tensorflow as tf

FILL = 128

_LUMA = (19595 / 65536, 38470 / 65536, 7471 / 65536)
"""Pillow's grey, ITU-R 601-2 in 16-bit fixed point; exact in float32."""


def autocontrast(image: Any) -> tf.Tensor:
    """Stretches each channel to 0...255, as `ImageOps.autocontrast`."""
    low = tf.cast(tf.reduce_min(image, axis=[0, 1]), tf.float64)
    high = tf.cast(tf.reduce_max(image, axis=[0, 1]), tf.float64)
    scale = tf.where(high > low, 255 / tf.maximum(high - low, 1), 1)
    offset = tf.where(high > low, -low * scale, 0)
    width = tf.shape(image)[1:2]
    levels = tf.cast(_rows(image), tf.float64)  # Pillow's table is made in float64
    stretched = levels * tf.tile(scale, width) + tf.tile(offset, width)
    return tf.reshape(tf.cast(stretched, tf.uint8), tf.shape(image))


def equalize(image: Any) -> tf.Tensor:
    """Flattens the histogram of each channel, as `ImageOps.equalize`."""
    places = tf.reshape(_places(image), [-1])
    counts = tf.math.bincount(places, minlength=768, maxlength=768)
    counts = tf.reshape(counts, [256, 3])  # (level, channel)
    highest = tf.cast(tf.reduce_max(image, axis=[0, 1]), tf.int32)
    last = tf.linalg.diag_part(tf.gather(counts, highest))
    step = (tf.reduce_sum(counts, axis=0) - last) // 255
    below = tf.cumsum(counts, axis=0, exclusive=True)
    table = (step // 2 + below) // tf.maximum(step, 1)
    return _look_up(image, tf.where(step > 0, table, tf.range(256)[:, None]))


def _look_up(image: Any, table: Any) -> tf.Tensor:
    """Replaces levels by a table `(256, channel)`, clipped to 0...255."""
    flat = tf.reshape(tf.cast(tf.clip_by_value(table, 0, 255), tf.uint8), [-1])
    return tf.reshape(
        tf.gather_nd(flat, tf.expand_dims(_places(image), -1)), tf.shape(image)
    )


def _places(image: Any) -> tf.Tensor:
    """Returns 3 level + channel as `(h, 3 w)`, a shape that is quick to add to."""
    levels = tf.cast(_rows(image), tf.int32)
    return 3 * levels + tf.tile(tf.range(3), tf.shape(image)[1:2])


def _rows(image: Any) -> tf.Tensor:
    """Returns `(h, 3 w)`."""
    return tf.reshape(image, [tf.shape(image)[0], -1])


def invert(image: Any) -> tf.Tensor:
    """Returns the negative."""
    return tf.constant(255, tf.uint8) - image


def posterize(image: Any, bits: Any) -> tf.Tensor:
    """Keeps the highest `bits` (1 to 8) of each level."""
    low = tf.bitwise.left_shift(1, 8 - tf.cast(bits, tf.int32))
    return tf.bitwise.bitwise_and(image, tf.cast(256 - low, tf.uint8))


def solarize(image: Any, threshold: Any) -> tf.Tensor:
    """Inverts the levels from `threshold` (0 to 256) on."""
    # Levels are whole, so > t - 1 says >= t, and no threshold leaves the range of uint8
    # but 0, which inverts everything.
    threshold = tf.cast(threshold, tf.int32)
    below = tf.cast(tf.maximum(threshold - 1, 0), tf.uint8)
    bright = tf.cast((image > below) | (threshold < 1), tf.uint8)
    return tf.bitwise.bitwise_xor(image, 255 * bright)


def solarize_add(image: Any, addition: Any) -> tf.Tensor:
    """Adds (0 to 127) to the levels below 128."""
    dark = 1 - tf.bitwise.right_shift(image, tf.constant(7, tf.uint8))
    return image + dark * tf.cast(addition, tf.uint8)


def color(image: Any, factor: Any) -> tf.Tensor:
    """Blends with the grey picture: 0 is grey, 1 the original, as `ImageEnhance`."""
    levels = tf.cast(tf.reshape(image, [-1, 3]), tf.float32)
    grey = tf.matmul(levels, tf.tile(tf.constant(_LUMA)[:, None], [1, 3]))
    return _blend(tf.floor(grey + 0.5), levels, factor, image)


def contrast(image: Any, factor: Any) -> tf.Tensor:
    """Blends with the mean grey level: 0 is flat, 1 the original."""
    levels = tf.cast(image, tf.float32)
    sums = tf.reshape(tf.reduce_sum(_rows(levels), axis=0), [-1, 3])
    pixels = tf.cast(tf.size(image) // 3, tf.float32)
    mean = tf.reduce_sum(tf.reduce_sum(sums, axis=0) * _LUMA) / pixels
    return _blend(tf.floor(mean + 0.5), levels, factor, image)


def brightness(image: Any, factor: Any) -> tf.Tensor:
    """Multiplies: 0 is black, 1 the original."""
    return _to_levels(tf.cast(image, tf.float32) * factor, image)


def sharpness(image: Any, factor: Any) -> tf.Tensor:
    """Blends with a smoothed picture: 0 is smooth, 1 the original; edges stay.

    The kernel is 1 1 1, 1 5 1, 1 1 1 over 13, as in Pillow.
    """
    levels = tf.cast(_rows(image), tf.float32)
    columns = levels[:-2] + levels[1:-1] + levels[2:]
    box = columns[:, :-6] + columns[:, 3:-3] + columns[:, 6:]
    inner = levels[1:-1, 3:-3]
    smooth = tf.floor((box + 4 * inner) * (1 / 13) + 0.5)
    middle = image[1:-1]
    blended = _blend(smooth, inner, factor, middle[:, 1:-1])
    last = tf.maximum(tf.shape(image)[:2] - 1, 1)  # a single row is no last one
    middle = tf.concat([middle[:, :1], blended, middle[:, last[1] :]], axis=1)
    return tf.concat([image[:1], middle, image[last[0] :]], axis=0)


def hue(image: Any, turn: Any) -> tf.Tensor:
    """Turns the colour circle by `turn`, -0.5...0.5 of it; greys stay."""
    unit = tf.cast(image, tf.float32) / 255
    return _to_levels(255 * tf.image.adjust_hue(unit, turn) + 0.5, image)


def _blend(zero: Any, one: Any, factor: Any, like: Any) -> tf.Tensor:
    """Goes from `zero` through `one` (factor 1) and beyond; shaped as `like`."""
    return _to_levels(zero + factor * (one - zero), like)


def _to_levels(values: Any, like: Any) -> tf.Tensor:
    """Clips and cuts off floats to uint8; shaped as `like`."""
    levels = tf.cast(tf.clip_by_value(values, 0, 255), tf.uint8)
    return tf.reshape(levels, tf.shape(like))


def affine(image: Any, matrix: Any) -> tf.Tensor:
    """Moves pixels about the centre; outside is grey.

    Args:
      image: uint8 `(h, w, 3)`.
      matrix: `(a, b, d, e)`: the output pixel at x, y from the centre shows the input
        pixel nearest to a x + b y, d x + e y.
    """
    height, width = tf.unstack(tf.shape(image)[:2])
    a, b, d, e = (tf.cast(value, tf.float32) for value in matrix)
    x, y = _from_centre(width), _from_centre(height)
    # Rows and columns of the picture with a border of grey, where all outside ends.
    column = _places_of(a * x, b * y, width)
    row = _places_of(d * x, e * y, height)
    framed = _frame(image, height, width)
    place = row * (width + 2) + column
    return tf.gather_nd(tf.reshape(framed, [-1, 3]), tf.expand_dims(place, -1))


def _from_centre(size: Any) -> tf.Tensor:
    return tf.range(tf.cast(size, tf.float32)) - (tf.cast(size, tf.float32) - 1) / 2


def _places_of(across: Any, down: Any, size: Any) -> tf.Tensor:
    """Rounds sums of a row and a column, counted from the centre, to places + 1."""
    shift = (tf.cast(size, tf.float32) - 1) / 2 + 1.5
    places = (across + shift)[None, :] + down[:, None]
    last = tf.cast(size + 1, tf.float32)
    return tf.cast(tf.clip_by_value(places, 0, last), tf.int32)


def _frame(image: Any, height: Any, width: Any) -> tf.Tensor:
    """Adds one row and one column of grey on each side."""
    side = _grey(height, 1)
    line = _grey(1, width + 2)
    return tf.concat([line, tf.concat([side, image, side], axis=1), line], axis=0)


def _grey(height: Any, width: Any) -> tf.Tensor:
    return tf.fill(tf.stack([height, width, 3]), tf.constant(FILL, tf.uint8))


def rotate(image: Any, degrees: Any) -> tf.Tensor:
    """Turns the picture anticlockwise, as `Image.rotate`."""
    angle = tf.cast(degrees, tf.float32) * (math.pi / 180)
    cos, sin = tf.cos(angle), tf.sin(angle)
    return affine(image, (cos, -sin, sin, cos))


def translate(image: Any, share: Any, axis: int) -> tf.Tensor:
    """Shifts the picture against an axis by a share (-1...1) of its side."""
    size = tf.shape(image)
    side = size[axis]
    pixels = tf.cast(tf.round(share * tf.cast(side, tf.float32)), tf.int32)
    before, after = tf.maximum(-pixels, 0), tf.maximum(pixels, 0)
    begin = tf.one_hot(axis, 3, after)
    kept = tf.slice(image, begin, size - tf.one_hot(axis, 3, before + after))
    if axis == 0:
        return tf.concat([_grey(before, size[1]), kept, _grey(after, size[1])], axis=0)
    return tf.concat([_grey(size[0], before), kept, _grey(size[0], after)], axis=1)


def paste(image: Any, patch: Any, corner: Any) -> tf.Tensor:
    """Puts a patch, which must fit, over a picture of any dtype.

    Args:
      image: `(h, w, c)`.
      patch: `(p, q, c)`, p and q may be 0.
      corner: Its first row and column.
    """
    top, left = tf.unstack(corner)
    height, width = tf.unstack(tf.shape(patch)[:2])
    band = image[top : top + height]
    band = tf.concat([band[:, :left], patch, band[:, left + width :]], axis=1)
    return tf.concat([image[:top], band, image[top + height :]], axis=0)


def cutout(image: Any, side: Any, centre: Any) -> tf.Tensor:
    """Paints a grey square; what lies beyond the edge is lost.

    Args:
      image: uint8 `(h, w, 3)`.
      side: Side of the square as a fraction of the shorter side of the picture.
      centre: Its centre `(y, x)`, each 0...1.
    """
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    half = side * tf.reduce_min(size) / 2
    middle = size * centre
    # The pixels whose centre lies within: place + 0.5 in middle ± half.
    first = tf.clip_by_value(tf.round(middle - half), 0, size)
    end = tf.clip_by_value(tf.round(middle + half), first, size)
    first, end = tf.cast(first, tf.int32), tf.cast(end, tf.int32)
    return paste(image, _grey(*tf.unstack(end - first)), first)

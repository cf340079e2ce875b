# SPDX-License-Identifier: Apache-2.0
"""RandAugment (arXiv:1909.13719) with the operations of AutoAugment, in TensorFlow.

Every operation takes and returns uint8 `(h, w, 3)`. Colour operations equal Pillow's
`ImageOps` and `ImageEnhance` (blends within one level). Magnitude 10 is the strength
that AutoAugment calls full; 0 to 30 are allowed, and recipes use 10 to 20. How far an
operation moves the picture never falls as the magnitude grows (in the TPU and
big_vision code posterize, solarize and the blends run backwards, and a shift or a
cut-out in pixels blanks small pictures):

  operation                                at magnitude m              most
  autocontrast, equalize, invert           the same at every m
  rotate                                   ± 3 m degrees               90
  shear_x, shear_y                         ± 0.03 m                    0.9
  translate_x, translate_y                 ± 0.045 m of the side       0.9
  posterize                                8 - floor(0.4 m) bits       2 bits left
  solarize, inverts levels from            256 - 12.8 m                0 (at 20)
  solarize_add, to levels below 128        11 m                        127
  color, contrast, brightness, sharpness   factor 1 ± 0.09 m           0.1 ... 3.7
  cutout, side of the square               0.036 m of the side         0.9

Magnitude 0 is therefore not a no-op: the first row remains. Geometric operations turn
about the centre, take the nearest pixel and fill with grey (128), as does the cut-out.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from vit_jax.errors import UserError
from vit_jax.registry import OPS

FILL = 128
MAX_MAGNITUDE = 30


@OPS.register(random=True)
def randaug(
    num_layers: int = 2, magnitude: float = 10
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Random: applies operations drawn from `OPERATIONS`, one after the other.

    Takes and returns uint8 `(h, w, 3)` in `image`, so it stands before `value_range`.

    Args:
      num_layers: Number of operations, each drawn uniformly with replacement.
      magnitude: Strength, 0 to 30; see the table at the top of this file.
    """
    if num_layers < 1 or not 0 <= magnitude <= MAX_MAGNITUDE:
        raise UserError(
            f"randaug({num_layers}, {magnitude}); give at least 1 layer and a "
            f"magnitude from 0 to {MAX_MAGNITUDE}"
        )

    def run(features: dict[str, Any]) -> dict[str, Any]:
        image = features["image"]
        if image.dtype != tf.uint8:
            raise UserError(
                f"randaug got a {image.dtype.name} image; it takes decoded uint8, so "
                "put it after decode and before value_range"
            )
        draws = tf.random.stateless_uniform([num_layers, 4], features["seed"])
        for layer in range(num_layers):
            image = _draw_operation(image, float(magnitude), draws[layer])
        return {**features, "image": image}

    return run


def _draw_operation(image: Any, magnitude: float, draw: Any) -> tf.Tensor:
    choice = tf.cast(draw[0] * len(OPERATIONS), tf.int32)
    branches = [
        lambda operation=operation: operation(image, magnitude, draw[1:])
        for operation in OPERATIONS.values()
    ]
    result = tf.switch_case(choice, branches)
    result.set_shape(image.shape)
    return result


# Operations of fixed strength, and by parameter.


def autocontrast(image: Any) -> tf.Tensor:
    """Stretches each channel to 0...255, as `ImageOps.autocontrast`."""
    low = tf.cast(tf.reduce_min(image, axis=[0, 1]), tf.float64)
    high = tf.cast(tf.reduce_max(image, axis=[0, 1]), tf.float64)
    scale = tf.where(high > low, 255 / tf.maximum(high - low, 1), 1)
    offset = tf.where(high > low, -low * scale, 0)
    levels = tf.cast(tf.range(256)[:, None], tf.float64)
    return _look_up(image, tf.cast(levels * scale + offset, tf.int32))


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
    return tf.reshape(tf.gather(flat, _places(image)), tf.shape(image))


def _places(image: Any) -> tf.Tensor:
    """Returns 3 level + channel as `(h, 3 w)`, a shape that is quick to add to."""
    height, width = tf.unstack(tf.shape(image)[:2])
    levels = tf.cast(tf.reshape(image, [height, 3 * width]), tf.int32)
    return 3 * levels + tf.tile(tf.range(3), [width])


def invert(image: Any) -> tf.Tensor:
    """Returns the negative."""
    return tf.constant(255, tf.uint8) - image


def posterize(image: Any, bits: int) -> tf.Tensor:
    """Keeps the highest `bits` of each level."""
    return tf.bitwise.bitwise_and(image, tf.constant(256 - 2 ** (8 - bits), tf.uint8))


def solarize(image: Any, threshold: int) -> tf.Tensor:
    """Inverts the levels from `threshold` (0 to 256) on."""
    if threshold > 255:
        return tf.identity(image)
    bright = tf.cast(image >= tf.constant(threshold, tf.uint8), tf.uint8)
    return tf.bitwise.bitwise_xor(image, 255 * bright)


def solarize_add(image: Any, addition: int) -> tf.Tensor:
    """Adds (0 to 255) to the levels below 128 and clips at 255."""
    dark = tf.cast(image < tf.constant(128, tf.uint8), tf.uint8)
    return image + dark * tf.minimum(255 - image, tf.constant(addition, tf.uint8))


def color(image: Any, factor: Any) -> tf.Tensor:
    """Blends with the grey picture: 0 is grey, 1 the original, as `ImageEnhance`."""
    return _blend(_grey(image, 3), image, factor)


def contrast(image: Any, factor: Any) -> tf.Tensor:
    """Blends with the mean grey level: 0 is flat, 1 the original."""
    mean = tf.reduce_mean(tf.cast(_grey(image, 1), tf.float64))
    return _blend(tf.floor(mean + 0.5), image, factor)


def brightness(image: Any, factor: Any) -> tf.Tensor:
    """Blends with black: 0 is black, 1 the original."""
    return _blend(tf.constant(0), image, factor)


def sharpness(image: Any, factor: Any) -> tf.Tensor:
    """Blends with a smoothed picture: 0 is smooth, 1 the original."""
    levels = tf.cast(image, tf.int32)
    rows = levels[:-2] + levels[1:-1] + levels[2:]
    box = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    inner = levels[1:-1, 1:-1]
    smooth = (2 * (box + 4 * inner) + 13) // 26  # kernel 1 1 1, 1 5 1, 1 1 1 over 13
    edge = tf.pad(smooth - inner, [[1, 1], [1, 1], [0, 0]])
    return _blend(levels + edge, image, factor)


def _grey(image: Any, channels: int) -> tf.Tensor:
    """Returns Pillow's luma, ITU-R 601-2 in 16-bit fixed point, in each channel.

    Exact in float32: the greatest sum, 255 * 65536 + 32768, is below 2^24.
    """
    weights = tf.constant([[19595.0], [38470.0], [7471.0]])
    levels = tf.cast(tf.reshape(image, [-1, 3]), tf.float32)
    luma = tf.matmul(levels, tf.tile(weights, [1, channels]))
    shape = tf.concat([tf.shape(image)[:2], [channels]], 0)
    return tf.reshape(tf.floor((luma + 32768) / 65536), shape)


def _blend(zero: Any, image: Any, factor: Any) -> tf.Tensor:
    """Goes from `zero` through `image` (factor 1) and beyond, clipped, cut off."""
    zero, one = tf.cast(zero, tf.float32), tf.cast(image, tf.float32)
    return tf.cast(tf.clip_by_value(zero + factor * (one - zero), 0, 255), tf.uint8)


def affine(image: Any, matrix: Any) -> tf.Tensor:
    """Moves pixels about the centre; outside is grey.

    Args:
      image: uint8 `(h, w, 3)`.
      matrix: `(a, b, c, d, e, f)`: the output pixel at x, y from the centre shows the
        input at a x + b y + c, d x + e y + f; nearest pixel.
    """
    a, b, c, d, e, f = (tf.cast(value, tf.float32) for value in matrix)
    size = tf.shape(image)[:2]
    middle = (tf.cast(size, tf.float32) - 1) / 2
    y, x = middle[0], middle[1]
    transform = [a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y, 0.0, 0.0]
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=tf.stack(transform)[None],
        output_shape=size,
        fill_value=float(FILL),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )
    return moved[0]


def rotate(image: Any, degrees: Any) -> tf.Tensor:
    """Turns the picture anticlockwise, as `Image.rotate`."""
    angle = tf.cast(degrees, tf.float32) * (math.pi / 180)
    cos, sin = tf.cos(angle), tf.sin(angle)
    return affine(image, (cos, -sin, 0, sin, cos, 0))


def cutout(image: Any, side: float, centre: Any) -> tf.Tensor:
    """Paints a grey square; what lies beyond the edge is lost.

    Args:
      image: uint8 `(h, w, 3)`.
      side: Side of the square as a fraction of the shorter side of the picture.
      centre: Its centre `(y, x)`, each 0...1.
    """
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    half = side * tf.reduce_min(size) / 2
    rows = tf.abs(tf.range(size[0]) + 0.5 - centre[0] * size[0]) < half
    columns = tf.abs(tf.range(size[1]) + 0.5 - centre[1] * size[1]) < half
    return tf.where(
        (rows[:, None] & columns)[..., None], tf.cast(FILL, tf.uint8), image
    )


# The operations with the strength of a magnitude m; `draw` holds three numbers in
# 0...1, the first for the sign.


def _sign(draw: Any) -> tf.Tensor:
    return tf.where(draw[0] < 0.5, -1.0, 1.0)


def _factor(m: float, draw: Any) -> tf.Tensor:
    return tf.maximum(1 + 0.09 * m * _sign(draw), 0.1)


def _shift(side: Any, m: float, draw: Any) -> tf.Tensor:
    return tf.round(min(0.045 * m, 0.9) * tf.cast(side, tf.float32)) * _sign(draw)


OPERATIONS: dict[str, Callable[[Any, float, Any], tf.Tensor]] = {
    "autocontrast": lambda image, m, draw: autocontrast(image),
    "equalize": lambda image, m, draw: equalize(image),
    "invert": lambda image, m, draw: invert(image),
    "rotate": lambda image, m, draw: rotate(image, 3 * m * _sign(draw)),
    "posterize": lambda image, m, draw: posterize(image, max(8 - int(0.4 * m), 2)),
    "solarize": lambda image, m, draw: solarize(image, max(256 - round(12.8 * m), 0)),
    "solarize_add": lambda image, m, draw: solarize_add(image, min(round(11 * m), 127)),
    "color": lambda image, m, draw: color(image, _factor(m, draw)),
    "contrast": lambda image, m, draw: contrast(image, _factor(m, draw)),
    "brightness": lambda image, m, draw: brightness(image, _factor(m, draw)),
    "sharpness": lambda image, m, draw: sharpness(image, _factor(m, draw)),
    "shear_x": lambda image, m, draw: affine(
        image, (1, 0.03 * m * _sign(draw), 0, 0, 1, 0)
    ),
    "shear_y": lambda image, m, draw: affine(
        image, (1, 0, 0, 0.03 * m * _sign(draw), 1, 0)
    ),
    "translate_x": lambda image, m, draw: affine(
        image, (1, 0, _shift(tf.shape(image)[1], m, draw), 0, 1, 0)
    ),
    "translate_y": lambda image, m, draw: affine(
        image, (1, 0, 0, 0, 1, _shift(tf.shape(image)[0], m, draw))
    ),
    "cutout": lambda image, m, draw: cutout(image, min(0.036 * m, 0.9), draw[1:]),
}
"""Name to `(image, magnitude, draw) -> image`."""

# SPDX-License-Identifier: Apache-2.0
"""Colour jitter and random erasing, in TensorFlow."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from vit_jax.data.ops import operations
from vit_jax.data.ops.arguments import STATISTICS
from vit_jax.data.ops.augment import check_levels
from vit_jax.data.ops.image import Features, Op
from vit_jax.errors import UserError
from vit_jax.registry import OPS

Change = Callable[[Any, Any], tf.Tensor]

ATTEMPTS = 10
"""Boxes that are drawn for one erasure until one fits."""


@OPS.register(random=True)
def color_jitter(
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
) -> Op:
    """Random: changes colours by factors near 1, in random order.

    Takes and returns uint8 `(h, w, 3)` in `image`, so it stands before `value_range`.
    The first three blend as `brightness`, `contrast` and `color` of `operations`, with
    a factor uniform in max(0.1, 1 - x)...1 + x; the hue turns by a share of the colour
    circle uniform in -x...x. (torchvision begins at 0, where nothing is left to see.)

    Args:
      brightness: Greatest change of the factor, 0 for none; DeiT and Swin take 0.4.
      contrast: The same.
      saturation: The same.
      hue: Greatest turn, 0 to 0.5.
    """
    blends = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
    if min(blends.values()) < 0 or not 0 <= hue <= 0.5:
        raise UserError(
            f"color_jitter({brightness}, {contrast}, {saturation}, {hue}); give 0 or "
            "more for the first three, and a hue from 0 to 0.5"
        )
    functions = {
        "brightness": operations.brightness,
        "contrast": operations.contrast,
        "saturation": operations.color,
    }
    changes: list[tuple[Change, float, float]] = [
        (functions[name], max(0.1, 1 - x), 1 + x) for name, x in blends.items() if x
    ]
    if hue:
        changes.append((operations.hue, -hue, hue))
    permutations = list(itertools.permutations(range(len(changes))))
    orders = tf.constant(permutations, tf.int32)

    def run(features: Features) -> Features:
        image = check_levels(features["image"], "color_jitter")
        draws = tf.random.stateless_uniform([len(changes) + 1], features["seed"])
        order = orders[tf.cast(draws[-1] * len(permutations), tf.int32)]
        for place in range(len(changes)):
            image = _change(image, changes, order[place], draws)
        return {**features, "image": image}

    return run


def _change(
    image: Any,
    changes: Sequence[tuple[Change, float, float]],
    choice: Any,
    draws: Any,
) -> tf.Tensor:
    """Makes one of some changes, by a strength between its two numbers."""
    branches = [
        lambda change=change, strength=low + (high - low) * draws[number]: change(
            image, strength
        )
        for number, (change, low, high) in enumerate(changes)
    ]
    result = tf.switch_case(choice, branches)
    result.set_shape(image.shape)
    return result


@OPS.register(random=True)
def random_erasing(
    prob: float = 0.25,
    area: Sequence[float] = (0.02, 1 / 3),
    aspect: Sequence[float] = (0.3, 1 / 0.3),
    fill: Literal["pixel", "const"] = "pixel",
) -> Op:
    """Random: paints a box with noise or with grey (arXiv:1708.04896).

    For float images, as behind `normalize`, noise is standard normal and grey is 0,
    as in timm. For uint8 they are the levels that `normalize` maps to these: grey is
    ImageNet's mean, and noise has ImageNet's mean and deviation.

    Args:
      prob: Probability that a picture is painted on.
      area: Least and greatest area of the box, as a fraction of the picture.
      aspect: Least and greatest height over width; its logarithm is uniform.
      fill: "pixel" for noise, "const" for grey.
    """
    fractions = len(area) == 2 and 0 < area[0] <= area[1] < 1
    if not (fractions and len(aspect) == 2 and 0 < aspect[0] <= aspect[1]):
        raise UserError(
            f"random_erasing of area {area}, aspect {aspect}; give two rising numbers "
            "for each, areas between 0 and 1 such as (0.02, 0.33)"
        )
    if not 0 <= prob <= 1:
        raise UserError(f"random_erasing with prob={prob}; give 0 to 1, such as 0.25")

    def run(features: Features) -> Features:
        image, seed = features["image"], features["seed"]
        draws = tf.random.stateless_uniform([2 * ATTEMPTS + 3], seed)
        box = _draw_box(tf.shape(image)[:2], draws[3:], area, aspect)
        room = tf.cast(tf.shape(image)[:2] - box + 1, tf.float32)
        corner = tf.cast(draws[1:3] * room, tf.int32)

        def paint() -> tf.Tensor:
            patch = _patch(image.dtype, box, seed + 1, fill)
            return operations.paste(image, patch, corner)

        result = tf.cond(draws[0] < prob, paint, lambda: tf.identity(image))
        result.set_shape(image.shape)
        return {**features, "image": result}

    return run


def _draw_box(
    size: Any, draws: Any, area: Sequence[float], aspect: Sequence[float]
) -> tf.Tensor:
    """Returns height and width of the first box that is smaller than the picture."""
    draws = tf.reshape(draws, [2, ATTEMPTS])
    pixels = tf.cast(tf.reduce_prod(size), tf.float32)
    areas = pixels * (area[0] + (area[1] - area[0]) * draws[0])
    low, high = math.log(aspect[0]), math.log(aspect[1])
    aspects = tf.exp(low + (high - low) * draws[1])
    sides = tf.stack([tf.sqrt(areas * aspects), tf.sqrt(areas / aspects)], axis=1)
    boxes = tf.cast(tf.round(sides), tf.int32)  # (attempt, 2)
    fits = tf.reduce_all(boxes < size, axis=1)
    first = boxes[tf.argmax(tf.cast(fits, tf.int32))]
    return tf.where(tf.reduce_any(fits), first, tf.zeros_like(first))


def _patch(dtype: Any, box: Any, seed: Any, fill: str) -> tf.Tensor:
    shape = tf.concat([box, [3]], 0)
    if fill == "pixel":
        values = tf.random.stateless_normal(shape, seed)
    else:
        values = tf.zeros(shape)
    if dtype != tf.uint8:
        return tf.cast(values, dtype)
    mean, std = (tf.constant(row) * 255 for row in STATISTICS["imagenet"])
    levels = tf.clip_by_value(values * std + mean, 0, 255)
    return tf.cast(tf.round(levels), tf.uint8)

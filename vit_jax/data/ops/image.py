# SPDX-License-Identifier: Apache-2.0
"""Preprocessing ops on `features["image"]`, in TensorFlow.

Each factory returns a function from a dictionary of features to a new one that differs
in the key `image` alone. Images are `(h, w, 3)`, uint8 levels 0...255 until
`value_range` or `normalize`. Where an op is said to be random it draws from
`features["seed"]`, an integer tensor `(2,)`, and from nothing else: same seed, same
pixels.

Crops are in `crop`; `reference` has the deterministic ops in NumPy.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from vit_jax.data.ops import decode as decoding
from vit_jax.data.ops.arguments import (
    Method,
    pair,
    range_shift,
    statistics,
)
from vit_jax.errors import UserError
from vit_jax.registry import OPS

Features = dict[str, Any]
Op = Callable[[Features], Features]


@dataclasses.dataclass(frozen=True)
class Decode:
    """What `decode` makes; `inception_crop` may take its work over (see `fuse`)."""

    exif: bool

    def __call__(self, features: Features) -> Features:
        """Decodes `features["image"]`."""
        return {**features, "image": self.image(features)}

    def image(self, features: Features) -> tf.Tensor:
        """Returns the decoded image: uint8 `(h, w, 3)`."""
        image = features["image"]
        if image.dtype == tf.string:
            return decoding.decode(features, exif=self.exif)
        return _three_channels(image)


@OPS.register()
def decode(exif: bool = True) -> Op:
    """Decodes the file in `image`; uint8 arrays pass, grey ones become three channels.

    The result equals `pixels.decode_image` bit for bit, which says what becomes of
    alpha, palettes, 16-bit grey, CMYK and so on. Broken files raise a `UserError` that
    gives `features["name"]`, if there is one.

    Args:
      exif: Whether to apply the orientation that EXIF or XMP state.
    """
    return Decode(exif)


@OPS.register()
def resize(
    size: int | Sequence[int], method: Method = "bilinear", antialias: bool = False
) -> Op:
    """Resizes to exactly `size`, whatever the aspect ratio, with half-pixel centres.

    uint8 stays uint8, rounded to nearest (big_vision cuts off, half a level darker);
    float stays float. The same size is a no-op.

    Args:
      size: Side of a square, or (height, width).
      method: As in `tf.image.resize`; bicubic is Keys' with a = -0.5, clipped to
        0...255 for uint8.
      antialias: Whether to widen the kernel when shrinking, as Pillow always does.
        Google's checkpoints were trained without. No effect on nearest and area.
    """
    target = pair(size, "resize")
    return on_image(lambda image: resize_image(image, target, method, antialias))


@OPS.register()
def resize_small(size: int, method: Method = "area", antialias: bool = False) -> Op:
    """Resizes so that the shorter side is `size` and the aspect ratio is kept.

    The longer side is rounded to nearest, halves up. Defaults are big_vision's.

    Args:
      size: Length of the shorter side.
      method: See `resize`; "area" averages the pixels that an output pixel covers.
      antialias: See `resize`.
    """
    pair(size, "resize_small")

    def run(image: tf.Tensor) -> tf.Tensor:
        sides = tf.cast(tf.shape(image)[:2], tf.int64)
        short = tf.reduce_min(sides)
        target = tf.cast((2 * sides * size + short) // (2 * short), tf.int32)
        return resize_image(image, target, method, antialias)

    return on_image(run)


@OPS.register(random=True)
def flip_lr() -> Op:
    """Random: mirrors left and right with probability one half."""
    return lambda features: {
        **features,
        "image": flip_at_random(features["image"], features["seed"]),
    }


def flip_at_random(image: Any, seed: Any) -> tf.Tensor:
    """Mirrors left and right if the seed says so."""
    flip = tf.random.stateless_uniform([], seed) < 0.5
    return tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: tf.identity(image))


@OPS.register()
def value_range(
    vmin: float = -1.0,
    vmax: float = 1.0,
    in_min: float = 0.0,
    in_max: float = 255.0,
    clip: bool = False,
) -> Op:
    """Maps levels linearly to another range: float32, x / 127.5 - 1 by default.

    Args:
      vmin: Where `in_min` goes.
      vmax: Where `in_max` goes.
      in_min: Lower end of the given range.
      in_max: Upper end of the given range.
      clip: Whether to clip to `vmin`...`vmax`.
    """
    shift, factor = range_shift(vmin, vmax, in_min, in_max)

    def run(image: tf.Tensor) -> tf.Tensor:
        scaled = (tf.cast(image, tf.float32) - shift) * factor
        return tf.clip_by_value(scaled, vmin, vmax) if clip else scaled

    return on_image(run)


@OPS.register()
def multiply(factor: float) -> Op:
    """Multiplies levels: `multiply(255)` shows pictures of 0 and 1, as dSprites has.

    Args:
      factor: What with. uint8 stays uint8, rounded and clipped to 0...255.
    """

    def run(image: tf.Tensor) -> tf.Tensor:
        levels = tf.cast(image, tf.float32) * factor
        if image.dtype != tf.uint8:
            return levels
        return tf.cast(tf.clip_by_value(tf.round(levels), 0, 255), tf.uint8)

    return on_image(run)


@OPS.register()
def normalize(
    mean: str | Sequence[float] = "imagenet", std: str | Sequence[float] | None = None
) -> Op:
    """Subtracts the mean of each channel and divides by its deviation: float32.

    Args:
      mean: Three numbers for levels 0...1 (they are applied to 0...255), or the name
        of published ones: "imagenet", "clip".
      std: The same; None takes the one of the name in `mean`.
    """
    mean255, std255 = statistics(mean, std)
    shift, factor = tf.constant(mean255), tf.constant(1 / std255, tf.float32)

    def run(image: tf.Tensor) -> tf.Tensor:
        # As rows of (w * 3): numbers that repeat every three are slow to broadcast.
        height, width = tf.unstack(tf.shape(image)[:2])
        rows = tf.reshape(tf.cast(image, tf.float32), [height, 3 * width])
        rows = (rows - tf.tile(shift, [width])) * tf.tile(factor, [width])
        scaled = tf.reshape(rows, [height, width, 3])
        scaled.set_shape(image.shape)
        return scaled

    return on_image(run)


def on_image(function: Callable[[Any], Any]) -> Op:
    """Makes an op of a function of the image alone."""
    return lambda features: {**features, "image": function(features["image"])}


def _three_channels(image: tf.Tensor) -> tf.Tensor:
    channels = image.shape[-1] if image.shape.rank == 3 else None
    if image.dtype != tf.uint8 or channels not in (1, 3):
        raise UserError(
            f"decode got an array {image.dtype.name}{image.shape.as_list()}; it takes "
            "encoded bytes or uint8 of shape (h, w, 1) or (h, w, 3)"
        )
    return image if channels == 3 else tf.tile(image, [1, 1, 3])


def resize_image(
    image: Any, size: Any, method: Method, antialias: bool, whole: bool = True
) -> tf.Tensor:
    """Resizes to `(height, width)`; see `resize`.

    Args:
      image: The image.
      size: `(height, width)`.
      method: See `resize`.
      antialias: See `resize`.
      whole: Whether to round uint8 images back to uint8, else they become float32.
    """
    resized = tf.image.resize(image, size, method=method, antialias=antialias)
    if image.dtype != tf.uint8 or method == "nearest":
        return resized
    if method == "bicubic":
        resized = tf.clip_by_value(resized, 0, 255)
    return tf.cast(tf.round(resized), tf.uint8) if whole else resized

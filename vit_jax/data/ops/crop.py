# SPDX-License-Identifier: Apache-2.0
"""Preprocessing ops that change the frame of `features["image"]`, in TensorFlow.

See `image` for what an op is, and what is meant by random.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from vit_jax.data.ops import decode as decoding
from vit_jax.data.ops.arguments import LABEL_OPS, Method, op_word, pad_target, pair
from vit_jax.data.ops.image import (
    Decode,
    Features,
    Op,
    flip_at_random,
    on_image,
    resize_image,
)
from vit_jax.errors import UserError
from vit_jax.registry import OPS


@OPS.register(random=True)
def inception_crop(
    size: int | Sequence[int] | None = None,
    area_min: float = 5.0,
    area_max: float = 100.0,
    method: Method = "bilinear",
    antialias: bool = False,
    scaled: bool = False,
) -> Op:
    """Random: cuts out a box of random area and aspect ratio, and resizes it.

    The sampling of GoogLeNet (arXiv:1409.4842, section 6): area uniform in the given
    range, aspect ratio in 3/4...4/3.

    Three neighbours make it faster. Directly after `decode`, plain JPEG files are only
    decoded where the box lies. The box is the same; its outermost pixels miss the
    neighbours that colour is interpolated from, and differ (by at most 31 levels in 500
    photographs, before resizing; none further inside). A `flip_lr` directly behind it
    turns the box before it is resized (the same to rounding). And where only ops on
    labels stand between these and `value_range` or `normalize`, levels keep their
    fractions (at most half a level from the rounded ones).

    Args:
      size: Side of a square or (height, width) to resize to; None keeps the box.
      area_min: Least area of the box in percent of the image.
      area_max: Greatest area of the box in percent.
      method: See `resize`.
      antialias: See `resize`.
      scaled: Whether to decode plain JPEG files at a half, a quarter or an eighth of
        their size as long as the box stays larger than `size`. Faster for pictures of
        several times `size`; smoother than without, as details are averaged.
    """
    if not 0 < area_min <= area_max <= 100:
        raise UserError(
            f"inception_crop of area {area_min}...{area_max}; give percentages with "
            "0 < area_min <= area_max <= 100"
        )
    if scaled and size is None:
        raise UserError("inception_crop(scaled=True) needs a size; give it one")
    target = None if size is None else pair(size, "inception_crop")
    area = (area_min / 100, area_max / 100)
    return InceptionCrop(target, area, method, antialias, scaled)


@dataclasses.dataclass(frozen=True)
class InceptionCrop:
    """What `inception_crop` makes.

    Attributes:
      size: See `inception_crop`, also for the next four.
      area: Least and greatest area of the box as a fraction.
      method: How to resize.
      antialias: Whether to widen the kernel.
      scaled: Whether to decode large pictures smaller.
      decode: The op before, if its work is done here.
      flip: What added to the seed gives that of the `flip_lr` behind; None if its work
        is not done here.
      fractions: Whether the levels become float32 and keep their fractions.
    """

    size: tuple[int, int] | None
    area: tuple[float, float]
    method: Method
    antialias: bool
    scaled: bool
    decode: Decode | None = None
    flip: np.ndarray | None = None
    fractions: bool = False

    def __call__(self, features: Features) -> Features:
        """Crops `features["image"]`, decoding it first if `decode` is set."""
        image = self._box(features)
        if self.flip is not None:
            image = flip_at_random(image, features["seed"] + self.flip)
        if self.size is not None:
            image = resize_image(
                image, self.size, self.method, self.antialias, not self.fractions
            )
        return {**features, "image": image}

    def _box(self, features: Features) -> tf.Tensor:
        data, seed = features["image"], features["seed"]
        if self.decode is None:
            return self._cut(data, seed)
        decode = self.decode
        if data.dtype != tf.string:
            return self._cut(decode.image(features), seed)
        kind = decoding.kind_of(features)
        known = {**features, "kind": kind}
        return tf.cond(
            decoding.is_plain_jpeg(kind, exif=decode.exif),
            lambda: self._cut_jpeg(data, seed),
            lambda: self._cut(decoding.decode_other(known, exif=decode.exif), seed),
        )

    def _cut_jpeg(self, data: Any, seed: Any) -> tf.Tensor:
        begin, extent = self._window(tf.io.extract_jpeg_shape(data), seed)
        if not self.scaled or self.size is None:
            return decoding.decode_window(data, tf.concat([begin, extent], 0))
        ratios = (1, 2, 4, 8)
        size = tf.constant(self.size)
        fits = [tf.reduce_all(extent // ratio >= size) for ratio in ratios[1:]]

        def decode_at(ratio: int) -> tf.Tensor:
            window = tf.concat([begin // ratio, extent // ratio], 0)
            return decoding.decode_window(data, window, ratio)

        return tf.switch_case(
            tf.reduce_sum(tf.cast(tf.stack(fits), tf.int32)),
            [lambda ratio=ratio: decode_at(ratio) for ratio in ratios],
        )

    def _cut(self, image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        begin, extent = self._window(tf.shape(image), seed)
        box = tf.slice(image, tf.concat([begin, [0]], 0), tf.concat([extent, [-1]], 0))
        box.set_shape((None, None, image.shape[-1]))
        return box

    def _window(self, shape: Any, seed: Any) -> tuple[tf.Tensor, tf.Tensor]:
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            bounding_boxes=tf.zeros((0, 0, 4)),
            seed=seed,
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=self.area,
            use_image_if_no_bounding_boxes=True,
        )
        return begin[:2], extent[:2]


def fuse(ops: Sequence[Op], names: Sequence[str]) -> list[Op | None]:
    """Lets each `inception_crop` do the work of its neighbours.

    Args:
      ops: The ops of a string.
      names: Their names.

    Returns:
      The ops; None for one whose work another does.
    """
    fused: list[Op | None] = list(ops)
    for index, op in enumerate(ops):
        if not isinstance(op, InceptionCrop):
            continue
        before = ops[index - 1] if index else None
        decode = before if isinstance(before, Decode) else None
        if decode is not None:
            fused[index - 1] = None
        behind = [*names[index + 1 :], ""]
        flip = None
        if behind[0] == "flip_lr":
            flip = op_word(index + 1) - op_word(index)
            fused[index + 1] = None
        fused[index] = dataclasses.replace(
            op, decode=decode, flip=flip, fractions=_becomes_float(behind)
        )
    return fused


def _becomes_float(names: Sequence[str]) -> bool:
    """Says whether no op asks for whole levels before one that makes floats."""
    others = [name for name in names if name not in (*LABEL_OPS, "flip_lr")]
    return others[:1] in (["value_range"], ["normalize"])


@OPS.register(random=True)
def random_crop(size: int | Sequence[int], padding: int = 0) -> Op:
    """Random: cuts out `size` at a uniformly drawn place, after zero padding.

    Args:
      size: Side of a square, or (height, width).
      padding: Rows and columns of zeros to add on each side before.
    """
    height, width = pair(size, "random_crop")
    if padding < 0:
        raise UserError(f"random_crop with padding {padding}; give 0 or more")
    around = [[padding, padding], [padding, padding], [0, 0]]

    def run(features: Features) -> Features:
        image = features["image"]
        image = tf.pad(image, around) if padding else image
        room = _room(image, (height, width), "random_crop")
        draw = tf.random.stateless_uniform([2], features["seed"])
        offset = tf.cast(draw * tf.cast(room + 1, tf.float32), tf.int32)
        return {**features, "image": _slice(image, offset, (height, width))}

    return run


@OPS.register()
def central_crop(size: int | Sequence[int]) -> Op:
    """Cuts `size` out of the middle; the odd row or column is lost at the far end.

    Args:
      size: Side of a square, or (height, width), at most that of the image.
    """
    target = pair(size, "central_crop")

    def run(image: tf.Tensor) -> tf.Tensor:
        return _slice(image, _room(image, target, "central_crop") // 2, target)

    return on_image(run)


@OPS.register()
def pad(
    pixels: int | None = None,
    size: int | Sequence[int] | None = None,
    value: float = 0,
) -> Op:
    """Adds a border of one value.

    Args:
      pixels: Rows and columns to add on each side.
      size: Instead of `pixels`: side of the square or (height, width) to reach, with
        the image in the middle and the odd row or column at the far end.
      value: The level of the border.
    """
    target = pad_target(pixels, size)

    def run(image: tf.Tensor) -> tf.Tensor:
        level = tf.cast(value, image.dtype)
        if target is None:
            around = [[pixels, pixels], [pixels, pixels], [0, 0]]
            return tf.pad(image, around, constant_values=level)
        room = -_room(image, target, "pad")
        before = room // 2
        around = tf.concat([tf.stack([before, room - before], 1), [[0, 0]]], 0)
        padded = tf.pad(image, around, constant_values=level)
        padded.set_shape((*target, image.shape[-1]))
        return padded

    return on_image(run)


def _room(image: Any, size: tuple[int, int], op: str) -> Any:
    """Returns by how much an image exceeds `size`; `pad` wants the opposite."""
    sign = -1 if op == "pad" else 1
    message = (
        f"{op} to {size[0]} x {size[1]} of an image that is too "
        f"{'large' if sign < 0 else 'small'}"
    )
    h, w = image.shape[:2]
    if h is not None and w is not None:
        room = np.array((h - size[0], w - size[1]), np.int32)
        if np.any(sign * room < 0):
            raise UserError(f"{message}: {h} x {w}; resize it first")
        return room
    room = tf.shape(image)[:2] - size
    fits = tf.reduce_all(sign * room >= 0)
    check = tf.debugging.Assert(fits, [message, tf.shape(image), "resize it first"])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(room)


def _slice(image: Any, offset: Any, size: tuple[int, int]) -> tf.Tensor:
    begin = tf.concat([offset, [0]], 0)
    return tf.slice(image, begin, (*size, image.shape[-1]))

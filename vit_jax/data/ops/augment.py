# SPDX-License-Identifier: Apache-2.0
"""RandAugment (arXiv:1909.13719) with the operations of AutoAugment, in TensorFlow.

Magnitude 10 is the strength that AutoAugment calls full; 0 to 30 are allowed, and
recipes use 9 to 20. How far an operation moves the picture never falls as the magnitude
grows (in the TPU and big_vision code posterize, solarize and the blends run backwards,
and a shift or a cut-out in pixels blanks small pictures):

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

Magnitude 0 is therefore not a no-op: the first row remains. `operations` has the
operations; `autoaugment` draws from the same table.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from vit_jax.data.ops import operations
from vit_jax.errors import UserError, unknown
from vit_jax.registry import OPS

MAX_MAGNITUDE = 30


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation and its strength.

    Attributes:
      apply: `(image, amount, place) -> image`; amount 0 leaves the picture as it is;
        `place` holds two numbers in 0...1.
      slope: Amount at magnitude 1.
      most: The greatest amount.
      signed: Whether the amount may be negative.
    """

    apply: Callable[[Any, Any, Any], tf.Tensor]
    slope: float = 0.0
    most: float = 0.0
    signed: bool = False


def _blend(operation: Callable[[Any, Any], tf.Tensor]) -> Operation:
    def apply(image: Any, amount: Any, place: Any) -> tf.Tensor:
        return operation(image, tf.maximum(1 + amount, 0.1))

    return Operation(apply, 0.09, 2.7, signed=True)


def _shear(axis: int) -> Operation:
    def apply(image: Any, amount: Any, place: Any) -> tf.Tensor:
        matrix = (1, amount, 0, 1) if axis == 1 else (1, 0, amount, 1)
        return operations.affine(image, matrix)

    return Operation(apply, 0.03, 0.9, signed=True)


def _translate(axis: int) -> Operation:
    def apply(image: Any, amount: Any, place: Any) -> tf.Tensor:
        return operations.translate(image, amount, axis)

    return Operation(apply, 0.045, 0.9, signed=True)


def _fixed(operation: Callable[[Any], tf.Tensor]) -> Operation:
    return Operation(lambda image, amount, place: operation(image))


OPERATIONS: dict[str, Operation] = {
    "autocontrast": _fixed(operations.autocontrast),
    "equalize": _fixed(operations.equalize),
    "invert": _fixed(operations.invert),
    "rotate": Operation(
        lambda image, degrees, place: operations.rotate(image, degrees), 3, 90, True
    ),
    "posterize": Operation(
        lambda image, bits, place: operations.posterize(image, 8 - tf.floor(bits)),
        0.4,
        6,
    ),
    "solarize": Operation(
        lambda image, down, place: operations.solarize(image, 256 - tf.round(down)),
        12.8,
        256,
    ),
    "solarize_add": Operation(
        lambda image, more, place: operations.solarize_add(image, tf.round(more)),
        11,
        127,
    ),
    "color": _blend(operations.color),
    "contrast": _blend(operations.contrast),
    "brightness": _blend(operations.brightness),
    "sharpness": _blend(operations.sharpness),
    "shear_x": _shear(1),
    "shear_y": _shear(0),
    "translate_x": _translate(1),
    "translate_y": _translate(0),
    "cutout": Operation(operations.cutout, 0.036, 0.9),
}
"""The operations by name, in the order in which `randaug` draws from them."""


@OPS.register(random=True)
def randaug(
    num_layers: int = 2,
    magnitude: float = 10,
    std: float = 0.0,
    prob: float = 1.0,
    leave_out: Sequence[str] = (),
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Random: applies operations drawn from `OPERATIONS`, one after the other.

    Takes and returns uint8 `(h, w, 3)` in `image`, so it stands before `value_range`.
    timm's `rand-m9-mstd0.5-inc1`, the recipe of DeiT and Swin, is
    `randaug(2, 9, std=0.5, prob=0.5, leave_out=["cutout"])`, but for the fill (grey
    here, the mean colour there), the resampling (nearest; bilinear or bicubic at
    random) and posterize (5 bits are left at 9; 1 bit there).

    Args:
      num_layers: Number of operations, each drawn uniformly with replacement.
      magnitude: Strength, 0 to 30; see the table at the top of this file.
      std: Deviation of the magnitude, drawn anew for each operation from a normal
        distribution and clipped to 0...30.
      prob: Probability that a drawn operation is applied.
      leave_out: Names of operations not to draw.
    """
    if num_layers < 1 or not 0 <= magnitude <= MAX_MAGNITUDE:
        raise UserError(
            f"randaug({num_layers}, {magnitude}); give at least 1 layer and a "
            f"magnitude from 0 to {MAX_MAGNITUDE}"
        )
    if std < 0 or not 0 < prob <= 1:
        raise UserError(
            f"randaug with std={std}, prob={prob}; give a deviation of 0 or more and a "
            "probability above 0, at most 1"
        )
    for name in leave_out:
        if name not in OPERATIONS:
            raise unknown("operation to leave out:", name, OPERATIONS)
    names = [name for name in OPERATIONS if name not in leave_out]
    if not names:
        raise UserError("randaug leaves out all operations; leave out fewer")

    def run(features: dict[str, Any]) -> dict[str, Any]:
        image = check_levels(features["image"], "randaug")
        draws = tf.random.stateless_uniform([num_layers, 5], features["seed"])
        strengths = tf.fill([num_layers], float(magnitude))
        if std:
            noise = tf.random.stateless_normal([num_layers], features["seed"] + 1)
            strengths = tf.clip_by_value(strengths + std * noise, 0, MAX_MAGNITUDE)
        for layer in range(num_layers):
            choice = tf.cast(draws[layer, 0] * len(names), tf.int32)
            amount = draw_amount(names, choice, strengths[layer], draws[layer, 1])
            if prob < 1:
                choice = tf.where(draws[layer, 4] < prob, choice, len(names))
            image = apply_one(names, choice, image, amount, draws[layer, 2:4])
        return {**features, "image": image}

    return run


def check_levels(image: Any, op: str) -> Any:
    """Returns the image if it is uint8.

    Raises:
      UserError: It is not.
    """
    if image.dtype != tf.uint8:
        raise UserError(
            f"{op} got a {image.dtype.name} image; it takes decoded uint8, so put it "
            "after decode and before value_range"
        )
    return image


def draw_amount(
    names: Sequence[str], choice: Any, magnitude: Any, draw: Any
) -> tf.Tensor:
    """Returns the amount of a chosen operation at a magnitude.

    Args:
      names: The operations that may be chosen.
      choice: Which of them.
      magnitude: 0 to 30.
      draw: A number in 0...1; below one half, a signed amount is negative.
    """
    chosen = [OPERATIONS[name] for name in names]
    slopes = tf.constant([operation.slope for operation in chosen], tf.float32)
    mosts = tf.constant([operation.most for operation in chosen], tf.float32)
    signed = tf.constant([operation.signed for operation in chosen])
    amount = tf.minimum(slopes[choice] * magnitude, mosts[choice])
    return tf.where(signed[choice] & (draw < 0.5), -amount, amount)


def apply_one(
    names: Sequence[str], choice: Any, image: Any, amount: Any, place: Any
) -> tf.Tensor:
    """Applies the operation that `choice` points at; one past the end applies none.

    Args:
      names: The operations that may be chosen.
      choice: Which of them.
      image: uint8 `(h, w, 3)`.
      amount: How far it goes; see `Operation`.
      place: Two numbers in 0...1.
    """
    branches = [
        lambda apply=OPERATIONS[name].apply: apply(image, amount, place)
        for name in names
    ]
    result = tf.switch_case(choice, [*branches, lambda: image])
    result.set_shape(image.shape)
    return result

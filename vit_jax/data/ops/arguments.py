# SPDX-License-Identifier: Apache-2.0
"""Arguments of ops, checked and completed alike for TensorFlow and for NumPy."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Int32

from vit_jax.data.permutation import mix64
from vit_jax.errors import UserError, unknown

Method = Literal["nearest", "bilinear", "bicubic", "area"]

LABEL_OPS = ("drop", "keep", "onehot")
"""The ops that leave the image alone."""

STATISTICS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}
"""Mean and standard deviation of RGB in 0...1, by the name that `normalize` takes."""


def op_word(index: int) -> Int32[np.ndarray, "2"]:
    """Returns what is added to an example's seed for op number `index` of a string.

    The generator behind the stateless ops makes unrelated numbers of any two seeds, so
    adding a constant is as good as `tf.random.fold_in`, which takes 20 times as long.
    """
    word = mix64(np.array([index + 1], np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return word.byteswap().view(np.uint32).astype(np.int32)


def pair(size: int | Sequence[int], op: str) -> tuple[int, int]:
    """Returns `(height, width)` of a size that may be one number.

    Raises:
      UserError: Not one or two positive numbers.
    """
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or min(sides) < 1:
        raise UserError(
            f"{op} of size {size}; give one positive number or (height, width)"
        )
    return sides[0], sides[1]


def pad_target(
    pixels: int | None, size: int | Sequence[int] | None
) -> tuple[int, int] | None:
    """Returns the size that `pad` reaches, None for `pixels` on each side.

    Raises:
      UserError: Both or none given, or a negative number.
    """
    if (pixels is None) == (size is None):
        raise UserError("pad takes either pixels or size; write pad(2) or pad(size=32)")
    if pixels is not None and pixels < 0:
        raise UserError(f"pad of {pixels} pixels; give 0 or more")
    return None if size is None else pair(size, "pad")


def range_shift(
    vmin: float, vmax: float, in_min: float, in_max: float
) -> tuple[np.float32, np.float32]:
    """Returns s and f so that (x - s) f maps `in_min` to `vmin`, `in_max` to `vmax`.

    A product, as it takes a third of the time of a quotient; for the usual ranges both
    ends are met exactly.

    Raises:
      UserError: `vmin < vmax` or `in_min < in_max` does not hold.
    """
    if not (vmin < vmax and in_min < in_max):
        raise UserError(
            f"value_range from {in_min}...{in_max} to {vmin}...{vmax}; each needs its "
            "smaller end first"
        )
    divisor = (in_max - in_min) / (vmax - vmin)
    return np.float32(in_min - vmin * divisor), np.float32(1 / divisor)


def statistics(
    mean: str | Sequence[float], std: str | Sequence[float] | None
) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, " 3"]]:
    """Returns mean and standard deviation for levels 0...255.

    Args:
      mean: Three numbers for levels 0...1, or a name in `STATISTICS`.
      std: The same; None repeats the name in `mean`.

    Raises:
      UserError: An unknown name, not three numbers, or a deviation that is not
        positive.
    """
    if std is None and not isinstance(mean, str):
        raise UserError("normalize has a mean but no std; give three numbers for each")
    chosen = []
    for place, value in enumerate((mean, mean if std is None else std)):
        if isinstance(value, str):
            if value not in STATISTICS:
                raise unknown("statistics", value, STATISTICS)
            value = STATISTICS[value][place]
        if len(value) != 3 or (place == 1 and min(value) <= 0):
            what = ("mean", "std (positive)")[place]
            raise UserError(f"normalize: {what} needs three numbers, got {value!r}")
        chosen.append(np.float32(255) * np.array(value, np.float32))
    return chosen[0], chosen[1]

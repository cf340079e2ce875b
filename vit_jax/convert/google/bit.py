# SPDX-License-Identifier: Apache-2.0
"""Names of the BiT release, which TensorFlow wrote, and of big_vision, which we have.

TensorFlow numbers layers of one kind as it likes, `standardized_conv2d_12`, and a file
may keep the numbers; they say nothing. The head is a convolution of 1x1.
"""

import re
from collections.abc import Mapping

import numpy as np

from vit_jax.errors import UserError

ROOT = re.compile(r"resnet/root_block/standardized_conv2d(_\d+)?/kernel")
_NUMBER = re.compile(r"(standardized_conv2d|group_norm|conv2d)_\d+(?=/)")
_UNIT = re.compile(r"block\d+/unit\d+")

# Ours and theirs below a unit, such as block1/unit01.
_IN_UNIT = {
    "conv_proj/kernel": "a/proj/standardized_conv2d/kernel",
    **{
        f"conv{i}/kernel": f"{letter}/standardized_conv2d/kernel"
        for i, letter in enumerate("abc", 1)
    },
    **{
        f"gn{i}/{ours}": f"{letter}/group_norm/{theirs}"
        for i, letter in enumerate("abc", 1)
        for ours, theirs in (("scale", "gamma"), ("bias", "beta"))
    },
}
# Ours and theirs elsewhere.
_OUTSIDE = {
    "root_block/conv_root/kernel": "root_block/standardized_conv2d/kernel",
    "norm-pre-head/scale": "group_norm/gamma",
    "norm-pre-head/bias": "group_norm/beta",
    "head/kernel": "head/conv2d/kernel",
    "head/bias": "head/conv2d/bias",
}


def from_tensorflow(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames the arrays of the release into ours.

    Raises:
      UserError: A name that is none of the release, or two that mean the same.
    """
    result: dict[str, np.ndarray] = {}
    names = {theirs: ours for ours, theirs in _OUTSIDE.items()}
    in_unit = {theirs: ours for ours, theirs in _IN_UNIT.items()}
    for name, array in arrays.items():
        plain = _NUMBER.sub(r"\1", name).removeprefix("resnet/")
        ours = _renamed(plain, names, in_unit)
        if ours is None or ours in result:
            raise UserError(
                f"BiT: {name} {array.shape} is none of the release's arrays, or is "
                "there twice; this is another kind of model"
            )
        # Only the head is a convolution in place of a dense layer.
        is_head = ours == "head/kernel" and array.ndim == 4
        result[ours] = array[0, 0] if is_head else array
    return result


def to_tensorflow(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames our arrays into those of the release, the inverse of `from_tensorflow`.

    Raises:
      UserError: A name that is not one of a BiT.
    """
    result = {}
    for name, array in params.items():
        theirs = _renamed(name, _OUTSIDE, _IN_UNIT)
        if theirs is None:
            raise UserError(f"BiT: the release has no name for {name} {array.shape}")
        is_head = name == "head/kernel"
        result[f"resnet/{theirs}"] = array[None, None] if is_head else array
    return result


def _renamed(
    name: str, outside: Mapping[str, str], in_unit: Mapping[str, str]
) -> str | None:
    if match := _UNIT.match(name):
        inner = in_unit.get(name[match.end() + 1 :])
        return None if inner is None else f"{match[0]}/{inner}"
    return outside.get(name)

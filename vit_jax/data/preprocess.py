# SPDX-License-Identifier: Apache-2.0
"""Op strings made into a function on one example, for `tf.data.Dataset.map`.

    build_preprocess("decode|inception_crop(224)|flip_lr|value_range(-1, 1)")

An op is a function `(features) -> features` made by a factory that is registered in
`vit_jax.registry.OPS`; to add one, decorate a factory of yours and import its module.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from vit_jax.data.ops import (
    augment,
    autoaugment,
    crop as ops_crop,
    image as ops_image,
    jitter,
    label as ops_label,
)
from vit_jax.data.ops.arguments import op_word
from vit_jax.errors import UserError
from vit_jax.registry import OPS, Call, parse_pipeline

Features = dict[str, Any]
Op = Callable[[Features], Features]

BUILTIN = (ops_image, ops_crop, ops_label, augment, autoaugment, jitter)
"""The modules that register ops."""


def check_ops(ops: str) -> list[Call]:
    """Parses a string and builds its ops without running them.

    Returns:
      The calls in order.

    Raises:
      UserError: Anything wrong with the string, with the failing op marked.
    """
    calls = parse_pipeline(ops)
    for call in calls:
        OPS.build(call)
    return calls


def is_random(ops: str) -> bool:
    """Says whether any op of a string draws random numbers."""
    return any(OPS.is_random(call.name) for call in parse_pipeline(ops))


def build_preprocess(ops: str) -> Op:
    """Builds the function that runs the ops of a string in order.

    Args:
      ops: Such as `"decode|resize(224)|value_range(-1, 1)"`.

    Returns:
      A function from features to features. It reads `image` (a scalar string tensor or
      uint8 `(h, w, c)`), whatever else its ops read, `seed` (an integer tensor `(2,)`,
      if an op is random: op number i of the string draws from seed + `op_word(i)`),
      `name` (optional, for error texts) and `kind` (optional, see `decode`). The last
      three are dropped at the end.

    Raises:
      UserError: Anything wrong with the string; and, when the returned function is
        traced, features that an op cannot take.
    """
    calls = parse_pipeline(ops)
    built = [OPS.build(call) for call in calls]
    fused = ops_crop.fuse(built, [call.name for call in calls])

    @tf.autograph.experimental.do_not_convert
    def run(features: Features) -> Features:
        for index, (op, call) in enumerate(zip(fused, calls, strict=True)):
            if op is None:
                continue
            try:
                features = _apply(features, index, op, OPS.is_random(call.name))
            except UserError as err:
                raise UserError(f"{err} (in {call.where})") from err
        return {k: v for k, v in features.items() if k not in ops_label.HELPERS}

    return run


def _apply(features: Features, index: int, op: Op, random: bool) -> Features:
    if not random:
        return op(features)
    if "seed" not in features:
        raise UserError("a random op needs the key 'seed'; it is an int32 tensor (2,)")
    seed = tf.cast(features["seed"], tf.int32)
    return {**op({**features, "seed": seed + op_word(index)}), "seed": seed}

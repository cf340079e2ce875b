# SPDX-License-Identifier: Apache-2.0
"""Op strings made into a function on one example, for `tf.data.Dataset.map`.

    build_preprocess("decode|inception_crop(224)|flip_lr|value_range(-1, 1)")

An op is a function `(features) -> features` made by a factory that is registered in
`vit_jax.registry.OPS`; to add one, decorate a factory of yours and import its module.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from vit_jax.data import augment, ops_crop, ops_image, ops_label
from vit_jax.errors import UserError
from vit_jax.registry import OPS, Call, parse_pipeline

Features = dict[str, Any]
Op = Callable[[Features], Features]

BUILTIN = (ops_image, ops_crop, ops_label, augment)
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
      if an op is random: op number i of the string draws from `fold_in(seed, i)`) and
      `name` (optional, for error texts). Seed and name are dropped at the end.

    Raises:
      UserError: Anything wrong with the string; and, when the returned function is
        traced, features that an op cannot take.
    """
    calls = parse_pipeline(ops)
    steps = [_step(index, call) for index, call in enumerate(calls)]
    built = _fuse(steps)

    @tf.autograph.experimental.do_not_convert
    def run(features: Features) -> Features:
        for index, op, random, call in built:
            try:
                features = _apply(features, index, op, random)
            except UserError as err:
                raise UserError(f"{err} (in {call.where})") from err
        return {k: v for k, v in features.items() if k not in ops_label.HELPERS}

    return run


def _step(index: int, call: Call) -> tuple[int, Op, bool, Call]:
    return index, OPS.build(call), OPS.is_random(call.name), call


def _fuse(
    steps: list[tuple[int, Op, bool, Call]],
) -> list[tuple[int, Op, bool, Call]]:
    """Joins neighbours that are cheaper as one; the second one's number stays."""
    fused: list[tuple[int, Op, bool, Call]] = []
    for step in steps:
        both = ops_crop.fuse(fused[-1][1], step[1]) if fused else None
        if both is None:
            fused.append(step)
        else:
            fused[-1] = (step[0], both, *step[2:])
    return fused


def _apply(features: Features, index: int, op: Op, random: bool) -> Features:
    if not random:
        return op(features)
    if "seed" not in features:
        raise UserError("a random op needs the key 'seed'; it is an int32 tensor (2,)")
    seed = features["seed"]
    own = tf.random.fold_in(seed, index)
    return {**op({**features, "seed": own}), "seed": seed}

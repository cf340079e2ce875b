# SPDX-License-Identifier: Apache-2.0
"""Op strings made into a function on one example, for `tf.data.Dataset.map`.

    build_preprocess("decode|inception_crop(224)|flip_lr|value_range(-1, 1)")

An op is a function `(features) -> features` made by a factory that is registered in
`vit_jax.registry.OPS`; to add one, decorate a factory of yours and import its module.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from vit_jax.data import augment, ops_crop, ops_image, ops_label
from vit_jax.data.permutation import mix64
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
      if an op is random: each op of the string draws from a seed of its own, see
      `op_seed`), `name` (optional, for error texts) and `kind` (optional, see
      `decode`). The last three are dropped at the end.

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


def op_seed(seed: Any, index: int) -> tf.Tensor:
    """Returns the seed from which op number `index` of a string draws.

    The generator behind the stateless ops makes unrelated numbers of any two seeds, so
    a constant is added: as good as `tf.random.fold_in`, which takes 20 times as long.

    Args:
      seed: The example's, int32 `(2,)`.
      index: Number of the op, from 0.
    """
    word = mix64(np.array([index], np.uint64) + np.uint64(0x9E3779B97F4A7C15))[0]
    halves = np.array([word >> np.uint64(32), word & np.uint64(0xFFFFFFFF)])
    return tf.cast(seed, tf.int32) + halves.astype(np.uint32).view(np.int32)


def _apply(features: Features, index: int, op: Op, random: bool) -> Features:
    if not random:
        return op(features)
    if "seed" not in features:
        raise UserError("a random op needs the key 'seed'; it is an int32 tensor (2,)")
    seed = features["seed"]
    return {**op({**features, "seed": op_seed(seed, index)}), "seed": seed}

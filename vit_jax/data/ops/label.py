# SPDX-License-Identifier: Apache-2.0
"""Preprocessing ops on labels and on the set of keys, in TensorFlow."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from vit_jax.errors import UserError
from vit_jax.registry import OPS

Features = dict[str, Any]
Op = Callable[[Features], Features]

HELPERS = ("seed", "name", "kind")
"""Keys that ops may read; they never leave the pipeline."""


@OPS.register()
def onehot(
    num_classes: int,
    key: str = "label",
    key_result: str = "labels",
    on: float = 1.0,
    off: float = 0.0,
) -> Op:
    """Adds float32 `(num_classes,)`: `on` at the label or labels, `off` elsewhere.

    A scalar label gives one-hot, a list `(n,)` multi-hot; the label -1 means "none".
    Label smoothing s of big_vision is `on=1 - s, off=s` (its sigmoid recipes) or
    `on=1 - s + s / k, off=s / k` (softmax).

    Args:
      num_classes: Length of the result; labels beyond raise an error.
      key: Key of the integer label or labels.
      key_result: Key of the result; `key` itself stays.
      on: Value at the labels.
      off: Value elsewhere.
    """
    if num_classes < 1 or on <= off:
        raise UserError(
            f"onehot of {num_classes} classes with on={on}, off={off}; give at least "
            "one class, and off smaller than on"
        )

    def run(features: Features) -> Features:
        label = tf.reshape(_get(features, key, "onehot"), [-1])
        if not label.dtype.is_integer:
            raise UserError(
                f"onehot of {key!r}, which is {label.dtype.name}; it takes class "
                "numbers, leave it out for regression"
            )
        message = f"onehot({num_classes}): a label is not in -1...{num_classes - 1}"
        known = tf.reduce_all((label >= -1) & (label < num_classes))
        check = tf.debugging.Assert(known, [message, label])
        with tf.control_dependencies([] if check is None else [check]):
            hot = tf.one_hot(label, num_classes)
        any_hot = tf.reduce_max(tf.pad(hot, [[1, 0], [0, 0]]), axis=0)
        return {**features, key_result: off + any_hot * (on - off)}

    return run


@OPS.register()
def keep(*keys: str) -> Op:
    """Keeps the given keys and drops all others.

    Args:
      *keys: Such as "image", "labels".
    """

    def run(features: Features) -> Features:
        helpers = {k: features[k] for k in HELPERS if k in features}
        return {**{key: _get(features, key, "keep") for key in keys}, **helpers}

    return run


@OPS.register()
def drop(*keys: str) -> Op:
    """Drops the given keys; a key that is absent is no error.

    Args:
      *keys: Such as "label".
    """
    gone = set(keys) - set(HELPERS)
    return lambda features: {k: v for k, v in features.items() if k not in gone}


def _get(features: Features, key: str, op: str) -> Any:
    if key not in features:
        known = ", ".join(sorted(set(features) - set(HELPERS)))
        raise UserError(f"{op}: there is no key {key!r}; at this op there are: {known}")
    return features[key]

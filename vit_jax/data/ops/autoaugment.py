# SPDX-License-Identifier: Apache-2.0
"""AutoAugment (arXiv:1805.09501): the learned policies for three data sets.

A policy is a list of pairs of operations, each with a probability and a level 0...9.
One pair is drawn for each picture. A level i stands for the magnitude 10 i / 9 of
`augment`'s table, whose magnitude 10 is the end of the paper's ranges, but for
solarize: its threshold is 256 - 256 i / 9 here. Signs of amounts are drawn. (Of the
blends, the paper's implementation takes level 0 for "nearly grey"; here, as in
torchvision, it is "no change".)
"""

from typing import Literal

import numpy as np
import tensorflow as tf

from vit_jax.data.ops.augment import OPERATIONS, apply_one, check_levels, draw_amount
from vit_jax.data.ops.image import Features, Op
from vit_jax.registry import OPS

POLICIES = {
    "imagenet": """
        posterize 0.4 8, rotate 0.6 9
        solarize 0.6 5, autocontrast 0.6
        equalize 0.8, equalize 0.6
        posterize 0.6 7, posterize 0.6 6
        equalize 0.4, solarize 0.2 4
        equalize 0.4, rotate 0.8 8
        solarize 0.6 3, equalize 0.6
        posterize 0.8 5, equalize 1.0
        rotate 0.2 3, solarize 0.6 8
        equalize 0.6, posterize 0.4 6
        rotate 0.8 8, color 0.4 0
        rotate 0.4 9, equalize 0.6
        equalize 0.0, equalize 0.8
        invert 0.6, equalize 1.0
        color 0.6 4, contrast 1.0 8
        rotate 0.8 8, color 1.0 2
        color 0.8 8, solarize 0.8 7
        sharpness 0.4 7, invert 0.6
        shear_x 0.6 5, equalize 1.0
        color 0.4 0, equalize 0.6
        equalize 0.4, solarize 0.2 4
        solarize 0.6 5, autocontrast 0.6
        invert 0.6, equalize 1.0
        color 0.6 4, contrast 1.0 8
        equalize 0.8, equalize 0.6
    """,
    "cifar10": """
        invert 0.1, contrast 0.2 6
        rotate 0.7 2, translate_x 0.3 9
        sharpness 0.8 1, sharpness 0.9 3
        shear_y 0.5 8, translate_y 0.7 9
        autocontrast 0.5, equalize 0.9
        shear_y 0.2 7, posterize 0.3 7
        color 0.4 3, brightness 0.6 7
        sharpness 0.3 9, brightness 0.7 9
        equalize 0.6, equalize 0.5
        contrast 0.6 7, sharpness 0.6 5
        color 0.7 7, translate_x 0.5 8
        equalize 0.3, autocontrast 0.4
        translate_y 0.4 3, sharpness 0.2 6
        brightness 0.9 6, color 0.2 8
        solarize 0.5 2, invert 0.0
        equalize 0.2, autocontrast 0.6
        equalize 0.2, equalize 0.6
        color 0.9 9, equalize 0.6
        autocontrast 0.8, solarize 0.2 8
        brightness 0.1 3, color 0.7 0
        solarize 0.4 5, autocontrast 0.9
        translate_y 0.9 9, translate_y 0.7 9
        autocontrast 0.9, solarize 0.8 3
        equalize 0.8, invert 0.1
        translate_y 0.7 9, autocontrast 0.9
    """,
    "svhn": """
        shear_x 0.9 4, invert 0.2
        shear_y 0.9 8, invert 0.7
        equalize 0.6, solarize 0.6 6
        invert 0.9, equalize 0.6
        equalize 0.6, rotate 0.9 3
        shear_x 0.9 4, autocontrast 0.8
        shear_y 0.9 8, invert 0.4
        shear_y 0.9 5, solarize 0.2 6
        invert 0.9, autocontrast 0.8
        equalize 0.6, rotate 0.9 3
        shear_x 0.9 4, solarize 0.3 3
        shear_y 0.8 8, invert 0.7
        equalize 0.9, translate_y 0.6 6
        invert 0.9, equalize 0.6
        contrast 0.3 3, rotate 0.8 4
        invert 0.8, translate_y 0.0 2
        shear_y 0.7 6, solarize 0.4 8
        invert 0.6, rotate 0.8 4
        shear_y 0.3 7, translate_x 0.9 3
        shear_x 0.1 6, invert 0.6
        solarize 0.7 2, translate_y 0.6 7
        shear_y 0.8 4, invert 0.8
        shear_x 0.7 9, translate_y 0.8 3
        shear_y 0.8 5, autocontrast 0.7
        shear_x 0.7 2, invert 0.1
    """,
}
"""Name to one pair a line: operation, probability, level; as torchvision has them."""


@OPS.register(random=True)
def autoaugment(policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet") -> Op:
    """Random: applies a pair of operations that was learned for a data set.

    Takes and returns uint8 `(h, w, 3)` in `image`, so it stands before `value_range`.

    Args:
      policy: The data set that the policy was learned for.
    """
    pairs = read_policy(policy)
    names = sorted({name for pair in pairs for name, _, _ in pair})
    shape = (len(pairs), 2)
    choices = np.array([[names.index(n) for n, _, _ in pair] for pair in pairs])
    probs = np.reshape([p for pair in pairs for _, p, _ in pair], shape)
    magnitudes = np.reshape([m for pair in pairs for _, _, m in pair], shape)

    def run(features: Features) -> Features:
        image = check_levels(features["image"], "autoaugment")
        draws = tf.random.stateless_uniform([9], features["seed"])
        pair = tf.cast(draws[0] * len(pairs), tf.int32)
        for number in range(2):
            draw = draws[1 + 4 * number : 5 + 4 * number]
            choice = tf.constant(choices[:, number], tf.int32)[pair]
            magnitude = tf.constant(magnitudes[:, number], tf.float32)[pair]
            prob = tf.constant(probs[:, number], tf.float32)[pair]
            amount = draw_amount(names, choice, magnitude, draw[1])
            choice = tf.where(draw[0] < prob, choice, len(names))
            image = apply_one(names, choice, image, amount, draw[2:4])
        return {**features, "image": image}

    return run


def read_policy(policy: str) -> list[list[tuple[str, float, float]]]:
    """Returns the pairs of a policy: operation, probability, magnitude of `augment`."""
    pairs = []
    for line in POLICIES[policy].strip().splitlines():
        pair = []
        for part in line.split(","):
            name, prob, *level = part.split()
            magnitude = 10 * int(*level) / 9
            if name == "solarize":
                magnitude *= 256 / 10 / OPERATIONS["solarize"].slope
            pair.append((name, float(prob), magnitude))
        pairs.append(pair)
    return pairs

# SPDX-License-Identifier: Apache-2.0
"""Inputs become the pictures that they were."""

import numpy as np
import pytest

from vit_jax.data.pixels import preprocess
from vit_jax.plots.pixels import visible


@pytest.mark.parametrize(
    "ops",
    [
        "value_range(-1, 1)",
        "value_range(0, 1)|normalize(mean=(0.1, 0.2, 0.3), std=(2, 3, 4))",
        'normalize("imagenet")',
        "central_crop(8)",
    ],
)
def test_visible_undoes_the_range(rng, ops):
    picture = rng.integers(0, 256, (8, 8, 3), np.uint8)
    made = preprocess(picture, ops)
    np.testing.assert_array_equal(visible(made[None], ops), picture[None])


def test_values_beyond_the_range_are_cut():
    image = np.array([-3.0, 0.0, 3.0])[None, None, :]
    result = visible(image, "value_range(-1, 1)")
    np.testing.assert_array_equal(result, [[[0, 128, 255]]])

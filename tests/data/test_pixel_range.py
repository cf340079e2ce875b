# SPDX-License-Identifier: Apache-2.0
"""Black and white as the ops make them, and ops that leave them open."""

import numpy as np
import pytest

from vit_jax.data.pixel_range import exact_pixel_range
from vit_jax.errors import UserError


@pytest.mark.parametrize(
    ("ops", "black", "white"),
    [
        ("decode|resize(8)|value_range(-1, 1)", (-1,) * 3, (1,) * 3),
        ('value_range(0, 1, clip=True)|keep("image")', (0,) * 3, (1,) * 3),
        (
            'decode|normalize("imagenet")',
            # (0 - mean) / std and (1 - mean) / std of the usual statistics.
            (-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225),
            (0.515 / 0.229, 0.544 / 0.224, 0.594 / 0.225),
        ),
        (
            "multiply(0.5)|value_range(0, 2)|flip_lr|value_range(0, 1, 0, 2)",
            (0,) * 3,
            (1,) * 3,
        ),
    ],
)
def test_black_and_white_are_what_the_ops_make_of_them(ops, black, white):
    found = exact_pixel_range(ops)
    np.testing.assert_allclose(found, (black, white), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("decode|resize(8)", "do not say which range the pixels have"),
        ("value_range(0, 1)|multiply(2.0)", "multiply pixels after they were scaled"),
        ("value_range(0, 1, 64, 192, clip=True)", "clip levels within 0...255"),
        ("value_range(0, 1, 255, 300, clip=True)", "clip levels within 0...255"),
    ],
)
def test_ops_that_leave_the_levels_open_are_refused(ops, message):
    with pytest.raises(UserError, match=message):
        exact_pixel_range(ops)

# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import pytest

from vit_jax.errors import UserError
from vit_jax.models.layers.patches import check_image, pair, patch_grid


def test_one_number_stands_for_both_sides():
    assert pair(7) == (7, 7)
    assert pair((7, 4)) == (7, 4)


def test_grid_counts_patches_by_rows_and_columns():
    assert patch_grid(224, 14) == (16, 16)
    assert patch_grid((32, 64), 16) == (2, 4)
    assert patch_grid((32, 64), (16, 4)) == (2, 16)


@pytest.mark.parametrize(
    ("size", "patch", "message"),
    [
        ((225, 224), 16, "height 225 .* height 16; resize it to 224 or 240"),
        ((224, 230), 16, "width 230 .* width 16; resize it to 224 or 240"),
        ((8, 8), 16, "height 8 .* height 16; resize it to 16,"),
        ((32, 32), (16, 5), "width 32 .* width 5; resize it to 30 or 35"),
    ],
)
def test_size_that_does_not_divide_is_refused_with_the_nearest(size, patch, message):
    with pytest.raises(UserError, match=message):
        patch_grid(size, patch)
    with pytest.raises(UserError, match=message):
        check_image(jnp.zeros((1, *size, 3)), patch)


def test_integer_pixels_are_refused():
    with pytest.raises(UserError, match="dtype int32, but a model takes normalised"):
        check_image(jnp.zeros((1, 8, 8, 3), jnp.int32), 4)

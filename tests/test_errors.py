# SPDX-License-Identifier: Apache-2.0
"""Texts of the errors that users see."""

import pytest

from vit_jax.errors import UserError, nearest, unknown


def test_nearest_ignores_case_and_keeps_the_spelling():
    assert nearest("vit-b/16", ["ViT-L/16", "ViT-B/16", "Mixer-B/16"])[0] == "ViT-B/16"


def test_nearest_gives_nothing_for_a_name_unlike_all():
    assert nearest("zzz", ["decode", "resize"]) == []


def test_nearest_gives_no_more_than_the_limit():
    assert len(nearest("aa", ["aab", "aac", "aad", "aae"], limit=2)) == 2


def test_unknown_names_the_nearest_and_then_all_in_order():
    error = unknown("op", "resiz", ["resize", "decode"])
    assert str(error) == (
        "unknown op 'resiz'; did you mean 'resize'? Known: decode, resize"
    )


def test_unknown_without_a_near_name_lists_all():
    assert str(unknown("op", "q", ["resize"])) == "unknown op 'q'; Known: resize"


def test_user_error_is_a_value_error():
    with pytest.raises(ValueError, match="unknown op"):
        raise unknown("op", "q", [])
    assert isinstance(unknown("op", "q", []), UserError)

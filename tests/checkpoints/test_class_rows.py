# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest

from vit_jax.checkpoints.class_rows import TABLE, layout, settle
from vit_jax.errors import UserError


def ramp(rows: int, copies: int = 1, dtype: type = np.float32) -> np.ndarray:
    """Makes a table whose values are 10, 20, 30, ... row by row."""
    table = np.arange(1, rows + 1, dtype=dtype) * dtype(10)
    return np.broadcast_to(table[None, :, None], (copies, rows, 2)).copy()


def token(value: float, dtype: type = np.float32) -> np.ndarray:
    return np.full((1, 1, 2), value, dtype)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (196, (0, (14, 14))),
        (197, (1, (14, 14))),
        (198, (2, (14, 14))),
        (576, (0, (24, 24))),
        (577, (1, (24, 24))),
        (49, (0, (7, 7))),
        (50, (1, (7, 7))),
        (1, (0, (1, 1))),
        (2, (1, (1, 1))),
        (8, None),
    ],
)
def test_the_count_tells_rows_and_grid(count, expected):
    assert layout(count, None) == expected


def test_no_count_is_two_things():
    squares = {side**2 for side in range(1, 300)}
    for count in squares:
        assert not {count - 1, count - 2} & squares


def test_a_grid_tells_how_many_rows_come_first():
    assert layout(16, (2, 8)) == (0, (2, 8))
    assert layout(17, (2, 8)) == (1, (2, 8))
    # 18 are two tokens and 2x8 patches, or one and 17 in a row.
    assert layout(18, (2, 8)) == (2, (2, 8))
    assert layout(18, (1, 17)) == (1, (1, 17))


@pytest.mark.parametrize("count", [15, 19])
def test_a_grid_of_another_size_is_refused(count):
    with pytest.raises(UserError, match=f"has {count} rows, but a grid of 2x8 patches"):
        layout(count, (2, 8))


def test_equal_tables_stay_the_same_arrays():
    loaded = {TABLE: ramp(5), "cls": token(1)}
    settled, notes = settle(loaded, {TABLE: ramp(10)}, None, None)
    assert notes == {}
    assert all(settled[name] is loaded[name] for name in loaded)


def test_a_model_without_a_table_leaves_all_as_it_is():
    loaded = {TABLE: ramp(5), "cls": token(1)}
    assert settle(loaded, {}, None, None) == (loaded, {})
    assert settle({}, loaded, None, None) == ({}, {})


def test_a_row_that_only_the_checkpoint_has_goes_into_its_token():
    loaded = {TABLE: ramp(5), "cls": token(1)}
    settled, notes = settle(loaded, {TABLE: ramp(4)}, None, None)
    np.testing.assert_array_equal(settled[TABLE], ramp(5)[:, 1:])
    np.testing.assert_array_equal(settled["cls"], token(11))
    assert notes == {
        TABLE: "without the row of cls",
        "cls": "plus its row of the position table",
    }


def test_rows_of_two_tokens_go_into_each():
    loaded = {TABLE: ramp(6), "cls": token(1), "dist": token(2)}
    settled, notes = settle(loaded, {TABLE: ramp(4)}, None, None)
    np.testing.assert_array_equal(settled[TABLE], ramp(6)[:, 2:])
    np.testing.assert_array_equal(settled["cls"], token(11))
    np.testing.assert_array_equal(settled["dist"], token(22))
    assert notes[TABLE] == "without the row of cls and dist"


def test_a_sum_is_not_rounded_to_half_precision():
    # 1 + 1/512 needs nine bits after the first; bfloat16 has seven.
    loaded = {
        TABLE: np.full((1, 5, 2), 1 / 512, ml_dtypes.bfloat16),
        "cls": token(1, ml_dtypes.bfloat16),
    }
    settled, _ = settle(loaded, {TABLE: ramp(4)}, None, None)
    np.testing.assert_array_equal(settled["cls"], token(1 + 1 / 512))


def test_a_row_that_only_the_model_has_is_zero():
    loaded = {TABLE: ramp(4, copies=3), "cls": token(1)}
    settled, notes = settle(loaded, {TABLE: ramp(5)}, None, None)
    np.testing.assert_array_equal(settled[TABLE][:, 0], np.zeros((3, 2)))
    np.testing.assert_array_equal(settled[TABLE][:, 1:], loaded[TABLE])
    assert settled["cls"] is loaded["cls"]
    assert notes == {TABLE: "with a zero row for cls"}


def test_folding_and_parting_again_gives_the_same_tokens():
    loaded = {TABLE: ramp(5), "cls": token(1)}
    folded, _ = settle(loaded, {TABLE: ramp(4)}, None, None)
    parted, _ = settle(folded, {TABLE: ramp(5)}, None, None)
    for arrays in (loaded, parted):
        first = arrays["cls"] + arrays[TABLE][:, :1]
        np.testing.assert_array_equal(first, token(11))


def test_a_row_that_no_token_has_is_left_out():
    settled, notes = settle({TABLE: ramp(5)}, {TABLE: ramp(9)}, None, None)
    np.testing.assert_array_equal(settled[TABLE], ramp(5)[:, 1:])
    assert notes == {TABLE: "without 1 first rows, which no token has"}


@pytest.mark.parametrize(
    ("rows", "wanted", "tokens", "copies"),
    [
        (6, 5, ["cls", "dist"], 1),  # a distilled DeiT into a plain one
        (5, 6, ["cls"], 1),
        (4, 5, [], 1),
        (5, 4, ["cls"], 3),  # a row that is added in each of three layers
    ],
)
def test_rows_that_cannot_be_settled_are_refused(rows, wanted, tokens, copies):
    loaded = {TABLE: ramp(rows, copies)} | dict.fromkeys(tokens, token(1))
    match = f"rows for {rows - 4} tokens .* for {wanted - 4}, .* {', '.join(tokens)}"
    with pytest.raises(UserError, match=match):
        settle(loaded, {TABLE: ramp(wanted)}, None, None)


def test_a_count_that_is_no_square_needs_its_grid():
    loaded = {TABLE: ramp(8)}
    assert settle(loaded, {TABLE: ramp(8)}, None, None)[0][TABLE] is loaded[TABLE]
    with pytest.raises(UserError, match="with 8 rows is for no square of patches"):
        settle(loaded, {TABLE: ramp(9)}, None, None)
    with pytest.raises(UserError, match="with 12 rows is for no square of patches"):
        settle({TABLE: ramp(9)}, {TABLE: ramp(12)}, None, None)
    settled, _ = settle(loaded, {TABLE: ramp(9)}, (2, 4), None)
    assert settled[TABLE] is loaded[TABLE]

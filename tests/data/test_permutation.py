# SPDX-License-Identifier: Apache-2.0
"""The shuffle is a bijection, differs between epochs and uses every bit of the seed."""

import numpy as np
import pytest

from vit_jax.data.permutation import example_seeds, mix64, permute
from vit_jax.errors import UserError


def shuffled(size: int, *, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return permute(np.arange(size), seed=seed, epoch=epoch, size=size)


def is_bijection(rows: np.ndarray) -> bool:
    return np.array_equal(np.sort(rows), np.arange(rows.size))


def test_every_small_size_is_permuted_one_to_one():
    for size in range(1, 301):
        assert is_bijection(shuffled(size, seed=7, epoch=2)), size


@pytest.mark.parametrize("exponent", range(1, 18))
def test_sizes_around_powers_of_two_are_permuted_one_to_one(exponent: int):
    for size in (2**exponent - 1, 2**exponent, 2**exponent + 1):
        assert is_bijection(shuffled(size)), size


@pytest.mark.parametrize("exponent", range(1, 10))
def test_sizes_one_above_powers_of_four_are_permuted_one_to_one(exponent: int):
    assert is_bijection(shuffled(4**exponent + 1, seed=1, epoch=5))


def test_epochs_do_not_correlate():
    size = 60_000
    epochs = np.stack([shuffled(size, epoch=epoch) for epoch in (*range(8), 256)])
    correlation = np.corrcoef(epochs) - np.eye(len(epochs))
    # The standard deviation of an honest shuffle is size**-0.5 = 0.0041.
    assert np.abs(correlation).max() < 0.02


def test_neighbouring_places_do_not_correlate():
    rows = shuffled(60_000)
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(rows, np.arange(rows.size))[0, 1]) < 0.02


def test_all_orders_of_three_come_equally_often():
    orders = [tuple(shuffled(3, epoch=epoch)) for epoch in range(1200)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert min(counts) > 140  # 200 expected, standard deviation 13
    assert max(counts) < 260


def test_the_first_place_holds_every_row_equally_often():
    place = np.zeros(1, np.int64)
    rows = [permute(place, seed=0, epoch=e, size=10)[0] for e in range(2000)]
    counts = np.bincount(rows, minlength=10)
    # Pearson's chi-square with 9 degrees of freedom exceeds 27.9 once in 1000.
    assert ((counts - 200) ** 2 / 200).sum() < 27.9


@pytest.mark.parametrize("bit", [0, 1, 7, 8, 31, 32, 63, 64, 100])
def test_every_bit_of_the_seed_matters(bit: int):
    same = shuffled(5000) == shuffled(5000, seed=1 << bit)
    assert same.mean() < 0.01  # one fixed point is expected
    positions = np.arange(100)
    plain = example_seeds(positions, seed=0)
    assert not (plain == example_seeds(positions, seed=1 << bit)).all(1).any()


def test_a_place_does_not_depend_on_the_others_that_are_asked_for():
    whole = shuffled(1000, seed=3)
    some = np.array([[999, 0], [17, 17]])
    np.testing.assert_array_equal(
        permute(some, seed=3, epoch=0, size=1000), whole[some]
    )


def test_permute_refuses_places_outside_the_epoch_and_negative_seeds():
    with pytest.raises(ValueError, match=r"0\.\.9"):
        permute(np.array([10]), seed=0, epoch=0, size=10)
    with pytest.raises(UserError, match="seed -1 is negative"):
        shuffled(10, seed=-1)
    with pytest.raises(UserError, match="seed -1 is negative"):
        example_seeds(np.arange(2), seed=-1)


def test_mix64_gives_the_published_splitmix64_stream():
    # First outputs of SplitMix64 from state 0, as in the Java and C references.
    states = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [int(word) for word in mix64(states)] == expected


def test_example_seeds_are_distinct_and_spread():
    seeds = example_seeds(np.arange(20_000), seed=5)
    assert seeds.dtype == np.int32
    assert len(np.unique(seeds, axis=0)) == 20_000
    # Uniform int32: mean 0, standard deviation 2**32 / 12**0.5.
    assert np.abs(seeds.mean(0)).max() < 0.03 * 2**32
    np.testing.assert_allclose(seeds.std(0), 2**32 / 12**0.5, rtol=0.02)

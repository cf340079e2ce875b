# SPDX-License-Identifier: Apache-2.0
import pytest

from vit_jax.errors import UserError
from vit_jax.tpu import chips


def test_a_core_of_v3_has_half_of_its_chip():
    core = chips.find_chip("v3:4x4").core
    assert core.flops == 61.5e12
    assert core.memory == 16 * 2**30
    assert core.memory_bandwidth == 450e9


def test_an_unknown_generation_names_the_known():
    with pytest.raises(UserError, match=r"TPU generation 'v7x'; .*v5e, v5p, v6e"):
        chips.find_chip("v7x:2x2")


def test_the_roofline_is_the_slowest_of_three():
    core = chips.Chip("x", 1, 100.0, 1, 10.0, 5.0, 1.0)
    found = chips.roofline(core, 200.0, 30.0, {"all-gather": 5, "all-reduce": 10})
    # A sum passes the links twice, a gather once.
    assert found == (2.0, 3.0, 25 / 5)
    assert found.seconds == 5.0
    assert found.bound == "network"


def test_arithmetic_alone_of_vit_b16_takes_what_the_operations_say():
    core = chips.find_chip("v3:4x4").core
    forward = 17.58e9  # multiply-adds of an image of 224 pixels
    found = chips.roofline(core, 3 * 2 * forward * 32, 0.0, {})
    assert found.compute == pytest.approx(0.0549, rel=2e-3)

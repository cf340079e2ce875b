# SPDX-License-Identifier: Apache-2.0
"""Batches go to the devices ahead of the training that takes them."""

import threading
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.data.test_pipeline import ids, numbered
from vit_jax.data.pipeline import eval_batches
from vit_jax.data.transfer import prefetch_to_device
from vit_jax.errors import UserError


def data_sharding() -> NamedSharding:
    return NamedSharding(
        Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data")
    )


def test_batches_arrive_on_the_devices_in_order():
    batches = eval_batches(numbered(20), batch_size=8, ops="decode")
    arrived = list(prefetch_to_device(batches, data_sharding()))
    assert ids(arrived) == [
        [*range(8)],
        [*range(8, 16)],
        [16, 17, 18, 19, 19, 19, 19, 19],
    ]
    for batch in arrived:
        assert batch["image"].shape == (8, 1, 1, 3)
        for name in ("image", "label", "mask"):
            assert batch[name].sharding.is_equivalent_to(
                data_sharding(), batch[name].ndim
            )
    assert len(arrived[0]["label"].addressable_shards) == len(jax.devices())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_no_more_than_size_batches_are_in_flight(size):
    made = []

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for number in range(20):
            made.append(number)
            yield {"x": np.full(8, number)}

    stream = prefetch_to_device(batches(), data_sharding(), size)
    for number in range(3):
        assert int(next(stream)["x"][0]) == number
    stream.close()
    assert len(made) <= 3 + size


def test_errors_come_out_where_their_batch_would():
    def batches() -> Iterator[dict[str, np.ndarray]]:
        yield {"x": np.zeros(8)}
        yield {"x": np.ones(8)}
        raise UserError("picture x is broken")

    stream = prefetch_to_device(batches(), data_sharding(), 2)
    assert [float(next(stream)["x"][0]) for _ in range(2)] == [0.0, 1.0]
    with pytest.raises(UserError, match="picture x is broken"):
        next(stream)


def test_the_transfer_thread_ends_with_its_stream():
    before = threading.active_count()
    stream = prefetch_to_device(iter([{"x": np.zeros(8)}] * 9), data_sharding())
    next(stream)
    assert threading.active_count() == before + 1
    stream.close()
    assert threading.active_count() == before

# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from vit_jax import sharding
from vit_jax.errors import UserError


def test_the_data_axis_takes_the_devices_that_are_left():
    mesh = sharding.make_mesh(data=-1, fsdp=2)
    assert dict(mesh.shape) == {"data": 4, "fsdp": 2, "tensor": 1}
    assert sharding.batch_parts(mesh) == 8


def test_a_batch_is_split_over_data_and_fsdp():
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    batch = jax.device_put(np.arange(8), sharding.batch_sharding(mesh))
    parts = {tuple(s.data.tolist()) for s in batch.addressable_shards}
    assert parts == {(0, 1), (2, 3), (4, 5), (6, 7)}


@pytest.mark.parametrize("sizes", [{"data": 3}, {"data": 8, "fsdp": 2}])
def test_a_mesh_of_another_size_is_refused(sizes: dict):
    with pytest.raises(UserError, match=r"needs \d+ devices, but there are 8"):
        sharding.make_mesh(**sizes)


@pytest.mark.parametrize("sizes", [{"data": 0}, {"data": -1, "fsdp": -1}])
def test_sizes_must_be_positive_and_one_at_most_free(sizes: dict):
    with pytest.raises(UserError, match="at most one of them -1"):
        sharding.make_mesh(**sizes)


def test_rules_place_moments_like_their_parameters():
    mesh = sharding.make_mesh(data=2, fsdp=4)
    kernel = jnp.zeros((8, 4))
    tree = {"params": {"kernel": kernel}, "mu": {"kernel": kernel, "bias": kernel}}
    rules = [(".*kernel", ("fsdp", None)), (".*", ())]
    placed = sharding.tree_shardings(tree, mesh, rules)
    assert placed["params"]["kernel"].spec == PartitionSpec("fsdp", None)
    assert placed["mu"]["kernel"].spec == PartitionSpec("fsdp", None)
    assert placed["mu"]["bias"].spec == PartitionSpec()


def test_a_rule_with_an_unknown_axis_is_refused():
    with pytest.raises(UserError, match="names the axis 'model'; allowed are data"):
        sharding.tree_shardings(
            {"a": jnp.zeros(2)}, sharding.make_mesh(), [(".*", ("model",))]
        )


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (1000, "batch_size=1000 is not divisible"),
        (3, "such as 8"),
        (0, "use a multiple of 8"),
        (20, "such as 16 or 24"),
        (8.0, "must be a whole number"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(size: int, message: str):
    mesh = sharding.make_mesh()
    if size == 1000:
        mesh = sharding.make_mesh(devices=jax.devices()[:3])
    with pytest.raises(UserError, match=message):
        sharding.check_batch_size(size, mesh, "config.data.batch_size")


def test_a_batch_that_can_be_shared_passes():
    sharding.check_batch_size(16, sharding.make_mesh(), "batch_size")
    assert 16 % sharding.batch_parts(sharding.make_mesh()) == 0

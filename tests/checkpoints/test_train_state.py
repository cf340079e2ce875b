# SPDX-License-Identifier: Apache-2.0
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax import sharding
from vit_jax.checkpoints.train_state import (
    TrainCheckpoints,
    latest_step,
    restore_weights,
)
from vit_jax.errors import UserError
from vit_jax.train.state import TrainState


def make_state(width: int = 5, averaged: bool = True) -> TrainState:
    params = {"head": {"kernel": jax.random.normal(jax.random.key(0), (8, width))}}
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return TrainState.create(params, tx=tx, averaged=averaged)


def shapes(state: TrainState, mesh: jax.sharding.Mesh | None = None) -> TrainState:
    mesh = mesh or sharding.make_mesh()
    rules = [(".*kernel", ("fsdp",)), (".*", ())]
    places = sharding.tree_shardings(state, mesh, rules)
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        state,
        places,
    )


def at(state: TrainState, step: int) -> TrainState:
    params = jax.tree.map(lambda p: p + step, state.params)
    return state.replace(step=jnp.int32(step), params=params)


@pytest.fixture
def folder(workdir: pathlib.Path) -> pathlib.Path:
    return workdir / "checkpoints"


def save(folder: pathlib.Path, *steps: int, keep_last: int = 9, **kwargs) -> None:
    checkpoints = TrainCheckpoints(str(folder), keep_last=keep_last, **kwargs)
    for step in steps:
        checkpoints.save(step, at(make_state(), step))
    checkpoints.close()


def restore(folder: pathlib.Path, like: TrainState) -> TrainState | None:
    checkpoints = TrainCheckpoints(str(folder))
    try:
        return checkpoints.restore_latest(like)
    finally:
        checkpoints.close()


def test_the_newest_checkpoint_comes_back_bit_for_bit(folder: pathlib.Path):
    save(folder, 9, 10)  # As text, "9" would come after "10".
    wanted = at(make_state(), 10)
    found = restore(folder, shapes(wanted))
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


def test_a_checkpoint_restores_on_another_mesh(folder: pathlib.Path):
    save(folder, 3)
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    found = restore(folder, shapes(make_state(), mesh))
    assert found is not None
    kernel = found.params["head"]["kernel"]
    assert kernel.sharding.spec[0] == "fsdp"
    np.testing.assert_array_equal(kernel, at(make_state(), 3).params["head"]["kernel"])


def test_nothing_saved_is_none(folder: pathlib.Path):
    assert restore(folder, shapes(make_state())) is None


def test_the_last_n_and_every_kth_are_kept(folder: pathlib.Path):
    save(folder, 5, 10, 15, 20, 25, 30, keep_last=2, keep_every_steps=20)
    assert sorted(int(p.name) for p in folder.iterdir()) == [20, 25, 30]


def test_leftovers_of_a_killed_process_are_named_and_ignored(
    folder: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    save(folder, 9, 10, 20)
    (folder / "25").mkdir()
    (folder / "30.orbax-checkpoint-tmp").mkdir()
    (folder / "30.orbax-checkpoint-tmp" / "_METADATA").write_text("{")
    found = restore(folder, shapes(make_state()))
    assert found is not None
    assert int(found.step) == 20
    assert "/25: not a complete checkpoint" in caplog.text
    assert "30.orbax-checkpoint-tmp: not a complete checkpoint" in caplog.text
    save(folder, 25, 30)
    found = restore(folder, shapes(make_state()))
    assert found is not None
    assert int(found.step) == 30


@pytest.mark.parametrize("part", ["d", "_METADATA", "manifest.ocdbt"])
def test_a_damaged_checkpoint_is_skipped_with_a_line(
    folder: pathlib.Path, caplog: pytest.LogCaptureFixture, part: str
):
    save(folder, 10, 20)
    damaged = folder / "20" / part
    shutil.rmtree(damaged) if damaged.is_dir() else damaged.unlink()
    found = restore(folder, shapes(make_state()))
    assert found is not None
    assert int(found.step) == 10
    assert "skipped the broken checkpoint" in caplog.text
    assert "/20" in caplog.text


def test_a_damaged_checkpoint_can_be_saved_again(folder: pathlib.Path):
    save(folder, 10, 20)
    shutil.rmtree(folder / "20" / "d")
    checkpoints = TrainCheckpoints(str(folder))
    checkpoints.restore_latest(shapes(make_state()))
    checkpoints.save(20, at(make_state(), 20))
    checkpoints.close()
    found = restore(folder, shapes(make_state()))
    assert found is not None
    assert int(found.step) == 20


def test_only_damaged_checkpoints_are_an_error(folder: pathlib.Path):
    save(folder, 10)
    shutil.rmtree(folder / "10" / "d")
    with pytest.raises(UserError, match=r"none of the checkpoints \[10\]"):
        restore(folder, shapes(make_state()))


def test_a_checkpoint_of_another_model_is_refused_by_name(folder: pathlib.Path):
    save(folder, 10)
    with pytest.raises(
        UserError, match=r"params/head/kernel \(stored \(8, 5\), config \(8, 7\)\)"
    ):
        restore(folder, shapes(make_state(width=7)))
    with pytest.raises(UserError, match=r"ema/head/kernel \(stored .* config none"):
        restore(folder, shapes(make_state(averaged=False)))


def test_keep_last_below_one_is_refused(folder: pathlib.Path):
    with pytest.raises(UserError, match="keep_checkpoints=0"):
        TrainCheckpoints(str(folder), keep_last=0)


def test_weights_alone_are_read_without_knowing_the_model(folder: pathlib.Path):
    save(folder, 4)
    state = at(make_state(), 4)
    assert latest_step(str(folder)) == 4
    raw = restore_weights(str(folder), 4, averaged=False)
    ema = restore_weights(str(folder), 4, averaged=True)
    np.testing.assert_array_equal(raw["head"]["kernel"], state.params["head"]["kernel"])
    np.testing.assert_array_equal(ema["head"]["kernel"], state.ema["head"]["kernel"])
    assert isinstance(raw["head"]["kernel"], np.ndarray)


def test_weights_of_a_step_that_is_not_there_are_refused(folder: pathlib.Path):
    with pytest.raises(UserError, match="no complete checkpoint"):
        latest_step(str(folder))
    save(folder, 4)
    with pytest.raises(UserError, match=r"no checkpoint 5 .*; there are \[4\]"):
        restore_weights(str(folder), 5, averaged=True)

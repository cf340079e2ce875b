# SPDX-License-Identifier: Apache-2.0
"""Starting from a checkpoint is another thing than going on with a run."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from tests.cases import tiny
from tests.cases.conftest import Trained
from vit_jax import build, trees
from vit_jax.convert import load_checkpoint
from vit_jax.errors import UserError


def blueprint(trained: Trained, which: str, **optimizer: Any) -> build.Blueprint:
    config = tiny.config(
        f"folder:{trained.data}",
        total_steps=3,
        init={"checkpoint": f"{trained.workdir}{which}", "reset": ()},
        optimizer={"name": "adamw", "ema_decay": 0.5, **optimizer},
    )
    return build.make_blueprint(config, devices=jax.devices()[:1])


@pytest.mark.parametrize("which", [":raw", ":ema"])
def test_of_a_run_the_weights_are_taken_and_nothing_else(
    four_colours: Trained, which: str, tmp_path: pathlib.Path
):
    made = blueprint(four_colours, which)
    with build.build_run(made, str(tmp_path / "run")) as run:
        state = jax.device_get(run.state)
    assert int(state.step) == 0
    loaded = trees.flatten(load_checkpoint(f"{four_colours.workdir}{which}").params)
    for tree in (state.params, state.ema):
        for name, value in trees.flatten(tree).items():
            np.testing.assert_array_equal(value, loaded[name], err_msg=name)
    # Neither moments nor counts of the other run.
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state))


def test_both_kinds_of_weights_differ(four_colours: Trained):
    raw, ema = (
        trees.flatten(load_checkpoint(f"{four_colours.workdir}{which}").params)
        for which in (":raw", ":ema")
    )
    assert any(np.any(raw[name] != ema[name]) for name in raw)

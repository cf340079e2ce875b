# SPDX-License-Identifier: Apache-2.0
"""Starting from a checkpoint is another thing than going on with a run."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from tests.cases import tiny
from tests.cases.conftest import Trained
from vit_jax import build, record, trees
from vit_jax.convert import load_checkpoint
from vit_jax.errors import UserError


def blueprint(trained: Trained, **sections: Any) -> build.Blueprint:
    config = tiny.config(
        f"folder:{trained.data}",
        total_steps=3,
        init={"checkpoint": str(trained.workdir), "reset": ()},
        optimizer={"name": "adamw", "ema_decay": 0.5},
    )
    for name, fields in sections.items():
        config[name].update(fields)
    return build.make_blueprint(config, devices=jax.devices()[:1])


def test_of_a_run_the_weights_are_taken_and_nothing_else(
    four_colours: Trained, tmp_path: pathlib.Path
):
    with build.build_run(blueprint(four_colours), str(tmp_path / "run")) as run:
        state = jax.device_get(run.state)
    assert int(state.step) == 0
    ema, raw = (
        trees.flatten(load_checkpoint(f"{four_colours.workdir}{which}").params)
        for which in (":ema", ":raw")
    )
    # The averaged weights, which are not the others, also as the start of an average.
    for tree in (state.params, state.ema):
        for name, value in trees.flatten(tree).items():
            np.testing.assert_array_equal(value, ema[name], err_msg=name)
    assert any(np.any(raw[name] != ema[name]) for name in raw)
    # Neither moments nor counts of the other run.
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(state.opt_state))


def test_what_starts_anew_cannot_be_frozen(
    four_colours: Trained, tmp_path: pathlib.Path
):
    # A frozen random norm in front of a probe costs accuracy and says nothing.
    made = blueprint(
        four_colours,
        init={"reset": ("Transformer/encoder_norm/.*",)},
        optimizer={"freeze_rules": (("head/.*", False), (".*", True))},
    )
    with (
        pytest.raises(UserError, match=r"freeze Transformer/encoder_norm/bias, .*anew"),
        build.build_run(made, str(tmp_path / "run")),
    ):
        pass


def test_hosts_that_do_not_share_the_workdir_are_told_before_the_first_step(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    with pytest.raises(
        UserError, match=r"of process 3 is not that of process 0; .*gs:"
    ):
        record.prepare_workdir(str(tmp_path / "local"), {"seed": 0})

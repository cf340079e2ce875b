# SPDX-License-Identifier: Apache-2.0
import json
import pathlib

import numpy as np
import orbax.checkpoint as ocp
import pytest

from vit_jax.checkpoints import workdir
from vit_jax.errors import UserError

DESCRIPTION = {
    "model": {"name": "ViT-Ti/16", "num_classes": 2},
    "loss": "sigmoid",
    "averaged": True,
    "preprocessing": "decode|resize(32)|value_range(-1, 1)",
    "class_names": ["cat", "dog"],
    "image_shape": [32, 32, 3],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A run with the weight 5 and the average 50 after step 5, 10 and 100 after 10."""
    path = tmp_path_factory.mktemp("runs") / "a"
    with ocp.StandardCheckpointer() as checkpointer:
        for step in (5, 10):
            state = {
                "params": {"cls": np.float32([step])},
                "ema": {"cls": np.float32([10 * step])},
            }
            checkpointer.save(path / "checkpoints" / str(step), state)
    (path / "checkpoint.json").write_text(json.dumps(DESCRIPTION))
    (path / "checkpoints/best").write_text("5\n")
    return path


@pytest.mark.parametrize(
    ("suffix", "value"),
    [
        ("", 100),
        (":ema", 100),
        (":raw", 10),
        ("@5", 50),
        ("@5:raw", 5),
        ("@best", 50),
        ("@best:raw", 5),
    ],
)
def test_step_and_average_are_those_of_the_name(run, suffix, value):
    assert workdir.load(f"{run}{suffix}").params["cls"].tolist() == [value]


def test_the_description_comes_with_the_weights(run):
    checkpoint = workdir.load(str(run))
    assert checkpoint.model == {"name": "ViT-Ti/16", "num_classes": 2}
    assert checkpoint.image_shape == (32, 32, 3)
    assert checkpoint.class_names == ("cat", "dog")
    assert checkpoint.loss == "sigmoid"
    assert checkpoint.averaged is True
    assert checkpoint.preprocessing == "decode|resize(32)|value_range(-1, 1)"
    assert checkpoint.description() == DESCRIPTION


def described(path: pathlib.Path, text: str) -> str:
    (path / "checkpoints").mkdir()
    (path / "checkpoint.json").write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "checkpoint.json is damaged"),
        ("[]", "checkpoint.json is damaged"),
        (json.dumps(DESCRIPTION), "no complete checkpoint in .*checkpoints"),
    ],
)
def test_a_run_that_cannot_be_read_is_told(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        workdir.load(described(tmp_path, text))


def test_a_description_that_does_not_say_enough_is_told(run, monkeypatch):
    monkeypatch.setattr(workdir, "DESCRIPTION", "checkpoints/less.json")
    less = {key: value for key, value in DESCRIPTION.items() if key != "model"}
    (run / "checkpoints/less.json").write_text(json.dumps(less))
    with pytest.raises(UserError, match=r"less.json has no 'model', so its weights"):
        workdir.load(str(run))


def test_what_is_no_run_is_told(tmp_path):
    with pytest.raises(UserError, match="an empty name for a checkpoint"):
        workdir.load("")
    with pytest.raises(UserError, match=r"no directory .*none"):
        workdir.load(str(tmp_path / "none"))
    with pytest.raises(
        UserError, match=r"has no checkpoint.json, so it is not the wor"
    ):
        workdir.load(str(tmp_path))


def test_an_average_that_was_not_kept_is_told(tmp_path):
    spec = described(tmp_path, json.dumps(DESCRIPTION | {"averaged": False}))
    with pytest.raises(UserError, match="kept no averaged weights; leave ':ema' out"):
        workdir.load(f"{spec}:ema")


def test_a_step_that_is_not_there_is_told(run, tmp_path):
    with pytest.raises(UserError, match=r"no checkpoint 7 in .*; there are \[5, 10\]"):
        workdir.load(f"{run}@7")
    spec = described(tmp_path, json.dumps(DESCRIPTION))
    with pytest.raises(UserError, match="does not say which checkpoint is best"):
        workdir.load(f"{spec}@best")

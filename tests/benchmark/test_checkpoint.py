# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring a training state against the clock."""

import pathlib
from typing import Any

import pytest

from vit_jax import models
from vit_jax.benchmark import checkpoint, fields
from vit_jax.errors import UserError


@pytest.fixture
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    build_model = models.build_model

    def build(name: str, **given: Any) -> Any:
        return build_model(name, depth=1, **given)

    monkeypatch.setattr(models, "build_model", build)


def test_the_state_is_written_and_read_and_removed(
    one_block: None, tmp_path: pathlib.Path
):
    found = checkpoint.measure("ViT-Ti/16", 16, str(tmp_path / "new"))
    d, hidden = 192, 768
    stem = 3 * 16**2 * d + d + d + 2 * d
    block = 2 * 2 * d + 4 * (d**2 + d) + (d * hidden + hidden) + (hidden * d + d)
    parameters = stem + block + 2 * d + (d + 1) * 1000
    # Parameters and two moments in float32, on each of the devices but saved once.
    assert found["state_mb"] == pytest.approx(12 * parameters / 1e6, abs=0.1)
    assert 0 < found["blocking_seconds"] < found["save_seconds"]
    assert found["restore_seconds"] > 0
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_there_is_left_alone(one_block: None, tmp_path: pathlib.Path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UserError, match=r"is there already, and the benchmark removes"):
        checkpoint.measure("ViT-Ti/16", 16, str(tmp_path))
    assert (tmp_path / "mine").read_text() == "precious"


def test_fields_are_literals_or_texts():
    texts = ["depth=2", "attention=fused", "names=(1, 'a')", "remat=names:mlp"]
    assert fields.parse_fields(texts) == {
        "depth": 2,
        "attention": "fused",
        "names": (1, "a"),
        "remat": "names:mlp",
    }
    with pytest.raises(UserError, match=r"--set=depth must be FIELD=VALUE"):
        fields.parse_fields(["depth"])

# SPDX-License-Identifier: Apache-2.0
"""Which class is which is said by the training folder, from training to predicting."""

import json
import pathlib

import pytest

from tests.cases.conftest import COLOURS, Trained
from tests.cases.test_normalisation import predict
from vit_jax.convert import load_checkpoint


def test_an_empty_validation_class_costs_no_accuracy(four_colours: Trained):
    # Were val to number its own folders, c and d would be taken for b and c: 1/3.
    final = four_colours.lines[-1]
    assert final["val/examples"] == 12
    assert final["val/top1"] == 1.0
    # The averaged weights are numbers of their own, with a name that says so.
    assert final["val_ema/examples"] == 12
    assert final["val_ema/loss"] != final["val/loss"]


def test_the_checkpoint_names_the_classes_in_the_order_of_training(
    four_colours: Trained,
):
    loaded = load_checkpoint(str(four_colours.workdir))
    assert loaded.class_names == ("a", "b", "c", "d")
    assert loaded.model["num_classes"] == 4


def test_predict_names_the_class_that_val_did_not_show(
    four_colours: Trained,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    train = pathlib.Path(four_colours.data) / "train"
    pictures = [str(train / name / "0.png") for name in COLOURS]
    predict(monkeypatch, str(four_colours.workdir), "--json", "--top=1", *pictures)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    best = [line["predictions"][0]["class"] for line in printed]
    assert best == list(COLOURS)

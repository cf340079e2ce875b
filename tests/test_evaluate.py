# SPDX-License-Identifier: Apache-2.0
"""The command evaluate, on weights whose answers are known."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax import command, convert, evaluate, trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import build_model

ROOT = pathlib.Path(__file__).parents[1]
QUICKSTART = ROOT / "configs" / "quickstart.py"
CLASSES = ("ant", "bee", "cow")


def mixer(num_classes: int, loss: str = "softmax") -> Checkpoint:
    """A model that sees nothing: its logits are the bias of its head, 0, 1, 2, ..."""
    model = {
        **{"name": "Mixer-S/8", "num_classes": num_classes, "resolution": 8},
        **{"width": 4, "depth": 1, "mlp_dim": 4, "token_mlp_dim": 4},
    }
    image = jax.ShapeDtypeStruct((1, 8, 8, 3), "float32")
    shapes = jax.eval_shape(build_model(**model).init, jax.random.key(0), image)
    flat = {
        name: np.zeros(leaf.shape, np.float32)
        for name, leaf in trees.flatten(shapes["params"]).items()
    }
    if num_classes:
        flat["head/bias"] = np.arange(num_classes, dtype=np.float32)
    names = CLASSES if num_classes == 3 else None
    ops = "decode|resize(8)|value_range(-1, 1)"
    params = trees.unflatten(flat)
    return Checkpoint(params, model, (8, 8, 3), ops, names, loss)


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the command within this process; returns its JSON and what it printed."""
    monkeypatch.setattr(command, "start_jax", lambda: None)

    def run(checkpoint: Any, dataset: str, *flags: str) -> tuple[dict, dict]:
        def load(spec: str, preset: str | None = None) -> Checkpoint:
            del preset
            return checkpoint(spec) if callable(checkpoint) else checkpoint

        monkeypatch.setattr(convert, "load_checkpoint", load)
        for name in evaluate.FLAGS:
            evaluate.FLAGS[name].unparse()
        output = tmp_path / "result.json"
        given = ["--checkpoint=tiny", f"--dataset={dataset}", f"--output={output}"]
        evaluate.FLAGS(["evaluate", *given, "--split=validation", *flags])
        evaluate.main([])
        printed = json.loads(capsys.readouterr().out)
        return json.loads(output.read_text()), printed

    return run


def folder(path: pathlib.Path, counts: dict[str, int], split: str = "val") -> str:
    for name, count in counts.items():
        (path / split / name).mkdir(parents=True)
        for number in range(count):
            picture = Image.new("RGB", (9, 8), (number, 0, 0))
            picture.save(path / split / name / f"{number}.png")
    return f"folder:{path}"


@pytest.mark.parametrize("batch_size", [4, 64])
def test_metrics_and_names_are_those_of_the_checkpoint(run, tmp_path, batch_size):
    # The model always says cow. The data set has no ant, so its own ids would differ.
    data = folder(tmp_path / "d", {"bee": 3, "cow": 7})
    found, printed = run(mixer(3), data, f"--batch_size={batch_size}", "--flip")
    log_sum = np.log(np.exp([0.0, 1.0, 2.0]).sum())
    assert found["examples"] == printed["examples"] == 10
    assert found["top1"] == printed["top1"] == pytest.approx(0.7)
    assert found["top5"] == 1.0
    assert found["loss"] == pytest.approx(log_sum - (3 * 1 + 7 * 2) / 10, rel=1e-6)
    confidence = np.exp(2 - log_sum)
    assert found["ece"] == pytest.approx(abs(0.7 - confidence), rel=1e-5)
    assert found["per_class"] == [
        {"class": "bee", "examples": 3, "top1": 0.0},
        {"class": "cow", "examples": 7, "top1": 1.0},
    ]
    assert found["confusion"] == {
        "classes": list(CLASSES),
        "counts": [[0, 0, 0], [0, 0, 3], [0, 0, 7]],
    }
    assert {"dataset", "split"} <= set(printed)
    assert "confusion" not in printed


def test_both_sets_of_weights_are_evaluated(run, tmp_path):
    averaged = dataclasses.replace(mixer(3), averaged=True)
    raw_params = jax.tree.map(np.negative, averaged.params)  # always says ant

    def load(spec: str) -> Checkpoint:
        raw = spec.endswith(":raw")
        return dataclasses.replace(averaged, params=raw_params) if raw else averaged

    data = folder(tmp_path / "d", {"ant": 1, "cow": 3})
    found, printed = run(load, data)
    assert (found["top1"], found["top1_ema"]) == (0.25, 0.75)
    assert found["examples"] == 4
    assert "examples_ema" not in found
    assert "loss_ema" in printed
    for suffix, rate in [("raw", 0.25), ("ema", 0.75)]:
        found, _ = run(load, data, f"--checkpoint=tiny:{suffix}")
        assert found["top1"] == rate
        assert "top1_ema" not in found


def test_predictions_are_saved_by_name(run, tmp_path):
    data = folder(tmp_path / "d", {"bee": 1, "cow": 2})
    path = tmp_path / "predictions"
    run(mixer(3), data, f"--save_predictions={path}", "--save_features")
    with np.load(path) as saved:
        assert [name.rsplit("/", 2)[-2:] for name in saved["name"]] == [
            ["bee", "0.png"],
            ["cow", "0.png"],
            ["cow", "1.png"],
        ]
        assert saved["label"].tolist() == [1, 2, 2]
        np.testing.assert_array_equal(saved["logits"], [[0, 1, 2]] * 3)
        assert saved["best"][:, 0].tolist() == [2, 2, 2]
        assert saved["features"].shape == (3, 4)
        assert saved["class_names"].tolist() == list(CLASSES)


def test_a_regression_has_errors_and_no_accuracy(run, tmp_path):
    folder(tmp_path / "d", {"x": 2}, "images")
    rows = "image,target,split\nimages/x/0.png,3,val\nimages/x/1.png,-4,val\n"
    (tmp_path / "d" / "list.csv").write_text(rows)
    found, printed = run(mixer(1, "mse"), f"csv:{tmp_path}/d/list.csv")
    assert found["examples"] == 2
    assert found["mae"] == pytest.approx(3.5)  # the model says 0
    assert found["rmse"] == printed["rmse"] == pytest.approx(np.sqrt(12.5))
    assert "top1" not in found


def test_several_labels_have_their_own_metrics(run, tmp_path):
    folder(tmp_path / "d", {"x": 2}, "images")
    lines = [
        {"image": "images/x/0.png", "labels": ["bee", "cow"], "split": "val"},
        {"image": "images/x/1.png", "labels": ["cow"], "split": "val"},
    ]
    text = "\n".join(map(json.dumps, lines))
    (tmp_path / "d" / "list.jsonl").write_text(text)
    found, _ = run(mixer(3, "sigmoid"), f"jsonl:{tmp_path}/d/list.jsonl")
    # It says bee and cow of both: 3 right, 1 wrong, none missed.
    assert found["f1_micro"] == pytest.approx(2 * 3 / (2 * 3 + 1))
    assert found["f1_macro"] == pytest.approx((0 + 2 / 3 + 1) / 3)
    assert found["map"] == pytest.approx((0.5 + 1.0) / 2)
    assert found["classes_without_positives"] == 1


def test_the_classes_of_the_split_may_be_all_there_are(run, tmp_path):
    data = folder(tmp_path / "d", {"ant": 1, "bee": 1})
    found, _ = run(mixer(3), data, "--restrict_classes")
    assert found["top1"] == 0.5
    assert found["loss"] == pytest.approx(np.log1p(np.e) - 0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("checkpoint", "counts", "flags", "message"),
    [
        (mixer(3), {"ant": 1, "dog": 1}, [], "dog.*whose 3 classes are ant, bee, cow"),
        (
            mixer(4),
            {},
            ["--dataset=synthetic:2@size=8;train=4;test=4", "--split=test"],
            "4 outputs without names .* has 2 classes",
        ),
        (mixer(0), {"ant": 1}, [], "has no head, .* python -m vit_jax.fewshot"),
        (mixer(3), {"ant": 1}, ["--save_features"], "adds to the file of --save_pred"),
        (mixer(3), {"ant": 1}, ["--split=tset"], "no split 'tset'"),
        (mixer(3), {"ant": 1}, ["--ops=decod"], "did you mean 'decode'"),
        (
            dataclasses.replace(mixer(3), preprocessing=None),
            {"ant": 1},
            [],
            "tells no preprocessing; give it, such as --ops='decode",
        ),
    ],
)
def test_a_mistake_is_named(run, tmp_path, checkpoint, counts, flags, message):
    with pytest.raises(UserError, match=message):
        run(checkpoint, folder(tmp_path / "d", counts), *flags)


def test_arguments_that_are_no_flags_are_refused():
    with pytest.raises(UserError, match="unexpected argument 'x'; evaluate takes flag"):
        evaluate.main(["x"])


@pytest.mark.slow
def test_a_run_is_evaluated_as_its_training_did(tmp_path: pathlib.Path):
    def start(module: str, *flags: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", f"vit_jax.{module}", *flags],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    averaging = "--config.optimizer.ema_decay=0.5"
    start("main", f"--config={QUICKSTART}:smoke", "--workdir=run", averaging)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    logged = json.loads(lines[-1])
    data = "--dataset=synthetic:10@size=28;train=64;test=16"
    printed = start("evaluate", "--checkpoint=run", data, "--split=test")
    found = json.loads(printed)
    assert found["examples"] == 16
    for metric in ("top1", "top5", "loss"):
        assert found[metric] == pytest.approx(logged[f"test/{metric}"], rel=1e-5)
        expected = logged[f"test_ema/{metric}"]
        assert found[f"{metric}_ema"] == pytest.approx(expected, rel=1e-5)
    start("fewshot", "--checkpoint=run:raw", data, "--shots=1", "--output=few.json")
    assert len(json.loads((tmp_path / "few.json").read_text())["results"]) == 3

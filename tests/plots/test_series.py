# SPDX-License-Identifier: Apache-2.0
"""Series are what the files say."""

import json

import pytest

from vit_jax.errors import UserError
from vit_jax.plots import series


def write_run(path, lines):
    path.mkdir(parents=True)
    text = "".join(json.dumps({"time": 0.0, **line}) + "\n" for line in lines)
    (path / "metrics.jsonl").write_text(text)
    return str(path)


@pytest.fixture
def run(tmp_path):
    return write_run(
        tmp_path / "a",
        [
            {"step": 10, "train/loss": 2.0, "train/images_per_second": 40.0},
            {"step": 20, "train/loss": 1.0, "train/images_per_second": 80.0},
            {"step": 20, "val/top1": 0.25, "val/loss": 1.5, "val_ema/top1": 0.5},
        ],
    )


def test_curves_are_the_metrics_by_kind(run):
    loss, top1 = series.learning_curves([run])
    assert loss.y_label == "loss"
    assert loss.series == (
        series.Series("train", (10, 20), (2.0, 1.0)),
        series.Series("val", (20,), (1.5,)),
    )
    assert top1.y_label == "top-1 accuracy (%)"
    assert [(s.label, s.y) for s in top1.series] == [
        ("val", (25.0,)),
        ("val_ema", (50.0,)),
    ]


def test_curves_of_several_runs_carry_their_names(run, tmp_path):
    other = write_run(tmp_path / "b", [{"step": 5, "train/loss": 3.0}])
    (panel,) = series.learning_curves([run, other], ["train/loss"])
    assert [s.label for s in panel.series] == ["a: train", "b: train"]


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [
        write_run(tmp_path / seed / "run", [{"step": 1, "train/loss": 1.0}])
        for seed in ("s0", "s1")
    ]
    (panel,) = series.learning_curves(runs)
    assert [s.label for s in panel.series] == ["s0/run: train", "s1/run: train"]


def test_an_unknown_metric_and_an_empty_run_are_errors(run, tmp_path):
    with pytest.raises(UserError, match="did you mean 'train/loss'"):
        series.learning_curves([run], ["train/los"])
    with pytest.raises(UserError, match=r"has no metrics.jsonl with anything"):
        series.learning_curves([str(tmp_path / "none")])


def test_seconds_of_updates_leave_pauses_out():
    lines = [
        {"step": 10, "train/images_per_second": 40.0},
        {"step": 10, "val/top1": 0.5},
        {"step": 20, "train/images_per_second": 80.0},
    ]
    assert series.seconds_of_updates(lines, 8) == 10 * 8 / 40 + 10 * 8 / 80


def test_few_shot_curves_have_their_interval(tmp_path):
    summary = [
        {"shots": 5, "l2": 1.0, "top1_mean": 0.4, "top1_ci95": 0.02, "chosen": True},
        {"shots": 1, "l2": 1.0, "top1_mean": 0.2, "top1_ci95": None, "chosen": True},
        {"shots": 5, "l2": 2.0, "top1_mean": 0.9, "top1_ci95": 0.0, "chosen": False},
        {"shots": "all", "l2": 1.0, "top1_mean": 0.9, "top1_ci95": None},
    ]
    path = tmp_path / "dino.json"
    path.write_text(json.dumps({"summary": summary}))
    panel = series.few_shot([str(path)])
    assert panel.log_x
    (found,) = panel.series
    assert found == series.Series("dino.json", (1, 5), (20.0, 40.0), (0.0, 2.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", r"is no output of vit_jax.fewshot \(KeyError\('summary'\)\)"),
        ('{"summary": []}', "no number of shots"),
        ("{", "cannot read"),
    ],
)
def test_other_files_are_no_few_shot_results(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        series.few_shot([str(path)])


def test_throughput_of_runs_and_of_benchmarks(run, tmp_path):
    panel = series.throughput([run])
    assert panel.series == (series.Series("a", (10, 20), (40.0, 80.0)),)
    path = tmp_path / "speed.jsonl"
    line = {"model": "ViT-S/16", "dtype": "float32", "batch_size": 16}
    speeds = {384: 3.0, 224: 10.0}
    path.write_text(
        "".join(
            json.dumps({**line, "resolution": side, "images_per_second": s}) + "\n"
            for side, s in speeds.items()
        )
    )
    panel = series.throughput([str(path)])
    assert panel.x_label == "side of the images (pixels)"
    assert panel.series == (series.Series("ViT-S/16 float32", (224, 384), (10.0, 3.0)),)
    with pytest.raises(UserError, match="not both"):
        series.throughput([run, str(path)])
    path.write_text("{}\n")
    with pytest.raises(UserError, match="no line with images_per_second"):
        series.throughput([str(path)])

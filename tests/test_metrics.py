# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import time

import pytest

from vit_jax import metrics


def lines(workdir: pathlib.Path) -> list[dict]:
    text = (workdir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_each_write_is_one_line_of_json_and_an_event(workdir: pathlib.Path):
    writer = metrics.MetricWriter(str(workdir), 0)
    writer.write(1, {"train/loss": 2.5})
    writer.write(2, {"train/loss": 1.5, "val/top1": 0.25})
    writer.close()
    first, second = lines(workdir)
    assert (first["step"], first["train/loss"]) == (1, 2.5)
    assert (second["step"], second["val/top1"]) == (2, 0.25)
    assert abs(first["time"] - time.time()) < 60
    (events,) = workdir.glob("events.out.tfevents.*")
    assert b"val/top1" in events.read_bytes()


def test_a_resumed_run_drops_what_it_will_write_again(workdir: pathlib.Path):
    writer = metrics.MetricWriter(str(workdir), 0)
    for step in (1, 2, 3):
        writer.write(step, {"train/loss": float(step)})
    writer.close()
    with (workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "train/lo')  # A process killed while writing.
    resumed = metrics.MetricWriter(str(workdir), 2)
    resumed.write(3, {"train/loss": 30.0})
    resumed.close()
    assert [(m["step"], m["train/loss"]) for m in lines(workdir)] == [
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
    ]


def test_metrics_of_a_missing_run_are_none(workdir: pathlib.Path):
    assert metrics.read_metrics(str(workdir)) == []


def test_json_files_are_replaced_whole(tmp_path: pathlib.Path):
    file = tmp_path / "a.json"
    metrics.write_json(str(file), {"a": 1})
    metrics.write_json(str(file), {"b": [2]})
    assert json.loads(file.read_text()) == {"b": [2]}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_pause_is_no_training_time(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = metrics.Clock()
    now[0] += 2
    with clock:
        now[0] += 50
    now[0] += 3
    assert clock.lap() == 5
    now[0] += 7
    assert clock.lap() == 7


def test_the_progress_line_tells_percent_step_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    caplog.set_level("INFO")
    progress = metrics.Progress(first_step=100, total_steps=400)
    now[0] = 50.0  # 100 updates in 50 s leave 200 updates: 100 s.
    progress.log(200, loss=1.25, lr=1e-3, images_per_second=1234.0)
    line = caplog.messages[-1]
    for part in ("50.0 %", "step 200/400", "loss 1.2500", "lr 0.001", "1,234 images/s"):
        assert part in line
    assert line.endswith("ETA 1m40s")

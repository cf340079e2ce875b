# SPDX-License-Identifier: Apache-2.0
"""Commands and options do the work that they are named after."""

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from tests.cases import tiny
from vit_jax import build, command, models
from vit_jax.benchmark import __main__ as benchmark
from vit_jax.data import pipeline
from vit_jax.errors import UserError
from vit_jax.train import loop


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Any:
    """Runs a benchmark in this process and returns the JSON line that it prints."""
    monkeypatch.setattr(command, "start_jax", lambda: None)

    def run(*arguments: str) -> dict:
        for name in benchmark.FLAGS:
            benchmark.FLAGS[name].unparse()
        benchmark.main(benchmark.FLAGS(["benchmark", *arguments])[1:])
        (line,) = capsys.readouterr().out.splitlines()
        return json.loads(line)

    return run


def test_the_benchmark_of_the_input_times_as_many_batches_as_asked_for(
    run: Any, monkeypatch: pytest.MonkeyPatch
):
    taken: list[int] = []

    def train_batches(source: Any, *, batch_size: int, **kwargs: Any) -> Iterator:
        del source, kwargs
        for number in itertools.count():
            taken.append(number)
            yield {"image": np.zeros((batch_size, 1, 1, 3), np.float32)}

    monkeypatch.setattr(pipeline, "train_batches", train_batches)
    found = run("input", "--batch_size=6", "--steps=5", "--dataset=synthetic:4")
    assert len(taken) == 1 + 5  # the first is told by itself
    assert (found["benchmark"], found["steps"], found["batch_size"]) == ("input", 5, 6)
    assert found["images_per_second"] > 0
    assert found["first_batch_seconds"] >= 0


def test_the_benchmark_of_a_step_trains_the_model_that_is_named(
    run: Any, monkeypatch: pytest.MonkeyPatch
):
    build_model = models.build_model

    def with_one_block(name: str, **fields: Any) -> Any:
        return build_model(name, depth=1, **fields)

    monkeypatch.setattr(models, "build_model", with_one_block)
    found = run(
        *("step", "--model=ViT-Ti/16", "--resolution=16", "--batch_size=8"),
        "--steps=2",
    )
    d, hidden = 192, 768
    stem = 3 * 16**2 * d + d + d + 2 * d
    block = 2 * 2 * d + 4 * (d**2 + d) + (d * hidden + hidden) + (hidden * d + d)
    assert found["parameters"] == stem + block + 2 * d + (d + 1) * 1000
    assert (found["model"], found["resolution"]) == ("ViT-Ti/16", 16)
    assert (found["steps"], found["devices"]) == (2, jax.device_count())
    assert found["images_per_second"] > 0
    # The first step is told by itself: it compiles.
    assert found["first_step_seconds"] > found["median_step_ms"] / 1000


def test_a_benchmark_that_is_not_there_is_told(run: Any):
    with pytest.raises(UserError, match="unknown benchmark 'steps'; did you mean 'ste"):
        run("steps")


@pytest.mark.slow
def test_a_profile_that_is_asked_for_is_written(workdir: pathlib.Path):
    config = tiny.config("synthetic:4@size=8", total_steps=8, profile_steps=1)
    made = build.make_blueprint(config, devices=jax.devices()[:1])
    with build.build_run(made, str(workdir)) as run:
        loop.train(run, lambda: False)
    (trace,) = workdir.glob("plugins/profile/*/*.xplane.pb")
    assert trace.stat().st_size > 0

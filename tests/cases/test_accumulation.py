# SPDX-License-Identifier: Apache-2.0
"""A batch in parts trains a ViT as the batch at once does, in less memory."""

import contextlib
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from tests.cases import tiny
from vit_jax import build, metrics, trees
from vit_jax.train import loop


def blueprint(weights: str, devices: int, batch_size: int, **optimizer: Any) -> Any:
    """One update of SGD from random weights, without a rate that hides a factor."""
    config = tiny.config(
        "synthetic:3@size=8;train=64",
        init={"checkpoint": weights, "reset": ()},
        model={"num_classes": 3},
        data={"batch_size": batch_size},
        optimizer={"lr": 0.1, "clip_norm": 1.0, "momentum": 0.0, **optimizer},
    )
    return build.make_blueprint(config, devices=jax.devices()[:devices])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.write(tmp_path_factory.mktemp("weights"))


def after_one_update(made: Any, workdir: pathlib.Path) -> tuple[dict, dict]:
    with build.build_run(made, str(workdir)) as run:
        state, _ = loop.train(run, lambda: False)
        params = trees.flatten(jax.device_get(state.params))
    (line,) = metrics.read_metrics(str(workdir))
    return params, line


def test_parts_move_a_vit_as_the_whole_batch_does(weights: str, tmp_path: pathlib.Path):
    # 8 images of two devices as 2 + 2 + 2 + 2.
    whole = blueprint(weights, 2, 8)
    expected, line = after_one_update(whole, tmp_path / "whole")
    cut = blueprint(weights, 2, 8, accumulation_steps=4)
    found, other = after_one_update(cut, tmp_path / "parts")
    start = trees.flatten(tiny.checkpoint().params)
    # The update is no small thing: a tenth of a gradient of length 1 or less.
    assert line["train/grad_norm"] > 0.5
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)
    moved = [np.abs(expected[name] - start[name]).max() for name in start]
    assert max(moved) > 1e-3
    for name in ("train/loss", "train/grad_norm"):
        assert other[name] == pytest.approx(line[name], rel=1e-5)
    # A step is an update, whatever it is made of.
    assert (other["step"], other["train/lr"]) == (1, pytest.approx(0.1))


def test_parts_take_less_memory(weights: str):
    def temporaries(parts: int) -> int:
        made = blueprint(weights, 1, 64, accumulation_steps=parts)
        with contextlib.closing(made.data.host_batches(0)) as batches:
            batch = next(batches)
        lowered = jax.jit(made.update, donate_argnums=0).lower(made.like, batch)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    assert temporaries(8) < temporaries(1) / 2

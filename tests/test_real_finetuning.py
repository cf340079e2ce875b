# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of trained weights on real pictures, which are not part of the project.

Each test names by an environment variable what it needs, and is skipped without:
VIT_JAX_DINOV2 is a folder with `vit_s14_google_fp16.npz` (a ViT-S/14 in Google's names,
preset dinov2), VIT_JAX_PETS_ZIP and VIT_JAX_CIFAR10_ZIP are zip files of
`train/CLASS/IMAGE` and `test/CLASS/IMAGE`, VIT_JAX_QUICKSTART is the workdir of
`make train`. Each takes some minutes of two idle cores, at most ten.
"""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest

from vit_jax import metrics

ROOT = pathlib.Path(__file__).parent.parent
SMALL = (
    "--config.data.ops=decode|resize(112)|flip_lr|{normalize}",
    "--config.evaluators.val.ops=decode|resize(112)|{normalize}",
)
pytestmark = pytest.mark.slow


def given(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    return value


def dinov2() -> tuple[str, str]:
    weights = given("VIT_JAX_DINOV2") + "/vit_s14_google_fp16.npz"
    return f"--init={weights}", "--preset=dinov2"


def finetune(
    workdir: pathlib.Path, variant: str, dataset: str, *arguments: str
) -> list[dict]:
    """Runs the command as a user would, and returns what metrics.jsonl holds."""
    # Without the flags that make compiling fast in tests and the program slow.
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    config = f"{ROOT / 'configs' / 'finetune.py'}:dataset={dataset},{variant}"
    command = [
        *(sys.executable, "-m", "vit_jax.finetune", f"--config={config}"),
        f"--workdir={workdir}",
        *(f"--config.data.dataset={dataset}", "--config.model.dtype=float32"),
        f"--config.evaluators.val.dataset={dataset}",
        *("--config.evaluators.val.split=test", "--config.log_steps=1"),
        "--config.evaluators.val.every_steps=None",
        *arguments,
    ]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return metrics.read_metrics(str(workdir)) if "--sweep" not in arguments else []


def test_breeds_of_pets_from_five_pictures_each(workdir: pathlib.Path):
    lines = finetune(
        workdir,
        "resolution=224,adamw",
        f"zip:{given('VIT_JAX_PETS_ZIP')}",
        *dinov2(),
        "--config.data.ops=decode|inception_crop(224, 50)|flip_lr|{normalize}",
        "--config.data.batch_size=37",
        "--config.total_steps=40",
        "--config.optimizer.warmup_steps=5",
    )
    # The new head is 0, so no class is likelier than another.
    assert lines[0]["train/loss"] == pytest.approx(math.log(37), abs=1e-3)
    # Least squares on the frozen features gets 41 %, their nearest neighbours 21 %.
    assert lines[-1]["val/top1"] > 0.45


def test_small_pictures_of_ten_classes(workdir: pathlib.Path):
    lines = finetune(
        workdir,
        "resolution=112,adamw",
        f"zip:{given('VIT_JAX_CIFAR10_ZIP')}",
        *dinov2(),
        *SMALL,
        "--config.total_steps=80",
        "--config.optimizer.warmup_steps=10",
    )
    assert lines[0]["train/loss"] == pytest.approx(math.log(10), abs=1e-3)
    assert lines[-1]["val/top1"] > 0.80


def test_a_head_on_frozen_weights_stops_when_it_gets_no_better(workdir: pathlib.Path):
    lines = finetune(
        workdir,
        "resolution=112,adamw,probe",
        f"zip:{given('VIT_JAX_CIFAR10_ZIP')}",
        *dinov2(),
        *SMALL,
        "--config.total_steps=200",
        "--config.optimizer.lr=1e-6",
        "--config.evaluators.val.split=test[:320]",
        "--config.evaluators.val.every_steps=5",
        "--config.early_stopping.metric=val/loss",
        "--config.early_stopping.patience=2",
        "--config.early_stopping.min_delta=0.5",
    )
    evaluated = [line["val/loss"] for line in lines if "val/loss" in line]
    # So slow a head never gets that much better than at first: then two more.
    assert len(evaluated) == 3
    assert evaluated == sorted(evaluated, reverse=True)
    assert lines[-1]["step"] == 15
    assert (workdir / "checkpoints" / "5").is_dir()  # The best, which is kept.


def test_a_sweep_selects_among_real_runs(workdir: pathlib.Path):
    finetune(
        workdir,
        "resolution=112,adamw,probe",
        f"zip:{given('VIT_JAX_CIFAR10_ZIP')}@holdout=10%",
        *dinov2(),
        *SMALL,
        "--config.total_steps=10",
        "--config.optimizer.warmup_steps=1",
        "--config.sweep.lrs=(1e-6,1e-2)",
        "--config.sweep.train_split=train",
        "--config.sweep.dev_split=validation",
        "--config.sweep.seeds=(0,)",
        "--sweep",
    )
    found = json.loads((workdir / "sweep.json").read_text())
    assert found["lr_0.01"]["val/top1"] > found["lr_1e-06"]["val/top1"]
    assert metrics.read_metrics(str(workdir / "seed_0"))[-1]["val/top1"] > 0.3


def test_digits_at_twice_the_resolution(workdir: pathlib.Path):
    lines = finetune(
        workdir,
        "resolution=56",
        "bundled:mnist",
        f"--init={given('VIT_JAX_QUICKSTART')}",
        "--config.data.ops=decode|resize(56)|{normalize}",
        "--config.evaluators.val.ops=decode|resize(56)|{normalize}",
        "--config.total_steps=600",
        "--config.optimizer.lr=0.01",
    )
    assert lines[-1]["val/top1"] >= 0.98

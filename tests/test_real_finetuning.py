# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of trained weights on real pictures, which are not part of the project.

Each test names by an environment variable what it needs, and is skipped without:
VIT_JAX_DINOV2 is a folder with `vit_s14_google_fp16.npz` (a ViT-S/14 in Google's names,
preset dinov2), VIT_JAX_PETS_ZIP and VIT_JAX_CIFAR10_ZIP are zip files of
`train/CLASS/IMAGE` and `test/CLASS/IMAGE`, VIT_JAX_QUICKSTART is the workdir of
`make train`.
"""

import os
import pathlib

import pytest

from vit_jax import build, config as config_lib, metrics
from vit_jax.train import loop

FINETUNE = pathlib.Path(__file__).parent.parent / "configs" / "finetune.py"
pytestmark = pytest.mark.slow


def given(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    return value


def finetune(
    workdir: pathlib.Path,
    dataset: str,
    init: str,
    resolution: int,
    *changes: tuple[str, str],
    preset: str | None = None,
) -> float:
    config = config_lib.load(f"{FINETUNE}:dataset={dataset},resolution={resolution}")
    config.init.checkpoint, config.init.preset = init, preset
    config_lib.override(
        config,
        [
            ("mesh.data", "1"),
            ("data.dataset", dataset),
            ("evaluators.val.dataset", dataset),
            ("evaluators.val.split", "test"),
            ("evaluators.val.every_steps", "None"),
            ("model.dtype", "float32"),
            *changes,
        ],
    )
    with build.build_run(build.make_blueprint(config), str(workdir)) as run:
        loop.train(run, lambda: False)
    return metrics.read_metrics(str(workdir))[-1]["val/top1"]


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch):
    import jax

    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *args: devices)


@pytest.mark.usefixtures("one_device")
def test_breeds_of_pets_from_five_pictures_each(workdir: pathlib.Path):
    weights = given("VIT_JAX_DINOV2") + "/vit_s14_google_fp16.npz"
    accuracy = finetune(
        workdir,
        f"zip:{given('VIT_JAX_PETS_ZIP')}",
        weights,
        224,
        ("data.batch_size", "37"),
        ("total_steps", "40"),
        ("optimizer.warmup_steps", "10"),
        ("optimizer.lr", "0.03"),
        preset="dinov2",
    )
    # So few steps do no more than leave chance, 2.7 %, behind.
    assert accuracy > 0.05


@pytest.mark.usefixtures("one_device")
def test_small_pictures_of_ten_classes(workdir: pathlib.Path):
    weights = given("VIT_JAX_DINOV2") + "/vit_s14_google_fp16.npz"
    accuracy = finetune(
        workdir,
        f"zip:{given('VIT_JAX_CIFAR10_ZIP')}",
        weights,
        112,
        ("data.ops", "decode|resize(112)|flip_lr|{normalize}"),
        ("evaluators.val.ops", "decode|resize(112)|{normalize}"),
        ("total_steps", "100"),
        ("optimizer.warmup_steps", "20"),
        ("optimizer.lr", "0.01"),
        preset="dinov2",
    )
    # Chance is 10 %.
    assert accuracy > 0.3


@pytest.mark.usefixtures("one_device")
def test_digits_at_twice_the_resolution(workdir: pathlib.Path):
    accuracy = finetune(
        workdir,
        "bundled:mnist",
        given("VIT_JAX_QUICKSTART"),
        56,
        ("data.ops", "decode|resize(56)|{normalize}"),
        ("evaluators.val.ops", "decode|resize(56)|{normalize}"),
        ("total_steps", "600"),
        ("optimizer.lr", "0.01"),
    )
    assert accuracy >= 0.98

# SPDX-License-Identifier: Apache-2.0
"""Runs without labels: the same on any mesh, resumed to the bit, and fine-tuned."""

import functools
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from vit_jax import build, config as config_lib, metrics, sharding, trees
from vit_jax.errors import UserError
from vit_jax.models import stacking
from vit_jax.train import loop

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
DATA = "synthetic:4@size=16;train=40;test=10"
OPS = "decode|resize(16)|value_range(-1, 1)"


def recipe(**changes: Any) -> ConfigDict:
    config = ConfigDict(
        {
            "seed": 3,
            "total_steps": 4,
            "log_steps": 1,
            "data": {
                "dataset": DATA,
                "split": "train",
                "batch_size": 8,
                "ops": f'{OPS}|keep("image")',
            },
            "model": {
                "name": "ViT-Ti/4",
                "width": 16,
                "depth": 2,
                "num_heads": 2,
                "mlp_dim": 16,
                "num_classes": 0,
                "dropout_rate": 0.0,
            },
            "loss": {"name": "masked_patch", "target": "mean_colour"},
            "optimizer": {"name": "adam", "lr": 0.01},
            "mesh": {},
            "evaluators": {
                "val": {
                    "type": "masked_patch",
                    "dataset": DATA,
                    "split": "test",
                    "ops": OPS,
                }
            },
        }
    )
    for path, value in changes.items():
        node = config
        *parents, key = path.split("__")
        for parent in parents:
            node = node[parent]
        with node.ignore_type():
            node[key] = value
    return config


def losses(devices: int, params: Any = None, **changes: Any) -> tuple[list, Any]:
    """Returns the loss of two updates, and the parameters that they started from."""
    config = recipe(**changes)
    blueprint = build.make_blueprint(config, devices=jax.devices()[:devices])
    if params is None:
        params = jax.device_get(jax.jit(blueprint.init)(blueprint.init_key))
    places = jax.tree.map(lambda leaf: leaf.sharding, blueprint.like)
    state = jax.device_put(blueprint.create(params), places)
    update = jax.jit(blueprint.update, out_shardings=(places, None))
    found = []
    batches = blueprint.data.batches(0)
    for _ in range(2):
        state, measured = update(state, next(batches))
        found.append(float(measured["loss"]))
    batches.close()
    return found, params


@functools.cache
def alone() -> tuple[list, Any]:
    return losses(1)


def test_the_first_loss_is_the_log_of_512():
    (first, second), _ = alone()
    assert first == pytest.approx(np.log(512), rel=1e-6)
    assert second < first


@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        (8, {"mesh": {"data": 2, "fsdp": 4}}),
        (1, {"optimizer__accumulation_steps": 3}),
        (2, {"mesh": {"scan": True, "remat": "full"}}),
    ],
)
def test_the_losses_are_those_of_one_device(devices: int, changes: dict[str, Any]):
    wanted, params = alone()
    if changes.get("mesh", {}).get("scan"):
        params = stacking.stack_blocks(params)
    found, _ = losses(devices, params, **changes)
    # Sums in another order; the second loss follows an update by Adam.
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device compiles faster, where only the path through the code counts."""
    one = functools.partial(sharding.make_mesh, devices=jax.devices()[:1])
    monkeypatch.setattr(sharding, "make_mesh", one)


def train(config: ConfigDict, workdir: pathlib.Path, stop: bool = False) -> Any:
    with build.build_run(build.make_blueprint(config), str(workdir)) as run:
        state, _ = loop.train(run, lambda: stop)
    return jax.device_get(state)


@pytest.mark.usefixtures("one_device")
def test_a_run_that_is_resumed_equals_one_that_is_not(tmp_path: pathlib.Path):
    whole = train(recipe(), tmp_path / "whole")
    for stopped in range(3):
        state = train(recipe(), tmp_path / "parts", stop=True)
        assert int(state.step) == stopped + 1
    parts = train(recipe(), tmp_path / "parts")
    for name, value in trees.flatten(whole.params).items():
        found = trees.flatten(parts.params)[name]
        np.testing.assert_array_equal(found, value, err_msg=name)
    lines = [
        {k: v for k, v in line.items() if k.startswith(("val/", "train/loss"))}
        for folder in ("whole", "parts")
        for line in metrics.read_metrics(str(tmp_path / folder))
    ]
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    assert lines[-1]["val/examples"] == 10


@pytest.mark.usefixtures("one_device")
def test_pictures_in_one_folder_are_enough(tmp_path: pathlib.Path, rng):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(20):
        grey = rng.integers(0, 256, (16, 16), np.uint8)
        Image.fromarray(grey).save(folder / f"{number}.png")
    dataset = f"folder:{folder}@holdout=20%"
    config = recipe(
        total_steps=2,
        data__dataset=dataset,
        evaluators__val__dataset=dataset,
        evaluators__val__split="validation",
    )
    workdir = tmp_path / "run"
    blueprint = build.make_blueprint(config)
    assert len(blueprint.data.source) == 16
    build.check_run(blueprint, str(workdir))
    assert (workdir / "augmented.png").exists()
    train(config, workdir)
    last = metrics.read_metrics(str(workdir))[-1]
    assert last["val/examples"] == 4
    description = json.loads((workdir / "checkpoint.json").read_text())
    assert description["model"]["num_classes"] == 0
    assert description["model"]["patch_outputs"] == 512
    assert description["loss"] == "masked_patch"
    # Classes cannot be learned from them.
    classes = recipe(
        data__dataset=dataset,
        model__num_classes=None,
        loss={"name": "softmax"},
        evaluators={},
    )
    with pytest.raises(UserError, match="has no labels; sort its pictures"):
        build.make_blueprint(classes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss__target": "colours"}, r"target 'colours'; .*mean_colour"),
        ({"loss__name": "masked_patches"}, "did you mean 'masked_patch'"),
        ({"loss__share": 0.5}, "field of config.loss: 'share'"),
        ({"model__num_classes": 4}, "num_classes is 4; set it to 0"),
        ({"model__name": "Mixer-S/4", "model__num_heads": None}, "num_heads"),
        ({"model": {"name": "BiT-R50x1", "num_classes": 0}}, "BiT-R50x1 is none"),
        ({"data__mixup": 0.2, "data__ops": OPS}, "has no labels to mix"),
        ({"data__ops": "decode|resize(16)"}, "do not say which range the pixels"),
        ({"evaluators__val__type": "classification"}, "trains no head for labels"),
        (
            {"evaluators__val__ops": "decode|resize(16)|value_range(0, 1)"},
            "another range than those of training",
        ),
        (
            {"loss": {"name": "softmax"}, "model__num_classes": 4, "data__ops": OPS},
            "type 'masked_patch' is for the loss of that name",
        ),
        (
            {"loss": {"name": "softmax"}, "model__patch_outputs": 3},
            "patch_outputs has a use for loss 'masked_patch' only",
        ),
    ],
)
def test_a_mistake_is_named(changes: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        build.make_blueprint(recipe(**changes))


@pytest.mark.usefixtures("one_device")
def test_fine_tuning_drops_what_predicted_patches(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    config = recipe(total_steps=1)
    pretrained = train(config, tmp_path / "pretrained")
    config = recipe(
        data__ops=OPS,
        loss={"name": "softmax"},
        model={"name": None, "num_classes": None},
        evaluators={},
        init={"checkpoint": str(tmp_path / "pretrained")},
    )
    blueprint = build.make_blueprint(config)
    with caplog.at_level("INFO"):
        with build.build_run(blueprint, str(tmp_path / "tuned")) as run:
            params = trees.flatten(jax.device_get(run.state.params))
    assert (
        "dropped (the model predicts no patches): mask_embedding, patch_head/bias, "
        "patch_head/kernel"
    ) in caplog.text
    before = trees.flatten(pretrained.params)
    assert set(before) - set(params) == {
        "mask_embedding",
        "patch_head/bias",
        "patch_head/kernel",
    }
    for name in set(params) - {"head/kernel", "head/bias"}:
        np.testing.assert_array_equal(params[name], before[name], err_msg=name)
    assert not params["head/kernel"].any()
    assert blueprint.fields["model"]["num_classes"] == 4


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize("target", ["mean_colour", "small_colours", "pixels"])
def test_the_recipes_pretrain_and_fine_tune(target: str, tmp_path: pathlib.Path):
    name = f"{CONFIGS}/masked_patch_b16.py:dataset=i1k,target={target},smoke"
    train(config_lib.load(name), tmp_path / "pretrained")
    last = metrics.read_metrics(str(tmp_path / "pretrained"))[-1]
    assert ("val/accuracy" in last) == (target != "pixels")
    config = config_lib.load(f"{CONFIGS}/finetune.py:resolution=48,smoke")
    config.init.checkpoint = str(tmp_path / "pretrained")
    state = train(config, tmp_path / "tuned")
    assert int(state.step) == 2
    assert "val/top1" in metrics.read_metrics(str(tmp_path / "tuned"))[-1]

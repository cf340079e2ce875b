# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a config are found before anything is compiled."""

import pathlib
import re
from typing import Any

import pytest
from ml_collections import ConfigDict
from PIL import Image

from vit_jax import build, config as config_lib
from vit_jax.errors import UserError
from vit_jax.train import loop

QUICKSTART = pathlib.Path(__file__).parent.parent / "configs" / "quickstart.py"


def smoke(**overrides: Any) -> ConfigDict:
    config = config_lib.load(f"{QUICKSTART}:smoke")
    for path, value in overrides.items():
        node = config
        *parents, key = path.split("__")
        for parent in parents:
            node = node[parent]
        with node.ignore_type():
            node[key] = value
    return config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data__prefech": 2}, "field of config.data: 'prefech'; did you mean 'pref"),
        ({"data__batch_size": 12}, "batch_size=12 is not divisible by 8 devices"),
        ({"data__batch_size": 800}, "larger than synthetic:10"),
        ({"data__ops": "decod|resize(28)"}, "did you mean 'decode'"),
        ({"data__split": "trian"}, "trian"),
        ({"data__cutmix": -1.0}, "cutmix p is -1.0; give 0"),
        ({"data__switch_prob": 1.5}, "switch_prob is 1.5; give 0 to 1"),
        ({"data__repeats": 0}, "config.data.repeats is 0; give 1 for none"),
        ({"data__dataset": "bundled:mnst"}, "mnst"),
        ({"data__dataset": "foldr:x"}, "did you mean 'folder'"),
        ({"data__dataset": "folder:none/here"}, "none/here"),
        ({"model__name": "ViT-Tj/7"}, "did you mean 'ViT-Ti"),
        ({"model__widht": 3}, "did you mean 'width'"),
        ({"model__pool": "avg"}, "pool"),
        ({"model__num_classes": 5}, "outside the model's 5 classes"),
        ({"model__preset": "googel-vit"}, "did you mean 'google-vit'"),
        ({"loss__name": "sotfmax"}, "did you mean 'softmax'"),
        ({"loss__smoothing": 0.1}, "field of config.loss"),
        ({"optimizer__name": "adamww"}, "did you mean 'adamw'"),
        ({"optimizer__scedule": "cosine"}, "did you mean 'schedule'"),
        ({"optimizer__schedule": "cosin"}, "did you mean 'cosine'"),
        ({"optimizer__ema_decay": 1.0}, "must lie in 0 <= decay < 1"),
        ({"mesh__fsdp": 3}, r"needs \d+ devices, but there are 8"),
        ({"mesh__modell": 3}, "field of config.mesh"),
        ({"total_steps": None}, "config.total_steps .* is missing"),
        ({"keep_checkpoints": 0}, "keep_checkpoints=0"),
        ({"evaluators__test__split": "tset"}, "tset"),
        ({"evaluators__test__type": "clasification"}, "did you mean 'classification'"),
        ({"evaluators__test__batchsize": 3}, "did you mean 'batch_size'"),
        ({"evaluators__test__ops": "decode|resize"}, "resize"),
    ],
)
def test_a_mistake_is_named(workdir: pathlib.Path, overrides: dict, message: str):
    with (
        pytest.raises(UserError, match=message) as error,
        build.build_run(build.make_blueprint(smoke(**overrides)), str(workdir)),
    ):
        pass
    assert not re.search(r"\n", str(error.value))
    assert not (workdir / "checkpoints").exists()


def test_a_missing_field_is_named(workdir: pathlib.Path):
    config = smoke()
    del config.data["split"]
    with (
        pytest.raises(UserError, match=r"config\.data\.split is missing"),
        build.build_run(build.make_blueprint(config), str(workdir)),
    ):
        pass


def test_a_workdir_that_is_a_file_is_refused(workdir: pathlib.Path):
    workdir.write_text("not a folder")
    with (
        pytest.raises(UserError, match="cannot use the workdir"),
        build.build_run(build.make_blueprint(smoke()), str(workdir)),
    ):
        pass
    assert workdir.read_text() == "not a folder"


def test_section_call_passes_extra_fields_to_open_functions_only():
    def closed(*, a: int, b: int = 2) -> int:
        return a + b

    def free(*, a: int, **rest: int) -> int:
        return a + sum(rest.values())

    assert config_lib.section_call(closed, {"a": 1}, "x") == 3
    assert config_lib.section_call(free, {"a": 1, "c": 5}, "x") == 6
    with pytest.raises(UserError, match=r"field of config\.x: 'c'; Known: a, b"):
        config_lib.section_call(closed, {"a": 1, "c": 5}, "x")
    # What the program gives is no field of the config.
    with pytest.raises(UserError, match=r"field of config\.x: 'b'"):
        config_lib.section_call(closed, {"a": 1, "b": 5}, "x", b=2)


def test_a_check_reads_the_data_and_trains_nothing(
    workdir: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    build.check_run(build.make_blueprint(smoke()), str(workdir))
    assert [path.name for path in workdir.iterdir()] == ["augmented.png"]
    with Image.open(workdir / "augmented.png") as sheet:
        assert sheet.width > 8 * 28
    for part in (
        "data for test: synthetic:10@size=28;train=64;test=16 test, 16 examples",
        "training: 10 classes: ",
        "training: first example ",
        "test: last example ",
        "image float32 (8, 28, 28, 3)",
    ):
        assert part in caplog.text


def test_a_check_of_a_model_that_cannot_take_the_images_fails(workdir: pathlib.Path):
    config = smoke(data__ops="decode|resize(30)|value_range(-1, 1)")
    with pytest.raises(UserError, match=r"30.* 28 or 35"):
        build.check_run(build.make_blueprint(config), str(workdir))


@pytest.mark.slow
def test_mixing_repeats_and_mirror_images_train_and_evaluate(workdir: pathlib.Path):
    config = smoke(
        data__mixup=0.8, data__cutmix=1.0, data__repeats=2, evaluators__test__flip=True
    )
    with build.build_run(build.make_blueprint(config), str(workdir)) as run:
        state, _ = loop.train(run, lambda: False)
    assert int(state.step) == 2
    assert '"test/top1"' in (workdir / "metrics.jsonl").read_text()

# SPDX-License-Identifier: Apache-2.0
"""Every recipe in every mode: it parses, it builds, its smoke form trains."""

import functools
import importlib.util
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from vit_jax import build, config as config_lib, losses, sharding
from vit_jax.build import pretrained
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.data.mixtures import open_mixture
from vit_jax.data.preprocess import check_ops
from vit_jax.evaluators import EVALUATORS
from vit_jax.models import build_model
from vit_jax.optim import build_optimizer
from vit_jax.train import loop
from vit_jax.train.state import TrainState

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
FILES = sorted(path.stem for path in CONFIGS.glob("*.py"))
PAPER = ["vit_b16", "vit_b32", "vit_l16", "vit_l32", "vit_h14"]
MODES = {
    **{name: ["dataset=i21k", "dataset=jft", "dataset=i1k,tests"] for name in PAPER},
    "vit_s16_i1k": ["epochs=90", "epochs=150", "epochs=300,tests"],
    "quickstart": ["", "tune"],
}

# Recipes that start from a checkpoint, which brings name and sizes of the model.
FROM_CHECKPOINT = {
    "finetune": [
        "",
        "dataset=imagenet,resolution=512,polyak",
        "dataset=pets,probe",
        "dataset=folder:/data/mine",
    ],
    "vtab": ["task=dtd", "task=clevr_dist,augment=none", "task=dspr_ori,dev"],
    "regression": ["", "resolution=384,mean=5,std=2"],
    "multilabel": ["", "dataset=csv:/data/photos.csv"],
}


def load(name: str, arg: str) -> ConfigDict:
    return config_lib.load(f"{CONFIGS / name}.py:{arg}")


def test_every_config_file_is_tested():
    assert sorted({**MODES, **FROM_CHECKPOINT}) == FILES


@pytest.mark.parametrize(
    ("name", "arg"), [(name, arg) for name, args in MODES.items() for arg in args]
)
def test_a_recipe_builds_at_full_size(name: str, arg: str):
    config = load(name, arg)
    assert ConfigDict(json.loads(config.to_json())).to_json() == config.to_json()
    check_ops(config.data.ops)
    for evaluator in config.evaluators.values():
        assert evaluator.type in EVALUATORS
        check_ops(evaluator.ops)
    model = config_lib.section_call(build_model, config.model.to_dict(), "model")
    config_lib.section_call(losses.build_loss, config.loss.to_dict(), "loss")
    size = int((re.search(r"(?:crop|resize)\((\d+)", config.data.ops) or [0, 0])[1])
    image = jax.ShapeDtypeStruct((1, size, size, 3), jnp.float32)

    def init(key: jax.Array) -> dict:
        return model.init(key, jnp.zeros(image.shape), train=False)["params"]

    shapes = jax.eval_shape(init, jax.random.key(0))
    section = config.optimizer.to_dict()
    averaged = section.pop("ema_decay", None) is not None
    optimizer = config_lib.section_call(
        build_optimizer, section, "optimizer", params=shapes, total_steps=100_000
    )
    assert len(optimizer.decayed) > 10
    create = functools.partial(TrainState.create, tx=optimizer.tx, averaged=averaged)
    state = jax.eval_shape(create, shapes)
    sizes = {axis: config.mesh[axis] for axis in sharding.AXES}
    mesh = sharding.make_mesh(**sizes)
    places = sharding.tree_shardings(state, mesh)
    assert jax.tree.structure(places) == jax.tree.structure(state)


@pytest.mark.parametrize(
    ("name", "arg"),
    [(name, arg) for name, args in FROM_CHECKPOINT.items() for arg in args],
)
def test_a_recipe_fits_on_a_checkpoint(name: str, arg: str):
    config = load(name, arg)
    assert ConfigDict(json.loads(config.to_json())).to_json() == config.to_json()
    source = Checkpoint(
        params={},
        model={"name": "ViT-B/16", "num_classes": 21_843, "representation_size": 768},
        image_shape=(224, 224, 3),
        preprocessing="decode|resize(224)|value_range(-1, 1)",
    )
    fields = pretrained.fill(config.to_dict(), pretrained.Pretrained(source, ()))
    for section in (fields["data"], *fields["evaluators"].values()):
        check_ops(section["ops"])
        assert "{" not in section["ops"]
    model_fields = {**fields["model"]}
    model_fields["num_classes"] = model_fields["num_classes"] or 10
    model = config_lib.section_call(build_model, model_fields, "model")
    config_lib.section_call(losses.build_loss, config.loss.to_dict(), "loss")
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    section = config.optimizer.to_dict()
    for key in ("ema_decay", "layer_decay", "accumulation_steps", "warmup_percent"):
        section.pop(key, None)
    config_lib.section_call(
        build_optimizer, section, "optimizer", params=shapes, total_steps=1000
    )


# Table 3 of arXiv:2010.11929: rate, epochs, weight decay, dropout.
TABLE_3 = {
    ("vit_b16", "jft"): (8e-4, 7, 0.1, 0.0),
    ("vit_b32", "jft"): (8e-4, 7, 0.1, 0.0),
    ("vit_l32", "jft"): (6e-4, 7, 0.1, 0.0),
    ("vit_l16", "jft"): (4e-4, 14, 0.1, 0.0),
    ("vit_h14", "jft"): (3e-4, 14, 0.1, 0.0),
    **{(n, "i21k"): (1e-3, 90, 0.03, 0.1) for n in PAPER if n != "vit_h14"},
    **{(name, "i1k"): (3e-3, 300, 0.3, 0.1) for name in PAPER},
}


@pytest.mark.parametrize(("name", "dataset"), TABLE_3)
def test_the_paper_recipes_are_the_rows_of_table_3(name: str, dataset: str):
    config = load(name, f"dataset={dataset}")
    found = (
        config.optimizer.lr,
        config.total_epochs,
        config.optimizer.weight_decay,
        config.model.dropout_rate,
    )
    assert found == TABLE_3[name, dataset]
    assert config.data.batch_size == 4096
    assert config.optimizer.warmup_steps == 10_000
    assert (config.optimizer.b1, config.optimizer.b2) == (0.9, 0.999)
    assert config.optimizer.schedule == ("cosine" if dataset == "i1k" else "linear")
    assert config.optimizer.clip_norm == (1.0 if dataset == "i1k" else None)
    assert config.loss.name == ("softmax" if dataset == "i1k" else "sigmoid")
    assert config.model.head_bias == (0.0 if dataset == "i1k" else -10.0)


@pytest.mark.parametrize("name", [*PAPER, "vit_s16_i1k"])
def test_tests_adds_imagenets_test_sets(name: str):
    arg = "tests" if name == "vit_s16_i1k" else "dataset=i1k,tests"
    config = load(name, arg)
    tests = {
        (evaluator.dataset, evaluator.split) for evaluator in config.evaluators.values()
    }
    assert tests == {
        ("tfds:imagenet2012", "train[99%:]"),
        ("tfds:imagenet2012", "validation"),
        ("tfds:imagenet2012_real@label=real_label", "validation"),
        ("tfds:imagenet_v2", "test"),
    }
    assert len({evaluator.ops for evaluator in config.evaluators.values()}) == 1
    plain = load(name, arg.removesuffix("tests").removesuffix(","))
    assert "real" not in plain.evaluators


@pytest.mark.parametrize("name", FILES)
def test_the_docstring_says_what_is_needed(name: str):
    path = CONFIGS / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    doc = module.__doc__ or ""
    assert f"--config=configs/{name}.py" in doc
    assert "Expected" in doc
    assert "Not yet run" in doc or name == "quickstart"
    assert "smoke" in doc


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device compiles faster, where only the path through the code counts."""
    one = functools.partial(sharding.make_mesh, devices=jax.devices()[:1])
    monkeypatch.setattr(sharding, "make_mesh", one)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("name", "arg"),
    [(name, args[0]) for name, args in MODES.items()]
    + [("vit_l16", "dataset=i1k,tests"), ("vit_b32", "dataset=jft")],
)
def test_the_smoke_form_trains_two_steps(name: str, arg: str, workdir: pathlib.Path):
    config = load(name, ",".join(filter(None, [arg, "smoke"])))
    with build.build_run(build.make_blueprint(config), str(workdir)) as run:
        state, stopped = loop.train(run, lambda: False)
    assert not stopped
    assert int(state.step) == 2
    lines = [
        json.loads(line)
        for line in (workdir / "metrics.jsonl").read_text().split("\n")
        if line
    ]
    assert [line["step"] for line in lines if "train/loss" in line] == [1, 2]
    for evaluator in config.evaluators:
        assert any(f"{evaluator}/top1" in line for line in lines)
    assert (workdir / "checkpoints" / "2").is_dir()
    for file in ("config.json", "run.json", "checkpoint.json"):
        assert json.loads((workdir / file).read_text())


@pytest.mark.parametrize("name", sorted(MODES))
def test_the_smoke_form_replaces_the_parts_of_a_mixture(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    real = config_lib.smoke

    def smoke_a_mixture(config: ConfigDict, resolution: int) -> ConfigDict:
        part = {"dataset": "tfds:imagenet21k", "split": "full", "weight": 3}
        other = {**part, "dataset": "tar:/data/web-*.tar", "weight": 1}
        del config.data.dataset, config.data.split
        config.data.mixture = {"web": other, "i21k": part}
        return real(config, resolution)

    monkeypatch.setattr(config_lib, "smoke", smoke_a_mixture)
    data = load(name, "smoke").data
    assert "dataset" not in data
    source = open_mixture(data.mixture.to_dict())
    assert len(source) == 2 * 64
    assert source.mixture is not None
    weights = {part: fields.weight for part, fields in data.mixture.items()}
    assert weights == {"web": 1, "i21k": 3}

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
from vit_jax.build.objective import make_objective
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.data.mixtures import open_mixture
from vit_jax.data.preprocess import check_ops
from vit_jax.errors import UserError
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
    "ablation_positions": [
        "",
        "positions=learned2d,injection=every_layer",
        "positions=relative",
    ],
    "ablation_head": ["", "head=mean,lr=0.003"],
    "ablation_shape": ["", "scale=patch,factor=2", "scale=width,factor=0.25"],
    "ablation_axial": ["patch=32", "patch=16"],
    "ablation_windows": [
        "",
        "windows=fixed,positions=none",
        "windows=sliding,positions=absolute+relative",
    ],
    "ablation_optimizer": ["model=r50x1", "model=r152x2,optimizer=sgd"],
    "masked_patch_b16": [
        "dataset=jft",
        "dataset=i21k,target=small_colours",
        "dataset=i1k,target=pixels",
    ],
    "masked_patch_mnist": ["", "finetune", "tune,target=pixels"],
    "scaling_study": ["model=R50+ViT-L/16,epochs=14", "model=BiT-R152x2,data=i21k"],
    "scaling_study_small": ["model=vit", "model=hybrid,data=1k", "model=bit"],
}

# Recipes whose results are measured.
RUN_HERE = ("quickstart", "masked_patch_mnist", "scaling_study_small")

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


def test_every_config_file_is_listed():
    page = (CONFIGS / "README.md").read_text()
    listed = set()
    for begin, choices, end in re.findall(r"`(\w*)(\{[\w,]+\})?(\w*)\.py`", page):
        listed |= {begin + each + end for each in choices.strip("{}").split(",")}
    assert sorted(listed) == FILES


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
    fields = config.model.to_dict()
    model = config_lib.section_call(build_model, fields, "model")
    wanted = make_objective(config.loss.to_dict(), fields, model, config.data.ops)
    model = build_model(**{**fields, **wanted.model})
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
    # All kernels at least, or nothing.
    assert (len(optimizer.decayed) >= 10) == (config.optimizer.weight_decay > 0)
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


# Rows of Table 3 that the ablations are trained as, and what they change.
TRAINED_AS = {
    "ablation_positions": ("vit_b16", {"positions", "position_injection"}),
    "ablation_head": ("vit_b16", {"pool"}),
    "ablation_axial": ("vit_b32", {"name", "preset", "representation_size"}),
    "ablation_shape": (
        "vit_l32",
        {"depth", "width", "num_heads", "mlp_dim", "patch_size"},
    ),
}


@pytest.mark.parametrize("name", TRAINED_AS)
def test_an_ablation_changes_nothing_but_what_it_is_about(name: str):
    row, changed = TRAINED_AS[name]
    ours, usual = load(name, "").to_dict(), load(row, "dataset=jft").to_dict()
    # Dropout is 0 on JFT; features are evaluated as well.
    usual["model"].pop("dropout_rate")
    evaluators = ours["evaluators"]
    assert evaluators.pop("fewshot")["shots"] == (5,)
    for fields in (ours["model"], usual["model"]):
        for field in changed:
            fields.pop(field, None)
    assert ours == usual


def test_scaled_shapes_are_those_of_the_appendix():
    def shape(arg: str) -> tuple[int, ...]:
        model = load("ablation_shape", arg).model
        fields = ("depth", "width", "mlp_dim", "patch_size", "num_heads")
        assert model.representation_size == model.width
        return tuple(model[field] for field in fields)

    assert shape("") == (8, 1024, 2048, 32, 16)
    assert shape("scale=depth,factor=8") == (64, 1024, 2048, 32, 16)
    assert shape("scale=width,factor=0.5") == (8, 512, 2048, 32, 8)
    assert shape("scale=mlp,factor=4") == (8, 1024, 8192, 32, 16)
    assert shape("scale=patch,factor=2") == (8, 1024, 2048, 16, 16)
    assert shape("scale=all,factor=2") == (16, 2048, 4096, 16, 32)


@pytest.mark.parametrize(
    ("name", "arg", "match"),
    [
        ("ablation_positions", "positions=none,injection=every_layer", "leave injec"),
        ("ablation_positions", "positions=2d", "did you mean|Known: learned"),
        ("ablation_shape", "factor=0.5", "patches of 64 pixels, which do not divide"),
        ("ablation_shape", "factor=3", "'3'; Known: 0.25, 0.5, 1.0"),
        ("ablation_head", "lr=0.5", "'lr': '0.5'; did you mean"),
        ("ablation_axial", "patch=14", "'patch': '14'.* Known: 16, 32"),
        ("ablation_windows", "window=fixed", "'window'; did you mean 'windows'"),
        ("ablation_optimizer", "optimizer=adamw", "did you mean 'adam'"),
        ("vit_s16_i1k", "epochs=100", "'epochs': '100'"),
    ],
)
def test_an_argument_that_is_not_there_is_told(name: str, arg: str, match: str):
    with pytest.raises(UserError, match=match):
        load(name, arg)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(("model", "lr"), [("r50x1", 1e-3), ("r152x2", 6e-4)])
def test_resnets_are_trained_as_in_table_3_or_with_sgd(
    optimizer: str, model: str, lr: float
):
    config = load("ablation_optimizer", f"model={model},optimizer={optimizer}")
    assert config.model.name == f"BiT-{model.upper().replace('X', 'x')}"
    assert (config.total_epochs, config.data.batch_size) == (7, 4096)
    section = config.optimizer
    if optimizer == "adam":
        found = (section.name, section.lr, section.weight_decay, section.schedule)
        assert found == ("adamw", lr, 0.1, "linear")
    else:
        # big_vision for BiT: 0.1 and 1e-4 for 256 images, decay without the rate.
        assert section.name == "sgd"
        assert section.lr == pytest.approx(0.1 * 4096 / 256)
        decay = section.lr * section.weight_decay
        assert decay == pytest.approx(1e-4 * 4096 / 256)


def test_swin_is_trained_as_its_paper_says():
    config = load("ablation_windows", "")
    found = (
        *(config.total_epochs, config.data.batch_size, config.data.mixup),
        *(config.data.cutmix, config.model.drop_path_rate, config.optimizer.lr),
        *(config.optimizer.weight_decay, config.loss.label_smoothing),
    )
    assert found == (300, 1024, 0.8, 1.0, 0.2, 1e-3, 0.05, 0.1)
    assert config.optimizer.warmup_steps == round(20 * 1_281_167 / 1024)


@pytest.mark.parametrize("dataset", ["jft", "i21k", "i1k"])
def test_masked_patches_are_predicted_as_in_appendix_b_1_2(dataset: str):
    config = load("masked_patch_b16", f"dataset={dataset}")
    assert config.loss.to_dict() == {
        "name": "masked_patch",
        "target": "mean_colour",
        "corrupted": 0.5,
    }
    assert (config.total_steps, config.data.batch_size) == (1_000_000, 4096)
    section = config.optimizer
    assert (section.name, section.lr, section.schedule) == ("adam", 2e-4, "cosine")
    assert (section.warmup_steps, section.weight_decay) == (10_000, 0.0)
    assert (config.model.name, config.model.num_classes) == ("ViT-B/16", 0)


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
    assert "Not yet run" in doc or name in RUN_HERE
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
    + [
        ("vit_l16", "dataset=i1k,tests"),
        ("vit_b32", "dataset=jft"),
        ("ablation_positions", "positions=relative"),
        ("ablation_windows", "windows=sliding,positions=absolute"),
        ("ablation_optimizer", "optimizer=sgd"),
    ],
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
        pattern = re.compile(rf"{evaluator}/((\d+shot/)?top1|accuracy)")
        assert any(pattern.fullmatch(key) for line in lines for key in line)
    assert (workdir / "checkpoints" / "2").is_dir()
    for file in ("config.json", "run.json", "checkpoint.json"):
        assert json.loads((workdir / file).read_text())


@pytest.mark.parametrize("name", sorted(MODES))
def test_the_smoke_form_replaces_the_parts_of_a_mixture(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    real = config_lib.smoke

    def smoke_a_mixture(config: ConfigDict, resolution: int, /, **sizes) -> ConfigDict:
        part = {"dataset": "tfds:imagenet21k", "split": "full", "weight": 3}
        other = {**part, "dataset": "tar:/data/web-*.tar", "weight": 1}
        del config.data.dataset, config.data.split
        config.data.mixture = {"web": other, "i21k": part}
        return real(config, resolution, **sizes)

    monkeypatch.setattr(config_lib, "smoke", smoke_a_mixture)
    data = load(name, "smoke").data
    assert "dataset" not in data
    source = open_mixture(data.mixture.to_dict())
    assert len(source) == 2 * 64
    assert source.mixture is not None
    weights = {part: fields.weight for part, fields in data.mixture.items()}
    assert weights == {"web": 1, "i21k": 3}

# SPDX-License-Identifier: Apache-2.0
"""A run that starts from a checkpoint: what it takes, and what starts anew."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from vit_jax import build, config as config_lib, trees
from vit_jax.build import pretrained
from vit_jax.checkpoints import native
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.train import loop

FINETUNE = pathlib.Path(__file__).parent.parent / "configs" / "finetune.py"
TINY = {"width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of a tiny ViT/8 for 16 px with seven classes and a tanh layer."""
    fields = {"name": "ViT-S/8", "preset": "dinov2", "num_classes": 7}
    fields |= {**TINY, "representation_size": 32}
    model = build_model(**fields)
    shapes = jax.eval_shape(
        model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 16, 16, 3), "float32")
    )["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes
    )
    checkpoint = Checkpoint(
        params=params,
        model=fields,
        image_shape=(16, 16, 3),
        preprocessing='decode|resize(16)|normalize("imagenet")',
        class_names=tuple("abcdefg"),
    )
    path = str(tmp_path_factory.mktemp("weights") / "tiny.safetensors")
    native.write(checkpoint, path)
    return path


def config_for(weights: str, args: str = "resolution=32", **changes: Any) -> ConfigDict:
    config = config_lib.load(f"{FINETUNE}:{args},smoke")
    config.init.checkpoint = weights
    for path, value in changes.items():
        node = config
        *parents, key = path.split("__")
        for parent in parents:
            node = node[parent]
        with node.ignore_type():
            node[key] = value
    return config


@pytest.fixture(scope="module")
def started(weights: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The parameters of a run before its first update, and its workdir."""
    workdir = tmp_path_factory.mktemp("run")
    blueprint = build.make_blueprint(config_for(weights))
    with build.build_run(blueprint, str(workdir)) as run:
        params = jax.device_get(run.state.params)
        state, _ = loop.train(run, lambda: False)
    assert int(state.step) == 2
    return {
        "params": trees.flatten(params),
        "workdir": workdir,
        "fields": blueprint.fields,
    }


def test_the_model_and_its_numerics_come_from_the_checkpoint(started: dict):
    model = started["fields"]["model"]
    assert model["name"] == "ViT-S/8"
    assert model["preset"] == "dinov2"
    assert model["depth"] == 2
    # The head is for the classes of the data, the tanh layer is gone.
    assert model["num_classes"] == 10
    assert "representation_size" not in model
    ops = started["fields"]["data"]["ops"]
    assert ops.endswith('|flip_lr|normalize("imagenet")')


def test_the_new_head_is_zero_and_the_trunk_is_the_checkpoints(
    started: dict, weights: str
):
    from vit_jax.convert import load_checkpoint

    params = started["params"]
    loaded = trees.flatten(load_checkpoint(weights).params)
    assert params["head/kernel"].shape == (32, 10)
    assert not params["head/kernel"].any()
    assert "pre_logits/kernel" not in params
    same = [name for name in params if not name.startswith("head/")]
    same.remove("Transformer/posembed_input/pos_embedding")
    for name in same:
        np.testing.assert_array_equal(params[name], loaded[name])


def test_positions_are_resized_as_the_checkpoints_origin_does(
    started: dict, weights: str
):
    from vit_jax import resample
    from vit_jax.convert import load_checkpoint

    table = load_checkpoint(weights).params["Transformer"]["posembed_input"]
    old = table["pos_embedding"]
    new = started["params"]["Transformer/posembed_input/pos_embedding"]
    assert (old.shape, new.shape) == ((1, 5, 32), (1, 17, 32))
    np.testing.assert_array_equal(new[:, 0], old[:, 0])  # the class token's row
    grid = resample.resize_grid(old[0, 1:].reshape(2, 2, 32), (4, 4), "bicubic")
    np.testing.assert_allclose(new[0, 1:].reshape(4, 4, 32), grid, rtol=1e-6)


def test_the_run_describes_itself_for_those_who_use_its_weights(started: dict):
    from vit_jax.convert import load_checkpoint

    checkpoint = load_checkpoint(str(started["workdir"]))
    assert checkpoint.model["num_classes"] == 10
    assert checkpoint.image_shape == (32, 32, 3)
    assert 'normalize("imagenet")' in str(checkpoint.preprocessing)


def test_a_probe_trains_the_head_alone(weights: str):
    blueprint = build.make_blueprint(config_for(weights, "resolution=16,probe"))
    names = set(trees.flatten(blueprint.like.params))
    trained = names - set(blueprint.optimizer.frozen)
    assert trained == {"head/kernel", "head/bias"}


def test_a_config_that_contradicts_the_checkpoint_is_told_both_values(
    weights: str, caplog: pytest.LogCaptureFixture
):
    config = config_for(
        weights,
        model__gelu="tanh",
        data__ops="decode|resize(32)|value_range(-1, 1)",
    )
    start = pretrained.load(config.init.to_dict())
    with_preset = start.checkpoint.model | {"gelu": "erf"}
    start = pretrained.Pretrained(
        Checkpoint(**{**vars(start.checkpoint), "model": with_preset}), start.reset
    )
    fields = pretrained.fill(config.to_dict(), start)
    assert fields["model"]["gelu"] == "tanh"
    assert "config.model.gelu is 'tanh', but the checkpoint has 'erf'" in caplog.text
    assert "value_range(-1, 1), but the checkpoint was trained with norm" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init__checkpoint": None}, "config.init.checkpoint is missing"),
        ({"init__preset": "dinov3"}, "did you mean 'dinov2'"),
        ({"init__rest": ()}, "field of config.init: 'rest'; did you mean 'reset'"),
        ({"optimizer__accumulation_steps": 3}, "a whole number from 1 to"),
        (
            {"optimizer__layer_decay": 0.5, "optimizer__lr_rules": ((".*", 1.0),)},
            "layer_decay and lr_rules",
        ),
        (
            {"early_stopping__metric": "vall/top1"},
            "evaluator in early_stopping.metric 'vall'; did you mean 'val'",
        ),
    ],
)
def test_a_mistake_is_named(weights: str, changes: dict, message: str):
    with pytest.raises(UserError, match=message):
        build.make_blueprint(config_for(weights, **changes))


def test_a_model_of_other_sizes_is_refused_with_names(weights: str):
    blueprint = build.make_blueprint(config_for(weights, model__depth=3))
    model, like = blueprint.fields["model"], blueprint.like.params
    with pytest.raises(UserError, match="encoderblock_2"):
        pretrained.apply(blueprint.pretrained, like, model, (32, 32, 3))


def test_without_a_checkpoint_the_config_is_not_whole():
    config = config_lib.load(f"{FINETUNE}:smoke")
    config.init = None
    with pytest.raises(UserError, match=r"vit_jax\.finetune with --init=CHECKPOINT"):
        build.make_blueprint(config)


# Table 4 of arXiv:2010.11929: steps and learning rates tried.
TABLE_4 = {
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06)),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "pets": (500, (0.001, 0.003, 0.01, 0.03)),
    "flowers": (500, (0.001, 0.003, 0.01, 0.03)),
}


@pytest.mark.parametrize("name", TABLE_4)
def test_the_config_is_table_4(name: str):
    config = config_lib.load(f"{FINETUNE}:dataset={name}")
    assert (config.total_steps, config.sweep.lrs) == TABLE_4[name]
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.momentum) == ("sgd", 0.9)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.0, 1.0)
    assert (optimizer.schedule, config.data.batch_size) == ("cosine", 512)
    assert len(config.sweep.seeds) == 3


def test_table_2_averages_with_a_factor_of_0_9999():
    config = config_lib.load(f"{FINETUNE}:dataset=imagenet,resolution=518,polyak")
    assert config.optimizer.ema_decay == 0.9999
    assert "(518)" in config.data.ops


def test_ones_own_files_get_a_validation_split():
    config = config_lib.load(f"{FINETUNE}:dataset=folder:/data/pets")
    assert config.data.dataset == "folder:/data/pets@holdout=10%"
    assert config.evaluators.val.split == "validation"
    kept = config_lib.load(f"{FINETUNE}:dataset=csv:/data/x.csv@names=n.txt")
    assert kept.data.dataset == "csv:/data/x.csv@names=n.txt"

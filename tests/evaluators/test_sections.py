# SPDX-License-Identifier: Apache-2.0
"""Every type of evaluator in a config, run on a model that is not trained."""

import functools
import pathlib
from typing import Any

import jax
import pytest

from vit_jax import build, config as config_lib
from vit_jax.errors import UserError

QUICKSTART = pathlib.Path(__file__).parents[2] / "configs" / "quickstart.py"
DATA = "synthetic:3@size=28;train=24;test=9"
OPS = "decode|value_range(-1, 1)"


def blueprint(**sections: dict[str, Any]) -> build.Blueprint:
    config = config_lib.load(f"{QUICKSTART}:smoke")
    with config.unlocked():
        for name, section in sections.items():
            config.evaluators[name] = {
                "dataset": DATA,
                "split": "test",
                "ops": OPS,
                **section,
            }
    config.optimizer.ema_decay = 0.9
    return build.make_blueprint(config)


@functools.cache
def metrics() -> dict[str, float]:
    made = blueprint(
        few={"type": "fewshot", "shots": (1, 5), "feature": "block01/output:mean"},
        near={"type": "knn", "k": 3, "every_steps": 1},
        line={"type": "probe"},
    )
    assert made.evaluations["near"].every == 1
    assert made.splits["few"][1] == 9
    state = jax.jit(lambda key: made.create(made.init(key)))(made.init_key)
    found: dict[str, float] = {}
    for evaluation in made.evaluations.values():
        found |= dict(evaluation.run(state))
    return found


def test_metrics_have_the_names_that_users_rely_on():
    expected = {f"test/{m}" for m in ("top1", "top5", "loss", "examples")}
    expected |= {"few/1shot/top1", "few/5shot/top1", "few/examples"}
    expected |= {"near/knn/top1", "near/examples", "line/probe/top1", "line/examples"}
    averaged = {name.replace("/", "_ema/", 1) for name in expected}
    assert set(metrics()) == expected | averaged
    assert metrics()["few/examples"] == 9


def test_averaged_weights_that_are_equal_give_equal_numbers():
    found = metrics()
    for name in ("few/5shot/top1", "near/knn/top1", "line/probe/top1"):
        assert 0.0 <= found[name] <= 1.0
        assert found[name] == found[name.replace("/", "_ema/", 1)]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"type": "fewshott"}, "did you mean 'fewshot'"),
        ({"type": "fewshot", "shot": 5}, "did you mean 'shots'"),
        ({"type": "fewshot", "flip": True}, "field of config.evaluators.few: 'flip'"),
        ({"type": "fewshot", "feature": "prelogits"}, "did you mean 'pre_logits'"),
        ({"type": "fewshot", "train_split": "trian"}, "no split 'trian'"),
        ({"type": "knn", "k": 0}, "k is 0; give a whole number above 0"),
        ({"type": "probe", "l2": -1.0}, "l2 is -1.0; give a number above 0"),
        ({"type": "regression", "opps": ""}, "did you mean 'ops'"),
    ],
)
def test_a_mistake_is_found_before_training(section, message):
    with pytest.raises(UserError, match=message):
        blueprint(few=section)

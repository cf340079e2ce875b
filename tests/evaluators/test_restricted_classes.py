# SPDX-License-Identifier: Apache-2.0
"""A model that may choose among the classes of a split only, as for ImageNet-A."""

import pathlib
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from vit_jax import build, config as config_lib, losses
from vit_jax.evaluators.classification import Evaluator

QUICKSTART = pathlib.Path(__file__).parents[2] / "configs" / "quickstart.py"

# The best of six classes is 0, of those that occur 2, 4 and 4.
LOGITS = np.float32([[9, 0, 3, 0, 1, 0], [9, 0, 1, 0, 3, 8], [9, 9, 1, 9, 2, 9]])
LABELS = np.array([2, 4, 2])


def predict(params: dict, image: jax.Array) -> jax.Array:
    del params
    return image[:, 0, 0, :]


def evaluate(classes: np.ndarray | None, **labels: np.ndarray) -> dict[str, float]:
    def batches() -> Iterator[dict]:
        yield {"image": LOGITS[:, None, None], "mask": np.ones(3, np.float32), **labels}

    evaluator = Evaluator(predict, losses.build_loss(), batches, classes)
    return dict(evaluator.run({}))


def test_absent_classes_do_not_compete():
    free = evaluate(None, label=LABELS)
    assert free["top1"] == 0.0
    found = evaluate(np.array([2, 4]), label=LABELS)
    assert found["top1"] == pytest.approx(2 / 3)
    assert found["top5"] == 1.0
    # Two classes whose logits differ by 2, 2 and -1.
    expected = np.log1p(np.exp([-2.0, -2.0, 1.0])).mean()
    assert found["loss"] == pytest.approx(expected, rel=1e-6)


def test_several_labels_are_restricted_as_well():
    several = np.zeros((3, 6), np.float32)
    several[[0, 0, 1, 2], [2, 4, 4, 2]] = 1
    found = evaluate(np.array([2, 4]), labels=several)
    assert found["top1"] == pytest.approx(2 / 3)
    assert found["examples"] == 3


def test_a_config_asks_for_it():
    """Of 4 examples of 4 classes the right one is always among the five best."""
    config = config_lib.load(f"{QUICKSTART}:smoke")
    config.evaluators.test.dataset = "synthetic:10@size=28;train=64;test=4"
    assert build.make_blueprint(config).evaluators["test"].feed.classes is None
    config.evaluators.test.restrict_classes = True
    blueprint = build.make_blueprint(config)
    classes = blueprint.evaluators["test"].feed.classes
    assert classes is not None
    assert classes.tolist() == [0, 1, 2, 3]
    state = jax.jit(lambda key: blueprint.create(blueprint.init(key)))(
        blueprint.init_key
    )
    found = dict(blueprint.evaluations["test"].run(state))
    assert found["test/examples"] == 4
    assert found["test/top5"] == 1.0

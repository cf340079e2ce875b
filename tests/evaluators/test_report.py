# SPDX-License-Identifier: Apache-2.0
"""The long report of a classifier, whatever the batches and devices."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn
from sklearn import metrics

from tests.evaluators.feeds import feed, several
from vit_jax import losses
from vit_jax.evaluators.regression import Evaluator as Regression
from vit_jax.evaluators.report import Reporter
from vit_jax.evaluators.subject import Subject

NAMES = ("cat", "dog", "owl")


class Spelled(Subject):
    """Logits are the first row of the picture: its red channel, in tenths."""

    def apply(self, params: Any, image: jax.Array) -> tuple[jax.Array, dict]:
        return image[:, 0, :, 0] / 10, {"pre_logits": image[:, 0, 0]}


def spelled() -> Spelled:
    return Spelled(nn.Dense(1), shapes={}, image_shape=(1, 3, 3))


def pictures(logits: np.ndarray) -> np.ndarray:
    tenths = np.round(10 * np.asarray(logits)).astype(np.uint8)
    return np.repeat(tenths[:, None, :, None], 3, axis=-1)


def report(logits, labels, loss: str = "softmax", **settings) -> dict[str, Any]:
    keep = settings.pop("keep", ())
    flip = settings.pop("flip", False)
    examples = feed(pictures(logits), labels, NAMES, **settings)
    built = losses.build_loss(loss)
    reporter = Reporter(spelled(), built, loss, examples, flip, keep)
    found = reporter.gather({})
    return reporter.summarise(found) | {"arrays": found}


@pytest.mark.parametrize(("batch_size", "devices"), [(1, 1), (4, 1), (64, 4)])
def test_one_label_an_example(rng, batch_size: int, devices: int):
    labels = rng.integers(0, 2, 11).astype(np.int32)  # no owl
    logits = rng.uniform(0, 5, (11, 3)).round(1)
    found = report(logits, labels, batch_size=batch_size, devices=devices)
    best = logits.argmax(1)
    assert found["examples"] == 11
    assert found["top1"] == pytest.approx(metrics.accuracy_score(labels, best))
    assert found["top5"] == 1.0
    expected = metrics.log_loss(labels, _softmax(logits), labels=range(3))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["confusion"]["classes"] == list(NAMES)
    matrix = metrics.confusion_matrix(labels, best, labels=range(3))
    assert found["confusion"]["counts"] == matrix.tolist()
    recall = metrics.recall_score(labels, best, labels=[0, 1], average=None)
    by_class = found["per_class"]
    assert [row["class"] for row in by_class] == ["cat", "dog"]
    assert [row["top1"] for row in by_class] == pytest.approx(recall.tolist())
    assert [row["examples"] for row in by_class] == np.bincount(labels).tolist()
    confidence = _softmax(logits).max(1)
    gaps = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            right = (best == labels)[inside]
            gaps += abs(right.sum() - confidence[inside].sum())
    assert found["ece"] == pytest.approx(gaps / 11, abs=1e-6)


def test_several_labels_of_independent_classes(rng):
    rows = [[0, 1], [1], [], [0], [1], [0, 1], [0]]
    targets = several(rows, 3)[np.arange(7)]
    logits = rng.uniform(0, 5, (7, 3)).round(1)
    logits[rng.uniform(size=(7, 3)) < 0.4] = 0.0  # a logit of 0 is no "yes"
    found = report(logits, several(rows, 3), "sigmoid")
    precision = [
        metrics.average_precision_score(targets[:, k], logits[:, k]) for k in range(2)
    ]
    assert found["map"] == pytest.approx(np.mean(precision), rel=1e-6)
    assert found["classes_without_positives"] == 1
    for name in ("micro", "macro"):
        expected = metrics.f1_score(targets, logits > 0, average=name, zero_division=0)
        assert found[f"f1_{name}"] == pytest.approx(expected)
    assert [r["class"] for r in found["per_class"]] == ["cat", "dog"]
    assert found["examples"] == 6  # the one without a label has no best class
    assert "ece" not in found


def test_any_of_several_labels_is_right_for_a_softmax():
    logits = np.array([[3.0, 1, 0], [0, 1, 3], [0, 3, 1]])
    found = report(logits, several([[0, 1], [0], []], 3))
    assert (found["examples"], found["top1"]) == (2, 0.5)
    assert not {"confusion", "per_class", "map"} & set(found)


def test_the_model_may_be_held_to_the_classes_of_the_split():
    logits, labels = np.array([[3.0, 1, 0], [3, 1, 2]]), np.array([1, 2], np.int32)
    examples = feed(pictures(logits), labels, NAMES)
    object.__setattr__(examples, "classes", np.array([1, 2]))
    reporter = Reporter(spelled(), losses.build_loss(), "softmax", examples)
    found = reporter.gather({})
    assert found["best"].tolist() == [[1, 2], [2, 1]]
    result = reporter.summarise(found)
    assert result["top1"] == 1.0
    assert result["loss"] == pytest.approx(np.log1p(np.exp(-1.0)), rel=1e-5)


def test_mirror_images_and_kept_arrays():
    logits, labels = np.array([[3.0, 1, 0], [0, 2, 1]]), np.array([0, 1], np.int32)
    found = report(logits, labels, keep=["logits", "features"], flip=True)["arrays"]
    expected = (logits + logits[:, ::-1]) / 2
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-6)
    # Pixels of the first column, of the picture and of its mirror image.
    np.testing.assert_allclose(found["features"][:, 0], [15.0, 5.0])


@pytest.mark.parametrize(("batch_size", "devices"), [(3, 1), (8, 4)])
def test_a_regression_is_exact_as_well(rng, batch_size: int, devices: int):
    outputs = rng.uniform(0, 20, 10).round(1)
    targets = (outputs + rng.normal(size=10)).astype(np.float32)
    images = pictures(np.repeat(outputs[:, None], 3, axis=1))
    examples = feed(images, targets, batch_size=batch_size, devices=devices)

    def predict(params: Any, image: jax.Array) -> jax.Array:
        return image[:, 0, :1, 0] / 10

    found = dict(Regression(predict, losses.build_loss("mse"), examples).run({}))
    squared = metrics.mean_squared_error(targets, outputs)
    assert found["rmse"] == pytest.approx(np.sqrt(squared), rel=1e-5)
    assert found["loss"] == pytest.approx(squared, rel=1e-5)
    assert found["mae"] == pytest.approx(np.abs(targets - outputs).mean(), rel=1e-5)
    assert found["r2"] == pytest.approx(metrics.r2_score(targets, outputs), rel=1e-5)
    assert found["examples"] == 10


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits)
    return powers / powers.sum(1, keepdims=True)

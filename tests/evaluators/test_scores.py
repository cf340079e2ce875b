# SPDX-License-Identifier: Apache-2.0
"""Scores against scikit-learn and against arithmetic."""

import numpy as np
import pytest
from sklearn import metrics

from vit_jax.evaluators import scores
from vit_jax.evaluators.regression import regression_scores


def test_calibration_error_by_hand():
    # Bins of width 1/15: 0.9 and 0.92 share (13/15, 14/15], 0.5 is in (7/15, 8/15],
    # 1.0 in the last.
    confidence = np.array([0.9, 0.92, 0.5, 1.0])
    right = np.array([True, False, False, True])
    expected = (abs(1.82 - 1) + 0.5 + 0.0) / 4
    assert scores.calibration_error(confidence, right) == pytest.approx(expected)


def test_a_confidence_on_an_edge_belongs_to_the_lower_bin():
    # (0, 1/2] and (1/2, 1]: with 0.5 in the upper bin the two would cancel out.
    error = scores.calibration_error(np.array([0.5, 1.0]), np.array([True, False]), 2)
    assert error == pytest.approx((0.5 + 1.0) / 2)


def test_calibrated_confidences_have_no_error(rng):
    confidence = rng.uniform(0.2, 1, 200_000)
    right = rng.uniform(size=200_000) < confidence
    assert scores.calibration_error(confidence, right) < 0.005


def test_confusion_is_that_of_scikit_learn(rng):
    labels, predictions = rng.integers(0, 4, (2, 100))
    np.testing.assert_array_equal(
        scores.confusion_matrix(labels, predictions, 5),
        metrics.confusion_matrix(labels, predictions, labels=range(5)),
    )


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_that_of_scikit_learn(rng, ties):
    logits = rng.normal(size=(60, 5))
    logits = np.round(logits) if ties else logits
    targets = rng.uniform(size=(60, 5)) < 0.3
    targets[:, 4] = False
    found = scores.average_precision(logits, targets)
    expected = [
        metrics.average_precision_score(targets[:, k], logits[:, k]) for k in range(4)
    ]
    np.testing.assert_allclose(found[:4], expected, rtol=1e-12)
    assert np.isnan(found[4])


def test_f1_is_that_of_scikit_learn(rng):
    targets = rng.uniform(size=(50, 6)) < 0.3
    predicted = rng.uniform(size=(50, 6)) < 0.4
    targets[:, 2] = predicted[:, 2] = False  # nothing to find, nothing found
    micro, macro = scores.f1_scores(predicted, targets)
    for name, found in [("micro", micro), ("macro", macro)]:
        expected = metrics.f1_score(targets, predicted, average=name, zero_division=0)
        assert found == pytest.approx(expected)


@pytest.mark.parametrize("outputs", [1, 3])
def test_errors_of_a_regression_are_those_of_scikit_learn(rng, outputs):
    targets = 1000 + rng.normal(size=(40, outputs))
    if outputs > 1:
        targets[:, 1] = 5.0  # constant: its r2 is 0
    found = targets + rng.normal(size=(40, outputs))
    ours = regression_scores(found, targets)
    assert ours["r2"] == pytest.approx(metrics.r2_score(targets, found))
    assert ours["mae"] == pytest.approx(metrics.mean_absolute_error(targets, found))
    squared = metrics.mean_squared_error(targets, found)
    assert ours["rmse"] == pytest.approx(np.sqrt(squared))

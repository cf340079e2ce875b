# SPDX-License-Identifier: Apache-2.0
"""Scores of predictions that lie on the host, in float64."""

import numpy as np
from jaxtyping import Bool, Float, Int, Num

CALIBRATION_BINS = 15


def calibration_error(
    confidence: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    bins: int = CALIBRATION_BINS,
) -> float:
    """Returns the expected calibration error (Guo et al., arXiv:1706.04599, eq. 3).

    `sum_m |B_m| / n * |accuracy(B_m) - confidence(B_m)|` over bins of equal width,
    `B_m` holding confidences in `((m - 1) / M, m / M]`.
    """
    confidence = confidence.astype(np.float64)
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    surplus = np.bincount(place, confidence - right, minlength=bins)
    return float(np.abs(surplus).sum() / max(len(confidence), 1))


def confusion_matrix(
    labels: Int[np.ndarray, " n"], predictions: Int[np.ndarray, " n"], num_classes: int
) -> Int[np.ndarray, "k k"]:
    """Counts examples by class (row) and prediction (column)."""
    pairs = labels.astype(np.int64) * num_classes + predictions
    counts = np.bincount(pairs, minlength=num_classes * num_classes)
    return counts.reshape(num_classes, num_classes)


def average_precision(
    scores: Num[np.ndarray, "n k"], targets: Bool[np.ndarray, "n k"]
) -> Float[np.ndarray, " k"]:
    """Returns `sum_t (recall_t - recall_(t-1)) * precision_t` of each class.

    t goes over the distinct scores from the largest down, without interpolation, as in
    scikit-learn. A class without a positive example has none: NaN.
    """
    found = np.full(scores.shape[1], np.nan)
    for column in np.flatnonzero(targets.any(axis=0)):
        order = np.argsort(-scores[:, column], kind="stable")
        ranked, hits = scores[order, column], targets[order, column]
        last = np.append(ranked[1:] != ranked[:-1], True)  # of equal scores
        true_positives = np.cumsum(hits)[last]
        precision = true_positives / (np.flatnonzero(last) + 1)
        gained = np.diff(true_positives, prepend=0)
        found[column] = float((gained * precision).sum() / hits.sum())
    return found


def f1_scores(
    predicted: Bool[np.ndarray, "n k"], targets: Bool[np.ndarray, "n k"]
) -> tuple[float, float]:
    """Returns F1 over all decisions (micro) and its mean over classes (macro).

    `2 TP / (2 TP + FP + FN)`, and 0 where nothing is positive nor predicted to be, as
    in scikit-learn.
    """
    both = np.sum(predicted & targets, axis=0)
    either = np.sum(predicted, axis=0) + np.sum(targets, axis=0)
    by_class = 2 * both / np.maximum(either, 1)
    micro = 2 * both.sum() / max(int(either.sum()), 1)
    return float(micro), float(by_class.mean())

# SPDX-License-Identifier: Apache-2.0
"""Few-shot, k-NN and linear evaluation of frozen features.

Features of a support set and of a test split are computed once, exactly (the model in
evaluation mode, padding masked), and a classifier that is fitted to the former is
tested on the latter. The settings are explained in `protocol`, the support sets in
`support`, the classifiers in `ridge`, `knn` and `probe`.

The classes are those of the data set itself, which need not be that of the training.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from vit_jax.data.feed import EvalFeed
from vit_jax.evaluators import support as support_lib
from vit_jax.evaluators.gathering import gather
from vit_jax.evaluators.protocol import Protocol
from vit_jax.evaluators.subject import Features
from vit_jax.evaluators.support import Shots


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of one classifier.

    Attributes:
      shots: Examples a class.
      seed: Number of the support set.
      value: The regulariser, or number of neighbours.
      top1: Rate of test examples whose class is found.
      left_out: How many left-out examples of the support set are right; None if there
        was nothing to choose.
    """

    shots: Shots
    seed: int
    value: float
    top1: float
    left_out: int | None


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a protocol.

    Attributes:
      protocol: What was done.
      trials: Each classifier.
      chosen: The value that was chosen, for each number of shots.
      examples: Test examples.
      shortage: See `support.describe_shortage`.
    """

    protocol: Protocol
    trials: list[Trial]
    chosen: dict[Shots, float]
    examples: int
    shortage: dict[str, Any]

    def summary(self) -> list[dict[str, Any]]:
        """Returns mean and 95 % interval over the seeds, for shots and values."""
        parameter, rows = self.protocol.method.parameter, []
        for shots in self.protocol.shots:
            for value in self.protocol.values:
                rates = [
                    trial.top1
                    for trial in self.trials
                    if trial.shots == shots and trial.value == value
                ]
                mean, interval = mean_and_interval(rates)
                rows.append(
                    {
                        "shots": shots,
                        parameter: value,
                        "top1_mean": mean,
                        "top1_ci95": interval,
                        "chosen": value == self.chosen[shots],
                    }
                )
        return rows

    def results(self) -> list[dict[str, Any]]:
        """Returns a row for each classifier."""
        parameter = self.protocol.method.parameter
        return [
            {
                "shots": trial.shots,
                "seed": trial.seed,
                parameter: trial.value,
                "top1": trial.top1,
                "examples": self.examples,
            }
            | ({} if trial.left_out is None else {"left_out_right": trial.left_out})
            for trial in self.trials
        ]


def mean_and_interval(rates: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean and half of its 95 % interval by Student's t.

    The interval is None for a single number.
    """
    n, mean = len(rates), statistics.mean(rates)
    if n < 2:
        return mean, None
    from scipy.special import stdtrit

    t = float(stdtrit(n - 1, 0.975))
    return mean, t * statistics.stdev(rates) / math.sqrt(n)


class Evaluator:
    """Yields `5shot/top1` for each number of shots (or `knn/top1`), and `examples`.

    It is the mean over the seeds, at the chosen value; where there was a choice, the
    value is `5shot/l2`.
    """

    def __init__(
        self, features: Features, train: EvalFeed, test: EvalFeed, protocol: Protocol
    ):
        """Chooses the support sets.

        Args:
          features: `(params, image) ->` vectors.
          train: The split that support sets are taken from.
          test: The split to test on.
          protocol: What to do.
        """
        self._test, self._protocol = test, protocol
        self._per_example = jax.jit(
            lambda params, batch: {"features": features(params, batch["image"])}
        )
        self._train_labels = support_lib.class_ids(train.source)
        self._test_labels = support_lib.class_ids(test.source)
        self.supports: dict[tuple[Shots, int], np.ndarray] = {
            (shots, seed): support_lib.select(
                self._train_labels, shots, seed, protocol.shuffled
            )
            for shots in protocol.shots
            for seed in range(protocol.seeds)
        }
        # Only images that are in some support set go through the model.
        self._rows = np.unique(np.concatenate(list(self.supports.values())))
        self._support = train.take(self._rows)
        self._shortage = support_lib.describe_shortage(
            self._train_labels,
            self._test_labels,
            protocol.shots,
            train.source.class_names,
        )
        _log_shortage(self._shortage, train.source.description)

    def run(self, params: Any) -> Iterator[tuple[str, float]]:
        """Yields each metric by name."""
        report = self.evaluate(params)
        for row in report.summary():
            if row["chosen"]:
                name = self._protocol.metric(row["shots"])
                yield f"{name}/top1", row["top1_mean"]
                if len(self._protocol.values) > 1:
                    parameter = self._protocol.method.parameter
                    yield f"{name}/{parameter}", float(row[parameter])
        yield "examples", float(report.examples)

    def evaluate(self, params: Any) -> Report:
        """Computes the features and fits every classifier."""
        support = self._vectors(params, self._support)
        test = self._vectors(params, self._test)
        return compare(
            self._protocol,
            {
                key: (
                    support[np.searchsorted(self._rows, rows)],
                    self._train_labels[rows],
                )
                for key, rows in self.supports.items()
            },
            (test, self._test_labels),
            self._shortage,
        )

    def _vectors(self, params: Any, feed: EvalFeed) -> np.ndarray:
        batches, size = feed.batches(), len(feed.source)
        return gather(self._per_example, params, batches, size)["features"]


Samples = tuple[np.ndarray, np.ndarray]
"""Features (n, d) with the class of each (n,)."""


def compare(
    protocol: Protocol,
    supports: dict[tuple[Shots, int], Samples],
    test: Samples,
    shortage: dict[str, Any],
) -> Report:
    """Fits the classifiers of every support set and tests them.

    Args:
      protocol: What to do.
      supports: For shots and seed, features and classes.
      test: Those to test on.
      shortage: For the report.
    """
    queries, truth = test
    trials: list[Trial] = []
    chosen: dict[Shots, float] = {}
    for shots in protocol.shots:
        totals = np.zeros(len(protocol.values), np.int64)
        for seed in range(protocol.seeds):
            features, labels = supports[shots, seed]
            found, right = protocol.method.classify(
                features, labels, queries, protocol.values
            )
            counts = [int(each.sum()) for each in right]
            totals += counts or 0
            trials += [
                Trial(
                    shots,
                    seed,
                    value,
                    float(np.mean(found[index] == truth)),
                    counts[index] if counts else None,
                )
                for index, value in enumerate(protocol.values)
            ]
        chosen[shots] = protocol.choose(totals.tolist())
    return Report(protocol, trials, chosen, len(truth), shortage)


def _log_shortage(shortage: dict[str, Any], description: str) -> None:
    absent = shortage["absent_classes"]
    if absent:
        logging.warning(
            "%d classes have no example in %s, so their test examples count as wrong: "
            "%s",
            len(absent),
            description,
            _shown(absent),
        )
    for shots, names in shortage["short_classes"].items():
        if names:
            logging.info(
                "%s shots: %d classes have fewer and give all that they have: %s",
                shots,
                len(names),
                _shown(names),
            )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")

# SPDX-License-Identifier: Apache-2.0
"""Exact metrics of a classifier whose classes are independent yes-or-no questions."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.data.feed import TrainFeed, open_eval
from vit_jax.data.labels import MultiHot
from vit_jax.errors import UserError
from vit_jax.evaluators.opened import Opened
from vit_jax.evaluators.report import Reporter
from vit_jax.evaluators.subject import Subject
from vit_jax.losses import Loss


class Evaluator:
    """Yields `map`, `f1_micro`, `f1_macro`, `loss` and `examples` of a split.

    `map` is the mean over classes with a positive example of the average precision; F1
    counts a class as predicted where its probability is above one half. Examples
    without any label count like all others.
    """

    def __init__(self, reporter: Reporter):
        """Compiles nothing yet."""
        self._reporter = reporter

    def run(self, params: Any) -> Iterator[tuple[str, float]]:
        """Goes over the split once and yields each metric by name."""
        found = self._reporter.gather(params)
        result = self._reporter.summarise(found)
        for name in ("map", "f1_micro", "f1_macro"):
            yield name, result[name]
        yield "loss", float(found["loss"].mean(dtype=np.float64))
        yield "examples", float(len(found["loss"]))


def open_multilabel(  # noqa: PLR0913 - the arguments are a section of the config
    *,
    dataset: str,
    split: str,
    ops: str,
    train: TrainFeed,
    num_classes: int | None,
    batch_size: int | None = None,
    data_dir: str | None = None,
    flip: bool = False,
) -> Opened:
    """Opens the type `multilabel`, for the loss `sigmoid`.

    Args:
      dataset: A DATASET whose examples have several labels.
      split: Such as `test`.
      ops: The preprocessing.
      train: The training data.
      num_classes: Classes that labels must lie in.
      batch_size: Images at a time; None takes that of training.
      data_dir: Where prepared TensorFlow Datasets lie.
      flip: Whether logits are the mean over each image and its mirror image.

    Raises:
      UserError: Whatever is wrong with the data or the ops, or one label an example.
    """
    feed = open_eval(
        dataset=dataset,
        split=split,
        ops=ops,
        train=train,
        num_classes=num_classes,
        batch_size=batch_size,
        data_dir=data_dir,
    )
    if not isinstance(feed.source.labels, MultiHot):
        raise UserError(
            f"{feed.source.description} has one label an example, and the evaluator "
            "type multilabel is for several; use type classification"
        )

    def bind(subject: Subject, loss: Loss) -> Evaluator:
        return Evaluator(Reporter(subject, loss, "sigmoid", feed, flip))

    return Opened(feed, bind)

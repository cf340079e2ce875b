# SPDX-License-Identifier: Apache-2.0
"""Exact metrics of a regression over a whole split.

Predictions and targets are brought to the host and compared in float64, so the result
does not depend on batch size, devices or processes.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from vit_jax.data.feed import EvalFeed, TrainFeed, open_eval
from vit_jax.evaluators.classification import Batch, Predict, with_mirror_images
from vit_jax.evaluators.gathering import gather
from vit_jax.evaluators.opened import Opened
from vit_jax.evaluators.subject import Subject
from vit_jax.losses import Loss, batch_targets


class Evaluator:
    """Yields `rmse`, `mae`, `r2`, `loss` and `examples` of a split."""

    def __init__(
        self, predict: Predict, loss: Loss, feed: EvalFeed, flip: bool = False
    ):
        """Compiles nothing yet.

        Args:
          predict: `(params, image) ->` outputs in evaluation mode.
          loss: `(outputs, batch) ->` loss of each example.
          feed: The split.
          flip: Whether outputs are the mean over each image and its mirror image.
        """
        predict = with_mirror_images(predict) if flip else predict
        self._feed = feed

        def per_example(params: Any, batch: Batch) -> dict[str, jax.Array]:
            outputs = predict(params, batch["image"])
            return {
                "outputs": outputs,
                "targets": batch_targets("mse", batch, outputs.shape[-1]),
                "loss": loss(outputs, batch),
            }

        self._per_example = jax.jit(per_example)

    def gather(self, params: Any) -> dict[str, np.ndarray]:
        """Returns `outputs` and `targets` (n, k), and `loss` (n,), in order."""
        batches, size = self._feed.batches(), len(self._feed.source)
        return gather(self._per_example, params, batches, size)

    def run(self, params: Any) -> Iterator[tuple[str, float]]:
        """Goes over the split once and yields each metric by name."""
        yield from self.summarise(self.gather(params)).items()

    def summarise(self, found: dict[str, np.ndarray]) -> dict[str, float]:
        """Turns the arrays of `gather` into numbers."""
        return {
            **regression_scores(found["outputs"], found["targets"]),
            "loss": float(found["loss"].mean(dtype=np.float64)),
            "examples": float(len(found["loss"])),
        }


def regression_scores(
    outputs: Float[np.ndarray, "n k"], targets: Float[np.ndarray, "n k"]
) -> dict[str, float]:
    """Returns errors in the unit of the targets, and the share that is explained.

    `rmse` and `mae` are over all outputs of all examples. `r2` is 1 minus the squared
    error over the squared deviation from the mean, averaged over the k outputs; a
    target that is constant has an r2 of 1 if it is met exactly and else 0, as
    scikit-learn has it.
    """
    error = outputs.astype(np.float64) - targets
    deviation = targets.astype(np.float64) - targets.mean(axis=0, dtype=np.float64)
    squares, total = np.square(error).sum(axis=0), np.square(deviation).sum(axis=0)
    constant = np.where(squares == 0, 1.0, 0.0)
    explained = 1.0 - squares / np.where(total > 0, total, 1.0)
    return {
        "rmse": float(np.sqrt(np.square(error).mean())),
        "mae": float(np.abs(error).mean()),
        "r2": float(np.where(total > 0, explained, constant).mean()),
    }


def open_regression(  # noqa: PLR0913 - the arguments are a section of the config
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
    """Opens the type `regression`, for the loss `mse`.

    Args:
      dataset: A DATASET with targets.
      split: Such as `test`.
      ops: The preprocessing.
      train: The training data.
      num_classes: Classes that labels must lie in, or None for other targets.
      batch_size: Images at a time; None takes that of training.
      data_dir: Where prepared TensorFlow Datasets lie.
      flip: Whether outputs are the mean over each image and its mirror image.

    Raises:
      UserError: Whatever is wrong with the data or the ops.
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

    def bind(subject: Subject, loss: Loss) -> Evaluator:
        return Evaluator(subject.predict, loss, feed, flip)

    return Opened(feed, bind)

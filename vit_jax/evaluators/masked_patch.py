# SPDX-License-Identifier: Apache-2.0
"""How well a model predicts the masked patches of a split.

The corruption of an example is drawn from its row in the split alone, so every
evaluation of every run asks the same questions, whatever the batch size or devices.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from vit_jax.data.feed import EvalFeed, TrainFeed, eval_feed
from vit_jax.data.pixel_range import exact_pixel_range
from vit_jax.data.sources import check_source, open_source
from vit_jax.errors import UserError
from vit_jax.evaluators.gathering import Batch, gather
from vit_jax.evaluators.opened import Opened
from vit_jax.evaluators.subject import Subject
from vit_jax.losses import Loss
from vit_jax.masked_patch import MaskedPatches


class Evaluator:
    """Yields `loss`, `accuracy` (of classes of colours) and `examples` of a split."""

    def __init__(self, subject: Subject, objective: MaskedPatches, feed: EvalFeed):
        """Compiles nothing yet.

        Args:
          subject: The model, which has a head for patches.
          objective: What it predicts.
          feed: The split.
        """
        self._feed = feed
        root = jax.random.key(0)

        def per_example(params: Any, batch: Batch) -> dict[str, jax.Array]:
            keys = jax.vmap(lambda row: jax.random.fold_in(root, row))(batch["row"])
            corrupted = objective.corrupt(keys, batch)
            applied: Any = subject.model.apply(
                {"params": params},
                batch["image"],
                train=False,
                patch_source=corrupted["patch_source"],
            )
            predictions = applied[1]["patch_predictions"]
            found = {"loss": objective(predictions, corrupted)}
            if objective.target != "pixels":
                found["accuracy"] = objective.accuracy(predictions, corrupted)
            return found

        self._per_example = jax.jit(per_example)

    def run(self, params: Any) -> Iterator[tuple[str, float]]:
        """Goes over the split once and yields each metric by name."""
        batches, size = self._feed.batches(), len(self._feed.source)
        found = gather(self._per_example, params, batches, size)
        for name, values in found.items():
            yield name, float(values.mean(dtype=np.float64))
        yield "examples", float(size)


def open_masked_patch(
    *,
    dataset: str,
    split: str,
    ops: str,
    train: TrainFeed,
    num_classes: int | None,
    batch_size: int | None = None,
    data_dir: str | None = None,
) -> Opened:
    """Opens the type `masked_patch`, for the loss of that name.

    Args:
      dataset: A DATASET; its labels are not looked at.
      split: Such as `test`.
      ops: The preprocessing.
      train: The training data.
      num_classes: Not looked at.
      batch_size: Images at a time; None takes that of training.
      data_dir: Where prepared TensorFlow Datasets lie.

    Raises:
      UserError: Whatever is wrong with the data or the ops, pixels of another range
        than those of training, or, when bound, another loss.
    """
    del num_classes
    if exact_pixel_range(ops) != exact_pixel_range(train.ops):
        raise UserError(
            f"the evaluator's ops {ops!r} give pixels another range than those of "
            f"training, {train.ops!r}; end both with the same value_range or normalize"
        )
    source = open_source(
        dataset,
        split,
        class_names=train.source.class_names,
        data_dir=data_dir,
        lenient=True,
    )
    check_source(source)
    feed = eval_feed(source, ops, train.mesh, batch_size or train.batch_size)

    def bind(subject: Subject, loss: Loss) -> Evaluator:
        if not isinstance(loss, MaskedPatches):
            raise UserError(
                "an evaluator of the type 'masked_patch' is for the loss of that name; "
                'set config.loss.name to "masked_patch", or type to "classification"'
            )
        return Evaluator(subject, loss, feed)

    return Opened(feed, bind)

# SPDX-License-Identifier: Apache-2.0
"""Exact classification metrics over a whole split.

The last batch is padded and masked, and sums over examples are divided at the end, so
the result does not depend on batch size, devices or processes. More than training logs
is in `report`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vit_jax.data.feed import TrainFeed, open_eval
from vit_jax.evaluators.opened import Opened
from vit_jax.evaluators.subject import Subject
from vit_jax.losses import Loss

Batch = dict[str, Any]


Predict = Callable[[Any, Float[Array, "b h w c"]], Float[Array, "b k"]]


class Evaluator:
    """Yields `top1`, `top5`, `loss` and `examples` of a split.

    An example with several labels counts as right when its best class is one of
    them, as for ImageNet ReaL; one without any label is left out.
    """

    def __init__(
        self,
        predict: Predict,
        loss: Callable[[Float[Array, "b k"], Batch], Float[Array, " b"]],
        batches: Callable[[], Iterator[Batch]],
        classes: Int[np.ndarray, " c"] | None = None,
        flip: bool = False,
    ):
        """Compiles nothing yet.

        Args:
          predict: `(params, image) ->` logits in evaluation mode.
          loss: `(logits, batch) ->` loss of each example.
          batches: Starts one pass over the split: device batches with `image`,
            `label` or `labels`, and `mask`.
          classes: The only classes that the model may choose among; None for all.
            ImageNet-A and -R are scored so, on their 200 of the 1,000 classes.
          flip: Whether logits are the mean over each image and its mirror image.
        """
        self._batches = batches
        predict = with_mirror_images(predict) if flip else predict

        def sums(params: Any, batch: Batch) -> dict[str, jax.Array]:
            logits = predict(params, batch["image"])
            if classes is not None:
                targets = _targets(batch, logits.shape[-1])[:, classes]
                logits, batch = logits[:, classes], {**batch, "labels": targets}
            return _masked_sums(logits, loss(logits, batch), batch)

        self._sums = jax.jit(sums)

    def run(self, params: Any) -> Iterator[tuple[str, float]]:
        """Goes over the split once and yields each metric by name."""
        totals: dict[str, float] = {}
        for batch in self._batches():
            sums = jax.device_get(self._sums(params, batch))
            for name, value in sums.items():
                # Summed in float64: a count of 14 million is exact.
                totals[name] = totals.get(name, 0.0) + float(value)
        examples = totals.pop("examples", 0.0)
        for name, total in totals.items():
            yield name, total / max(examples, 1.0)
        yield "examples", examples


def open_classification(  # noqa: PLR0913 - the arguments are a section of the config
    *,
    dataset: str,
    split: str,
    ops: str,
    train: TrainFeed,
    num_classes: int | None,
    batch_size: int | None = None,
    data_dir: str | None = None,
    restrict_classes: bool = False,
    flip: bool = False,
) -> Opened:
    """Opens the type `classification`; its arguments are those of `open_eval`.

    Args:
      dataset: A DATASET.
      split: Such as `test`.
      ops: The preprocessing.
      train: The training data.
      num_classes: Classes that labels must lie in, or None for other targets.
      batch_size: Images at a time; None takes that of training.
      data_dir: Where prepared TensorFlow Datasets lie.
      restrict_classes: Whether the model chooses among the classes that occur in the
        split only.
      flip: Whether logits are the mean over each image and its mirror image.

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
        restrict_classes=restrict_classes,
    )

    def bind(subject: Subject, loss: Loss) -> Evaluator:
        return Evaluator(subject.predict, loss, feed.batches, feed.classes, flip)

    return Opened(feed, bind)


def with_mirror_images(predict: Predict) -> Predict:
    """Makes logits that are the mean of those of an image and of its mirror image."""

    def predict_both(
        params: Any, image: Float[Array, "b h w c"]
    ) -> Float[Array, "b k"]:
        mirrored = predict(params, image[:, :, ::-1])
        return (predict(params, image) + mirrored) / 2

    return predict_both


def _masked_sums(
    logits: Float[Array, "b k"], losses: Float[Array, " b"], batch: Batch
) -> dict[str, jax.Array]:
    """Returns sums over the real examples of a batch."""
    classes = logits.shape[-1]
    targets = _targets(batch, classes)
    mask = batch["mask"] * (targets.sum(axis=-1) > 0)
    _, best = jax.lax.top_k(logits, min(5, classes))
    hits = jnp.take_along_axis(targets, best, axis=-1) > 0  # (b, 5)
    # where, not a product: a padded image may give any loss, even one that is NaN.
    return {
        "top1": jnp.sum(hits[:, 0] * mask),
        "top5": jnp.sum(hits.any(axis=-1) * mask),
        "loss": jnp.sum(jnp.where(mask > 0, losses, 0.0)),
        "examples": jnp.sum(mask),
    }


def _targets(batch: Batch, num_classes: int) -> Float[Array, "b k"]:
    """Returns 1 for each label of each example, 0 elsewhere."""
    if "labels" in batch:
        return batch["labels"]
    return jax.nn.one_hot(batch["label"], num_classes)

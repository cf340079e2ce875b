# SPDX-License-Identifier: Apache-2.0
"""The data of a run opened again: what the model says, and what it was shown."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, UInt8

from vit_jax import losses, sharding
from vit_jax.build.evaluators import open_evaluators
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.data.feed import EvalFeed, TrainFeed, open_train
from vit_jax.errors import UserError
from vit_jax.evaluators.frozen import Frozen, freeze
from vit_jax.evaluators.gathering import gather
from vit_jax.evaluators.report import Reporter
from vit_jax.losses import batch_targets
from vit_jax.plots.pixels import visible
from vit_jax.report.facts import Facts

TRAINING_PICTURES = 24
HARDEST = 12
_BATCH = 64


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture and what is known and said about it.

    Attributes:
      pixels: As the model sees it.
      name: Where it comes from.
      truth: Its labels.
      said: The likeliest classes with their probabilities.
    """

    pixels: UInt8[np.ndarray, "h w c"]
    name: str
    truth: str
    said: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Tested:
    """What the model says about the pictures of an evaluator.

    Attributes:
      evaluator: Its name.
      split: Data set and split.
      examples: How many pictures were looked at.
      of: How many there are.
      confusion: Names of the classes, and counts by class (row) and answer; None
        where there are too many classes or several labels a picture.
      wrong: The wrong answers that it was surest of.
      right: The right answers that it was least sure of.
      inputs: Some inputs of the model, evenly spread over the split.
    """

    evaluator: str
    split: str
    examples: int
    of: int
    confusion: tuple[Sequence[str], np.ndarray] | None
    wrong: list[Picture]
    right: list[Picture]
    inputs: Float[np.ndarray, "n h w c"]


def open_training(facts: Facts, mesh: Mesh) -> TrainFeed:
    """Opens the training data as the run did, in smaller batches.

    Raises:
      UserError: The data is not there any more, or has changed.
    """
    data = dict(facts.config["data"])
    parts = sharding.batch_parts(mesh)
    few = -(-TRAINING_PICTURES // parts) * parts
    data["batch_size"] = min(few, data["batch_size"])
    loss = (facts.config.get("loss") or {}).get("name")
    return open_train(
        **data,
        mesh=mesh,
        seed=facts.config.get("seed") or 0,
        num_classes=facts.config["model"].get("num_classes"),
        has_classes=loss not in ("mse", "masked_patch"),
    )


def training_pictures(train: TrainFeed) -> list[Picture]:
    """Returns the first pictures of the run, augmented as they were then."""
    with contextlib.closing(train.host_batches(0)) as batches:
        batch = next(batches)
    images = np.asarray(batch["image"])[:TRAINING_PICTURES]
    targets = batch.get("labels", batch.get("label"))
    if targets is None:
        return [Picture(pixels, "", "") for pixels in visible(images, train.ops)]
    names = train.source.class_names
    return [
        Picture(pixels, "", _name_of(target, names))
        for pixels, target in zip(visible(images, train.ops), targets, strict=False)
    ]


def evaluator_of_classes(facts: Facts) -> str | None:
    """Returns the name of the first evaluator of classes, None if there is none."""
    sections = facts.config.get("evaluators") or {}
    names = [n for n, s in sections.items() if s.get("type") == "classification"]
    return names[0] if names else None


def test(facts: Facts, checkpoint: Checkpoint, train: TrainFeed, limit: int) -> Tested:
    """Asks the model about the pictures of the first evaluator of classes.

    Args:
      facts: The run.
      checkpoint: Its weights.
      train: The training data, which names the classes.
      limit: How many pictures to look at, evenly spread over the split.

    Raises:
      UserError: No evaluator of classes, or data that is gone or has changed.
    """
    sections, name = facts.config["evaluators"], evaluator_of_classes(facts)
    if name is None:
        raise UserError("the config has no evaluator of classes; add one")
    opened = open_evaluators({name: sections[name]}, train, train.num_classes)[name]
    total = len(opened.feed.source)
    feed = opened.feed
    if limit < total:
        feed = feed.take(_spread(total, limit))
    frozen = freeze(checkpoint, train.mesh)
    reporter = Reporter(
        frozen.subject,
        losses.build_loss(checkpoint.loss),
        checkpoint.loss,
        feed,
        bool(sections[name].get("flip")),
    )
    found = reporter.gather(frozen.params)
    confusion = reporter.summarise(found).get("confusion")
    sure, hit = found["confidence"], found["hit"][:, 0]
    labelled = found["labels"] > 0
    wrong = _first(-sure, labelled & ~hit)
    right = _first(sure, labelled & hit)
    few = _spread(len(feed.source), min(64, len(feed.source)))
    rows = np.concatenate([wrong, right, few])
    pictures, inputs = _show(feed.take(rows), frozen, checkpoint)
    return Tested(
        evaluator=name,
        split=opened.feed.source.description,
        examples=len(feed.source),
        of=total,
        confusion=confusion and (confusion["classes"], np.asarray(confusion["counts"])),
        wrong=pictures[: len(wrong)],
        right=pictures[len(wrong) : len(wrong) + len(right)],
        inputs=inputs[len(wrong) + len(right) :],
    )


def _show(
    feed: EvalFeed, frozen: Frozen, checkpoint: Checkpoint
) -> tuple[list[Picture], np.ndarray]:
    """Returns all that is shown of some pictures, and them as inputs."""
    sigmoid = checkpoint.loss == "sigmoid"

    @jax.jit
    def per_example(params: Any, batch: Any) -> dict[str, Any]:
        logits = frozen.subject.predict(params, batch["image"])
        probabilities = jax.nn.sigmoid(logits) if sigmoid else jax.nn.softmax(logits)
        return {
            "image": batch["image"],
            "probabilities": probabilities,
            "targets": batch_targets("softmax", batch, logits.shape[-1]),
        }

    size = len(feed.source)
    found = gather(per_example, frozen.params, feed.batches(), size)
    names = feed.source.class_names
    shown = []
    for row, name in enumerate(feed.source.names(np.arange(size))):
        probabilities = found["probabilities"][row]
        best = np.argsort(-probabilities, kind="stable")[:3]
        said = tuple((_name_of(int(k), names), float(probabilities[k])) for k in best)
        pixels = visible(found["image"][row], feed.ops)
        truth = _name_of(found["targets"][row], names)
        shown.append(Picture(pixels, name, truth, said))
    return shown, np.asarray(found["image"], np.float32)


def _first(order: np.ndarray, among: np.ndarray) -> np.ndarray:
    rows = np.flatnonzero(among)
    return rows[np.argsort(order[rows], kind="stable")][:HARDEST]


def _spread(total: int, count: int) -> np.ndarray:
    return np.arange(count) * total // count


def _name_of(target: Any, names: Sequence[str] | None) -> str:
    if np.ndim(target):
        return ", ".join(_name_of(k, names) for k in np.flatnonzero(target)[:3])
    if np.issubdtype(np.asarray(target).dtype, np.floating):
        return f"{target:.4g}"
    if target == -1:  # without a label
        return ""
    return names[int(target)] if names else str(int(target))

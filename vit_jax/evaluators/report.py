# SPDX-License-Identifier: Apache-2.0
"""All that can be said about a classifier on a split, from one exact pass.

Training logs the few numbers of `classification`; `python -m vit_jax.evaluate` writes
these.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.feed import EvalFeed
from vit_jax.data.labels import MultiHot
from vit_jax.evaluators import scores
from vit_jax.evaluators.classification import Batch
from vit_jax.evaluators.gathering import gather
from vit_jax.evaluators.subject import Subject
from vit_jax.losses import Loss, batch_targets

CONFUSION_CLASSES = 200
"""Above so many classes the confusion matrix is left out of the report."""


@dataclasses.dataclass(frozen=True)
class Reporter:
    """Evaluates a classifier at length.

    Attributes:
      subject: The model.
      loss: `(logits, batch) ->` loss of each example.
      loss_name: `softmax` or `sigmoid`: how logits become probabilities.
      feed: The split.
      flip: Whether logits are the mean over each image and its mirror image.
      keep: Arrays to keep for each example: `logits`, `features` or both.
    """

    subject: Subject
    loss: Loss
    loss_name: str
    feed: EvalFeed
    flip: bool = False
    keep: Sequence[str] = ()

    def gather(self, params: Any) -> dict[str, np.ndarray]:
        """Returns arrays of the examples in the order of the split.

        Returns:
          `best` (n, 5): the likeliest classes; `hit` (n, 5): whether each is a label;
          `confidence` (n,): the probability of the first; `loss` (n,); `labels` (n,):
          how many there are; and what `keep` asks for. With several labels an example
          `logits` and `targets` (n, k) too.
        """
        batches, size = self.feed.batches(), len(self.feed.source)
        return gather(jax.jit(self._per_example), params, batches, size)

    @property
    def several(self) -> bool:
        """Whether examples have several labels."""
        return isinstance(self.feed.source.labels, MultiHot)

    def _per_example(self, params: Any, batch: Batch) -> dict[str, Any]:
        logits, out = self.subject.apply(params, batch["image"])
        features = out["pre_logits"]
        if self.flip:
            mirrored, out = self.subject.apply(params, batch["image"][:, :, ::-1])
            logits = (logits + mirrored) / 2
            features = (features + out["pre_logits"]) / 2
        targets = batch_targets("softmax", batch, logits.shape[-1])
        classes = self.feed.classes
        if classes is not None:
            logits, targets = logits[:, classes], targets[:, classes]
        _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
        sigmoid = self.loss_name == "sigmoid"
        probability = jax.nn.sigmoid(logits) if sigmoid else jax.nn.softmax(logits)
        names = best if classes is None else jnp.asarray(classes)[best]
        found = {
            "best": names.astype(jnp.int32),
            "hit": jnp.take_along_axis(targets, best, axis=-1) > 0,
            "confidence": probability.max(axis=-1),
            "loss": self.loss(logits, {**batch, "labels": targets}),
            "labels": (targets > 0).sum(axis=-1),
        }
        kept = {"logits": logits, "features": features}
        found |= {name: kept[name] for name in self.keep}
        if self.several and sigmoid:
            found |= {"logits": logits, "targets": targets > 0}
        return found

    def summarise(self, found: dict[str, np.ndarray]) -> dict[str, Any]:
        """Turns the arrays of `gather` into numbers.

        Examples without a label are left out, as those of ImageNet ReaL.

        Returns:
          `examples`, `top1`, `top5`, `loss`; `ece` for a softmax; for one label an
          example `per_class` and, if there are few classes, `confusion`; for several
          independent ones `map`, `f1_micro`, `f1_macro` and `per_class`.
        """
        kept = found["labels"] > 0
        hit: np.ndarray = found["hit"][kept]
        result: dict[str, Any] = {
            "examples": int(kept.sum()),
            "top1": _mean(hit[:, 0]),
            "top5": _mean(np.any(hit, axis=1)),
            "loss": _mean(found["loss"][kept]),
        }
        if self.loss_name == "softmax":
            result["ece"] = scores.calibration_error(
                found["confidence"][kept], hit[:, 0]
            )
        if "targets" in found:
            return result | self._several_labels(found)
        return result if self.several else result | self._one_label(found)

    def _one_label(self, found: dict[str, np.ndarray]) -> dict[str, Any]:
        labels = np.asarray(self.feed.source.labels)
        right = found["best"][:, 0] == labels
        count = int(max(labels.max(), found["best"].max())) + 1
        names = self.feed.source.class_names or tuple(map(str, range(count)))
        examples = np.bincount(labels, minlength=len(names))
        hits = np.bincount(labels, right, minlength=len(names))
        result: dict[str, Any] = {
            "per_class": [
                {"class": name, "examples": int(n), "top1": float(hit / n)}
                for name, n, hit in zip(names, examples, hits, strict=True)
                if n
            ]
        }
        if len(names) <= CONFUSION_CLASSES:
            matrix = scores.confusion_matrix(labels, found["best"][:, 0], len(names))
            result["confusion"] = {"classes": list(names), "counts": matrix.tolist()}
        return result

    def _several_labels(self, found: dict[str, np.ndarray]) -> dict[str, Any]:
        logits, targets = found["logits"], found["targets"]
        precision = scores.average_precision(logits, targets)
        known = ~np.isnan(precision)
        # A probability above one half is a logit above 0.
        micro, macro = scores.f1_scores(logits > 0, targets)
        names = self.feed.source.class_names or tuple(map(str, range(len(known))))
        if self.feed.classes is not None:
            names = [names[number] for number in self.feed.classes]
        return {
            "map": _mean(precision[known]),
            "f1_micro": micro,
            "f1_macro": macro,
            "classes_without_positives": int((~known).sum()),
            "per_class": [
                {"class": names[i], "examples": int(n), "average_precision": float(ap)}
                for i, (n, ap) in enumerate(
                    zip(targets.sum(axis=0), precision, strict=True)
                )
                if n
            ],
        }


def _mean(values: Any) -> float:
    return float(np.mean(values, dtype=np.float64)) if len(values) else 0.0

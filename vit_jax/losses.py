# SPDX-License-Identifier: Apache-2.0
"""Losses, one float32 number for each example.

Sums over classes, never over examples: the step weighs examples by the batch's `mask`
and takes the mean, so that padding and unequal micro-batches count rightly.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num, Shaped

from vit_jax.errors import UserError, unknown

Loss = Callable[[Float[Array, "b k"], Mapping[str, Array]], Float[Array, " b"]]


def softmax_cross_entropy(
    logits: Float[Array, "b k"], targets: Float[Array, "b k"]
) -> Float[Array, " b"]:
    """Returns `-sum_k targets * log_softmax(logits)`, the loss of one label of k.

    Targets that do not sum to 1 weigh the example by their sum; a row of zeros, such
    as the one-hot of a label outside 0..k-1, costs nothing.
    """
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.sum(targets.astype(jnp.float32) * log_p, axis=-1)


def sigmoid_cross_entropy(
    logits: Float[Array, "b k"], targets: Float[Array, "b k"]
) -> Float[Array, " b"]:
    """Returns the summed binary cross-entropies of k independent yes-or-no labels.

    `-sum_k targets * log s(logits) + (1 - targets) * log(1 - s(logits))` with s the
    logistic function. The sum, not the mean, over classes: a mean would make the
    gradient smaller by k (big_vision does the same).
    """
    logits, targets = logits.astype(jnp.float32), targets.astype(jnp.float32)
    yes, no = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    return -jnp.sum(targets * yes + (1.0 - targets) * no, axis=-1)


def mse(
    logits: Float[Array, "b k"], targets: Float[Array, "b k"]
) -> Float[Array, " b"]:
    """Returns the squared errors, averaged over the k outputs of a regression."""
    error = logits.astype(jnp.float32) - targets.astype(jnp.float32)
    return jnp.mean(jnp.square(error), axis=-1)


LOSSES = {
    "softmax": softmax_cross_entropy,
    "sigmoid": sigmoid_cross_entropy,
    "mse": mse,
}


def smooth_labels(
    targets: Float[Array, "b k"], label_smoothing: float
) -> Float[Array, "b k"]:
    """Moves the share `label_smoothing` of each target to all k classes evenly.

    `targets * (1 - e) + e / k` (Szegedy et al., arXiv:1512.00567 section 7), so the
    true class keeps `1 - e + e / k`.
    """
    return targets * (1.0 - label_smoothing) + label_smoothing / targets.shape[-1]


def batch_targets(
    name: str, batch: Mapping[str, Shaped[Array, "..."]], num_outputs: int
) -> Float[Array, "b k"]:
    """Returns what the outputs of the model are compared with.

    Args:
      name: The loss, a key of `LOSSES`.
      batch: Has `labels` (b, k), floats that are taken as they are, or `label` (b,):
        class numbers, made one-hot here, or for `mse` the number to predict. Class
        numbers outside 0..k-1 cannot occur: the data source checks them on the host,
        since a device cannot raise and `one_hot` would give a row of zeros.
      num_outputs: k, the number of the model's outputs.

    Raises:
      UserError: The batch lacks both keys, `labels` has not k columns, or `label` is
        of the wrong kind for the loss.
    """
    if "labels" in batch:
        targets = batch["labels"]
        if targets.shape[-1] != num_outputs:
            raise UserError(
                f"the batch's labels have {targets.shape[-1]} columns and the model "
                f"has {num_outputs} outputs; make onehot(...) in the ops and "
                "num_classes of the model the same number"
            )
        return targets.astype(jnp.float32)
    if "label" not in batch:
        raise UserError(
            f"loss {name!r} needs 'label' or 'labels' in the batch, which has only "
            f"{', '.join(sorted(batch))}; add one to keep(...) in the ops"
        )
    label = batch["label"]
    if name == "mse":
        if num_outputs != 1:
            raise UserError(
                f"loss 'mse' has one target an example and the model has {num_outputs} "
                "outputs; set num_classes=1, or give several targets as 'labels'"
            )
        return label.astype(jnp.float32)[:, None]
    if not jnp.issubdtype(label.dtype, jnp.integer):
        raise UserError(
            f"loss {name!r} needs class numbers and the labels are {label.dtype}; "
            "use loss 'mse' for numbers to predict"
        )
    return jax.nn.one_hot(label, num_outputs, dtype=jnp.float32)


def build_loss(name: str = "softmax", *, label_smoothing: float = 0.0) -> Loss:
    """Builds the function from logits and a batch to one loss an example.

    Args:
      name: `softmax` (one label of k), `sigmoid` (any number of labels of k) or `mse`
        (regression). A config may say `masked_patch` too, which is built with the
        model: see `vit_jax.masked_patch`.
      label_smoothing: Share of each target that goes to all classes evenly, 0 to 1.
        Leave it 0 where the ops smooth the labels already.

    Returns:
      A function `(logits, batch) -> losses`; see `batch_targets` for the keys it
      reads. Its losses are float32 whatever the logits are.

    Raises:
      UserError: An unknown name, or a label smoothing that is out of range or has no
        meaning.
    """
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    if not 0.0 <= label_smoothing < 1.0:
        raise UserError(
            f"label_smoothing is {label_smoothing}, allowed is 0 <= label_smoothing "
            "< 1; 0.1 is usual"
        )
    if label_smoothing and name == "mse":
        raise UserError(
            f"label_smoothing {label_smoothing} has no meaning for loss 'mse'; "
            "set it to 0"
        )
    function = LOSSES[name]

    def loss(
        logits: Float[Array, "b k"], batch: Mapping[str, Num[Array, "..."]]
    ) -> Float[Array, " b"]:
        targets = batch_targets(name, batch, logits.shape[-1])
        if label_smoothing:
            targets = smooth_labels(targets, label_smoothing)
        return function(logits, targets)

    return loss

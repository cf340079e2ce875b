# SPDX-License-Identifier: Apache-2.0
"""Mixing of examples within a batch, on the device, inside the compiled step.

The partner of an example is its left neighbour in the global batch (a roll by one), so
the result does not depend on the number of devices, and any batch size will do.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Num, Shaped, UInt32

from vit_jax.errors import UserError

PRNGKey = Key[Array, ""] | UInt32[Array, "2"]
Batch = Mapping[str, Shaped[Array, "b ..."]]


def mixup(
    rng: PRNGKey, batch: Batch, *, p: float, num_classes: int | None = None
) -> dict[str, Array]:
    """Blends each example and its target with its neighbour (arXiv:1710.09412).

    One weight a ~ Beta(p, p) is drawn a step and made max(a, 1 - a), so that an example
    keeps the larger share (big_vision's convention): x' = a x + (1 - a) roll(x, 1).

    Args:
      rng: Key of this step.
      batch: `image` `(b, h, w, c)`, and `labels` `(b, k)`, or `label` `(b,)`: class
        numbers, or float targets, which are blended themselves.
      p: Parameter of the Beta distribution; 0 mixes nothing.
      num_classes: Length of the one-hot rows made of class numbers.

    Returns:
      The batch with blended float `image` and blended `labels` (`label` for float
      targets); other keys are left as they are.

    Raises:
      UserError: A negative `p`, class numbers without `num_classes`, or a batch
        without labels.
    """
    if p < 0:
        raise UserError(f"mixup p is {p}; give 0 (no mixing) or more, such as 0.2")
    key, target = soft_target(batch, num_classes)
    weight = draw_weight(rng, p)
    return {
        **batch,
        "image": blend_with_neighbour(batch["image"], weight),
        key: blend_with_neighbour(target, weight),
    }


def draw_weight(rng: PRNGKey, p: float) -> Float[Array, ""]:
    """Draws an example's own share: Beta(p, p) folded to 0.5...1; 1 for p = 0."""
    if p == 0:
        return jnp.float32(1)
    weight = jax.random.beta(rng, p, p)
    return jnp.maximum(weight, 1 - weight)


def soft_target(
    batch: Batch, num_classes: int | None
) -> tuple[str, Float[Array, "b ..."]]:
    """Returns the key and the values of the targets that may be blended.

    Raises:
      UserError: See `mixup`.
    """
    if "labels" in batch:
        return "labels", batch["labels"]
    if "label" not in batch:
        raise UserError(
            "mixing needs 'labels' or 'label' in the batch; keep one of them"
        )
    label = batch["label"]
    if jnp.issubdtype(label.dtype, jnp.floating):
        return "label", label
    if num_classes is None:
        raise UserError("mixing of class numbers needs num_classes; give the model's")
    return "labels", jax.nn.one_hot(label, num_classes)


def blend_with_neighbour(
    values: Num[Array, "b ..."], weight: Float[Array, ""]
) -> Float[Array, "b ..."]:
    """Returns `weight * values + (1 - weight) * neighbour` in floating point."""
    values = values if jnp.issubdtype(values.dtype, jnp.floating) else values * 1.0
    weight = weight.astype(values.dtype)
    return weight * values + (1 - weight) * jnp.roll(values, 1, axis=0)

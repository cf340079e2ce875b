# SPDX-License-Identifier: Apache-2.0
"""Mixing of examples within a batch, on the device, inside the compiled step.

Mixup blends two pictures, CutMix pastes a box of one into the other; both mix targets
in the proportion of the pixels. One weight and one box are drawn a step. The partner of
an example is its left neighbour in the global batch (a roll by one), so the result does
not depend on the number of devices, and any batch size will do.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, Num, Shaped, UInt32

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
    check_parameter("mixup", p)
    key, target = soft_target(batch, num_classes)
    weight = draw_weight(rng, p)
    return {
        **batch,
        "image": blend_with_neighbour(batch["image"], weight),
        key: blend_with_neighbour(target, weight),
    }


def cutmix(
    rng: PRNGKey, batch: Batch, *, p: float, num_classes: int | None = None
) -> dict[str, Array]:
    """Pastes the same box of its neighbour into each example (arXiv:1905.04899).

    A weight a ~ Beta(p, p) is drawn a step; the box has sides floor(side sqrt(1 - a))
    about a uniformly drawn pixel. What reaches beyond the edge is cut off, and the
    target counts the pixels that are left: an example keeps 1 - box / (h w) of its own.

    Args:
      rng: Key of this step.
      batch: See `mixup`; images of any dtype, which stays.
      p: Parameter of the Beta distribution; 0 mixes nothing.
      num_classes: See `mixup`.

    Returns:
      The batch with cut `image` and blended `labels` (`label` for float targets); other
      keys are left as they are.

    Raises:
      UserError: A negative `p`, or as for `mixup`.
    """
    check_parameter("cutmix", p)
    key, target = soft_target(batch, num_classes)
    if p == 0:
        return {**batch, key: target}
    weight_key, centre_key = jax.random.split(rng)
    weight = jax.random.beta(weight_key, p, p)
    image = batch["image"]
    height, width = image.shape[1:3]
    centre = jax.random.randint(centre_key, (2,), 0, jnp.array([height, width]))
    box = cut_box((height, width), weight, centre)
    own = 1 - box.mean()
    neighbour = jnp.roll(image, 1, axis=0)
    return {
        **batch,
        "image": jnp.where(box[None, :, :, None], neighbour, image),
        key: blend_with_neighbour(target, own),
    }


def cut_box(
    size: tuple[int, int], weight: Float[Array, ""], centre: Int[Array, "2"]
) -> Bool[Array, "h w"]:
    """Returns which pixels a box covers, cut at the edges.

    Args:
      size: Height and width of the image.
      weight: Share of the image that lies outside of the box, before it is cut.
      centre: Row and column of its middle; of an even side, the first half ends there.
    """
    inside = []
    for side, middle in zip(size, centre, strict=True):
        length = jnp.floor(side * jnp.sqrt(1 - weight)).astype(jnp.int32)
        first = middle - length // 2
        place = jnp.arange(side)
        inside.append((place >= first) & (place < first + length))
    return inside[0][:, None] & inside[1][None, :]


def mix(
    rng: PRNGKey,
    batch: Batch,
    *,
    mixup_p: float,
    cutmix_p: float,
    switch_prob: float = 0.5,
    num_classes: int | None = None,
) -> dict[str, Array]:
    """Applies `mixup`, `cutmix`, or one of the two, drawn anew each step.

    The recipe of Swin and DeiT is `mixup_p=0.8, cutmix_p=1.0`.

    Args:
      rng: Key of this step.
      batch: See `mixup`.
      mixup_p: Parameter of mixup; 0 for none.
      cutmix_p: Parameter of CutMix; 0 for none.
      switch_prob: Probability of CutMix where both are on.
      num_classes: See `mixup`.

    Returns:
      The mixed batch; with none of the two, the batch with soft targets.

    Raises:
      UserError: As for `mixup`.
    """
    if not (mixup_p and cutmix_p):
        chosen, p = (cutmix, cutmix_p) if cutmix_p else (mixup, mixup_p)
        return chosen(rng, batch, p=p, num_classes=num_classes)
    switch_key, mix_key = jax.random.split(rng)
    image = batch["image"]
    if not jnp.issubdtype(image.dtype, jnp.floating):
        batch = {**batch, "image": image * 1.0}  # both give the same dtype
    return jax.lax.cond(
        jax.random.bernoulli(switch_key, switch_prob),
        lambda: cutmix(mix_key, batch, p=cutmix_p, num_classes=num_classes),
        lambda: mixup(mix_key, batch, p=mixup_p, num_classes=num_classes),
    )


def build_mix(
    mixup_p: float | None,
    cutmix_p: float | None,
    switch_prob: float,
    num_classes: int | None,
) -> Callable[[PRNGKey, Batch], dict[str, Array]] | None:
    """Makes the `mix` of a step of its arguments, None if nothing is to be mixed.

    Raises:
      UserError: A negative parameter, or a probability outside 0...1.
    """
    check_parameter("mixup", mixup_p or 0.0)
    check_parameter("cutmix", cutmix_p or 0.0)
    if not 0 <= switch_prob <= 1:
        raise UserError(f"mixing switch_prob is {switch_prob}; give 0 to 1, as 0.5")
    if not (mixup_p or cutmix_p):
        return None
    return functools.partial(
        mix,
        mixup_p=mixup_p or 0.0,
        cutmix_p=cutmix_p or 0.0,
        switch_prob=switch_prob,
        num_classes=num_classes,
    )


def check_parameter(name: str, p: float) -> None:
    """Refuses negative parameters.

    Raises:
      UserError: `p` is negative.
    """
    if p < 0:
        raise UserError(f"{name} p is {p}; give 0 (no mixing) or more, such as 0.2")


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

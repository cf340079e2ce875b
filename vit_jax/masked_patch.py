# SPDX-License-Identifier: Apache-2.0
"""Masked patch prediction, Appendix B.1.2 of arXiv:2010.11929: learning without labels.

Half of the patches of an image are corrupted: of these, 80 % show a learned embedding
instead of their own, 10 % that of another patch, 10 % their own. What was in a
corrupted patch is predicted from its output. This file draws the corruption, makes the
targets and compares; the embedding and the head are in `models/vit.py`.

Where the paper leaves a choice:

- A share of the patches of each image is corrupted, and not each patch with that
  probability, so that every image counts alike. Where the share is no whole number of
  patches, the number is drawn between its neighbours and is right on average.
- What becomes of a corrupted patch is drawn for each on its own.
- The other patch is one of the same image, any but the patch itself.
- Three bits a channel are the highest three of its 8-bit level. A class is
  `64 r + 8 g + b`: the bits of red are the highest.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32, Key, Shaped

from vit_jax.errors import UserError, unknown

Target = Literal["mean_colour", "small_colours", "pixels"]

# Into how many cells a side of a patch is divided to take mean colours.
_CELLS: Mapping[str, int] = {"mean_colour": 1, "small_colours": 4}
TARGETS: tuple[Target, ...] = ("mean_colour", "small_colours", "pixels")

COLOURS = 512
"""Classes of a colour of 3 bits a channel."""

MASKED = 0.8
"""Share of the corrupted patches that show the learned embedding."""

REPLACED = 0.1
"""Share of the corrupted patches that show another patch."""

Images = Float[Array | np.ndarray, "b h w c"]


@dataclasses.dataclass(frozen=True)
class MaskedPatches:
    """The objective: what is corrupted, what is to be predicted, and the loss.

    It is a loss in the sense of `losses`: a function of predictions and a batch. The
    loss of an image is the mean over its corrupted patches.

    Attributes:
      target: What is predicted of a patch. "mean_colour": its mean colour, a class;
        "small_colours": the 4x4 mean colours of its 4x4 parts, a class each, and the
        loss is their mean (a pixel that lies in several parts counts by its area, as
        with patches of 14 or 7); "pixels": its pixels as the model sees them, and the
        loss is the mean of the squared errors.
      patch_size: Rows and columns of a patch in pixels.
      corrupted: Share of the patches of an image that are corrupted.
      black: What level 0 of each channel is in an image as the model sees it.
      white: What level 255 is.
    """

    target: Target
    patch_size: tuple[int, int]
    corrupted: float
    black: tuple[float, float, float]
    white: tuple[float, float, float]

    @property
    def outputs(self) -> int:
        """How many numbers the model gives for a patch."""
        if self.target == "pixels":
            return 3 * math.prod(self.patch_size)
        return COLOURS * _CELLS[self.target] ** 2

    def corrupt(
        self, keys: Key[Array, " b"], batch: Mapping[str, Shaped[Array, "b ..."]]
    ) -> dict[str, Array]:
        """Returns the batch with the arrays of `draw_corruption`.

        Args:
          keys: A random key for each image.
          batch: Has `image`.

        Raises:
          UserError: See `draw_corruption`.
        """
        _, height, width, _ = batch["image"].shape
        rows, columns = self.patch_size
        patches = (height // rows) * (width // columns)
        source, corrupted = draw_corruption(keys, patches, self.corrupted)
        return {**batch, "patch_source": source, "corrupted": corrupted}

    def __call__(
        self, predictions: Float[Array, "b n k"], batch: Mapping[str, Array]
    ) -> Float[Array, " b"]:
        """Returns the loss of each image.

        Args:
          predictions: Of all patches; those of patches that are not corrupted, and
            their targets, have no influence.
          batch: Has `image`, the pixels that the model saw, and `corrupted`.
        """
        predictions = predictions.astype(jnp.float32)
        if self.target == "pixels":
            wanted = to_patches(batch["image"], self.patch_size)
            error = predictions - wanted.reshape(predictions.shape)
            losses = jnp.mean(jnp.square(error), axis=-1)
        else:
            classes = self.classes(batch["image"])  # (b, n, cells)
            log_p = jax.nn.log_softmax(_by_cell(predictions, classes))
            chosen = jnp.take_along_axis(log_p, classes[..., None], axis=-1)
            losses = -jnp.mean(chosen[..., 0], axis=-1)
        return _mean_over(batch["corrupted"], losses)

    def accuracy(
        self, predictions: Float[Array, "b n k"], batch: Mapping[str, Array]
    ) -> Float[Array, " b"]:
        """Returns the share of right classes in the corrupted patches of each image.

        Args:
          predictions: See `__call__`; not for the target "pixels".
          batch: See `__call__`.
        """
        classes = self.classes(batch["image"])
        right = jnp.argmax(_by_cell(predictions, classes), axis=-1) == classes
        return _mean_over(batch["corrupted"], jnp.mean(right, axis=-1))

    def classes(self, image: Images) -> Int32[Array, "b n cells"]:
        """Returns the class of the mean colour of each patch, or of its cells.

        Args:
          image: As the model sees it. Values are rounded to levels 0...255, so classes
            are exact: no rounding moves a mean across the edge of a class.
        """
        levels = self._levels(image)
        cells = _CELLS[self.target]
        patches = to_patches(levels, self.patch_size)
        # In units of 1 / cells of a pixel's side. All sums are whole numbers that
        # float32 holds, and so do the products at the highest precision.
        rows, columns = (_overlaps(side, cells) for side in self.patch_size)
        sums = jnp.einsum(
            "yp,bnpqc,xq->bnyxc",
            rows,
            patches,
            columns,
            precision=lax.Precision.HIGHEST,
        )
        area = math.prod(self.patch_size)
        bits = sums.astype(jnp.int32) // (32 * area)
        classes = 64 * bits[..., 0] + 8 * bits[..., 1] + bits[..., 2]
        return classes.reshape(*classes.shape[:2], cells * cells)

    def _levels(self, image: Images) -> Float[Array, "b h w c"]:
        black, white = (
            jnp.asarray(value, jnp.float32).reshape(1, 1, 1, 3)
            for value in (self.black, self.white)
        )
        levels = (image.astype(jnp.float32) - black) * (255 / (white - black))
        return jnp.clip(jnp.rint(levels), 0, 255)


def build_masked_patches(
    *,
    target: str = "mean_colour",
    corrupted: float = 0.5,
    patch_size: tuple[int, int],
    black: tuple[float, float, float],
    white: tuple[float, float, float],
) -> MaskedPatches:
    """Builds the objective of the section `loss` of a config.

    Args:
      target: One of `TARGETS`.
      corrupted: Share of the patches of an image that are corrupted; the paper found
        15 % slightly worse than 50 %.
      patch_size: Rows and columns of a patch in pixels.
      black: See `MaskedPatches`.
      white: See `MaskedPatches`.

    Raises:
      UserError: An unknown target, or a share that is none.
    """
    if target not in TARGETS:
        raise unknown("config.loss.target", str(target), TARGETS)
    if not 0 < corrupted <= 1:
        raise UserError(
            f"config.loss.corrupted={corrupted} must lie in 0 < corrupted <= 1; the "
            "paper has 0.5"
        )
    known = cast(Target, target)
    return MaskedPatches(known, patch_size, float(corrupted), black, white)


def draw_corruption(
    keys: Key[Array, " b"], patches: int, share: float
) -> tuple[Int32[Array, "b n"], Bool[Array, "b n"]]:
    """Draws what becomes of the patches of images.

    Args:
      keys: A random key for each image, so that the draw for an image does not depend
        on its place in a batch or on the devices.
      patches: Number of patches of an image.
      share: Share of them that is corrupted.

    Returns:
      For each patch, whose embedding it shows: the index of a patch of the same image,
      its own unless it is replaced, or -1 for the learned embedding; and whether it is
      corrupted.

    Raises:
      UserError: There is no other patch, or less than one patch an image would be
        corrupted.
    """
    if patches < 2 or share * patches < 1:
        raise UserError(
            f"an image of {patches} patches of which {share:g} are corrupted: masked "
            "patch prediction needs two patches and one that is corrupted; choose "
            "larger images, smaller patches or a larger config.loss.corrupted"
        )

    def draw(key: Array) -> tuple[Array, Array]:
        rank_key, count_key, fate_key, other_key = jax.random.split(key, 4)
        order = jnp.argsort(jax.random.uniform(rank_key, (patches,)))
        rank = jnp.argsort(order)
        count = jnp.floor(share * patches + jax.random.uniform(count_key))
        corrupted = rank < count
        fate = jax.random.uniform(fate_key, (patches,))
        own = jnp.arange(patches, dtype=jnp.int32)
        steps = jax.random.randint(other_key, (patches,), 1, patches, jnp.int32)
        changed = jnp.where(
            fate < MASKED,
            -1,
            jnp.where(fate < MASKED + REPLACED, (own + steps) % patches, own),
        )
        return jnp.where(corrupted, changed, own), corrupted

    return jax.vmap(draw)(keys)


def to_patches(
    image: Images, patch_size: tuple[int, int]
) -> Float[Array | np.ndarray, "b n p q c"]:
    """Cuts images into patches in raster order."""
    b, h, w, c = image.shape
    rows, columns = patch_size
    cut = image.reshape(b, h // rows, rows, w // columns, columns, c)
    return cut.swapaxes(2, 3).reshape(b, -1, rows, columns, c)


def _overlaps(side: int, cells: int) -> Float[np.ndarray, "cells side"]:
    """Returns how much of each pixel lies in each cell, in units of 1 / cells."""
    starts, ends = np.arange(side) * cells, np.arange(1, side + 1) * cells
    edges = np.arange(cells + 1)[:, None] * side
    inside = np.minimum(ends, edges[1:]) - np.maximum(starts, edges[:-1])
    return np.maximum(inside, 0).astype(np.float32)


def _by_cell(
    predictions: Float[Array, "b n k"], classes: Int[Array, "b n cells"]
) -> Float[Array, "b n cells colours"]:
    return predictions.reshape(*classes.shape, COLOURS)


def _mean_over(
    corrupted: Bool[Array, "b n"], values: Float[Array, "b n"]
) -> Float[Array, " b"]:
    """Returns the mean over the corrupted patches; 0 of a filling without any."""
    count = jnp.maximum(jnp.sum(corrupted, axis=1), 1)
    return jnp.sum(jnp.where(corrupted, values, 0.0), axis=1) / count

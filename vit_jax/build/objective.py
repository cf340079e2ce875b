# SPDX-License-Identifier: Apache-2.0
"""What a run learns: the section `loss` of a config, and what follows from it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from vit_jax import losses
from vit_jax.build import fields as fields_lib
from vit_jax.config import section_call
from vit_jax.data.pixel_range import exact_pixel_range
from vit_jax.errors import UserError, unknown
from vit_jax.losses import Loss
from vit_jax.masked_patch import MaskedPatches, build_masked_patches
from vit_jax.models.layers.patches import pair
from vit_jax.train.step import Batch

MASKED_PATCH = "masked_patch"

# Types of evaluators that compare outputs of the head with labels.
_LABELS = ("classification", "multilabel", "regression")


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a run learns.

    Attributes:
      loss: The loss of each example.
      has_classes: Whether labels are classes, and not numbers or nothing.
      model: Fields of the model that the objective decides on.
    """

    loss: Loss
    has_classes: bool
    model: Mapping[str, Any]

    def train_apply(self, model: nn.Module) -> Callable[..., jax.Array]:
        """Makes `(params, batch, rngs) ->` what the loss compares with a batch."""

        def apply(params: Any, batch: Batch, rngs: Mapping[str, jax.Array]) -> Any:
            given: dict[str, Any] = {"train": True, "rngs": rngs}
            if not isinstance(self.loss, MaskedPatches):
                return model.apply({"params": params}, batch["image"], **given)[0]
            given["patch_source"] = batch["patch_source"]
            _, out = model.apply({"params": params}, batch["image"], **given)
            return out["patch_predictions"]

        return apply

    def change(
        self, mix: Callable[[jax.Array, Batch], Batch] | None
    ) -> Callable[[jax.Array, Batch], Batch] | None:
        """Returns how a step changes a batch on the device, with a key; None if not.

        Args:
          mix: Mixup or CutMix, or None.

        Raises:
          UserError: Both mixing, which blends labels, and patches to predict.
        """
        objective = self.loss
        if not isinstance(objective, MaskedPatches):
            return mix
        if mix is not None:
            raise UserError(
                f"loss {MASKED_PATCH!r} has no labels to mix; set config.data.mixup "
                "and config.data.cutmix to None"
            )

        def corrupt(key: jax.Array, batch: Batch) -> Batch:
            numbers = jnp.arange(len(batch["image"]))
            keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
            return objective.corrupt(keys, batch)

        return corrupt

    def check_evaluators(self, evaluators: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuses evaluators that ask for what is not learned.

        Raises:
          UserError: An evaluator of labels where there is no head for them.
        """
        for name, section in evaluators.items():
            if isinstance(self.loss, MaskedPatches) and section.get("type") in _LABELS:
                raise UserError(
                    f"config.evaluators.{name} has the type {section['type']!r}, but "
                    f"loss {MASKED_PATCH!r} trains no head for labels; use the type "
                    "'masked_patch', or 'fewshot', which looks at features"
                )


def make_objective(
    loss: Mapping[str, Any], model: Mapping[str, Any], built: Any, ops: Any
) -> Objective:
    """Reads the section `loss`.

    Args:
      loss: The section.
      model: The section `model`.
      built: The model, with any number of classes.
      ops: The preprocessing of the training data.

    Raises:
      UserError: An unknown loss or field, or a model or preprocessing that it cannot
        be used with.
    """
    name = loss.get("name", "softmax")
    if name not in (*losses.LOSSES, MASKED_PATCH):
        raise unknown("loss", name, (*losses.LOSSES, MASKED_PATCH))
    if name != MASKED_PATCH:
        if model.get("patch_outputs"):
            raise UserError(
                "config.model.patch_outputs has a use for loss "
                f"{MASKED_PATCH!r} only, which sets it itself; leave it out"
            )
        built_loss = section_call(losses.build_loss, loss, "loss")
        return Objective(built_loss, name != "mse", {})
    if not hasattr(built, "patch_outputs"):
        raise UserError(
            f"loss {MASKED_PATCH!r} needs a model whose tokens are patches, of the "
            f"family vit, and {model.get('name')} is none; use such as ViT-B/16"
        )
    if model.get("num_classes"):
        raise UserError(
            f"loss {MASKED_PATCH!r} learns no classes, but config.model.num_classes is "
            f"{model['num_classes']}; set it to 0"
        )
    black, white = exact_pixel_range(str(ops))
    section, _ = fields_lib.take(loss, "name")
    patches = section_call(
        build_masked_patches,
        section,
        "loss",
        patch_size=pair(built.patch_size),
        black=black,
        white=white,
    )
    fields = {"num_classes": 0, "patch_outputs": patches.outputs}
    return Objective(patches, False, fields)

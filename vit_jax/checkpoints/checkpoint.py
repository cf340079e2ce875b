# SPDX-License-Identifier: Apache-2.0
"""Weights together with all that is needed to use them.

Whatever a checkpoint's origin (a run of ours, a file of Google, timm or Hugging Face),
readers make this of it, and whatever uses weights takes this.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Weights and their description.

    Attributes:
      params: The parameter tree, nested dictionaries of NumPy arrays, in our names.
      model: Keyword arguments of `vit_jax.models.build_model`: `name`, `num_classes`,
        `preset` and every field that differs from the row of the name.
      image_shape: (height, width, channels) of the images that the model is made for.
      preprocessing: Op string that turns a picture into an input; None if unknown.
      class_names: Name of each logit; None if unknown.
      loss: "softmax", "sigmoid" or "mse": what the logits were trained with, so how
        they become probabilities.
      averaged: Whether the run that wrote this kept averaged weights as well.
    """

    params: dict[str, Any]
    model: dict[str, Any]
    image_shape: tuple[int, int, int]
    preprocessing: str | None = None
    class_names: tuple[str, ...] | None = None
    loss: str = "softmax"
    averaged: bool = False

    def description(self) -> dict[str, Any]:
        """Returns all but the weights, as JSON can hold it."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "params"
        }
        names = self.class_names
        return fields | {
            "class_names": None if names is None else list(names),
            "image_shape": list(self.image_shape),
        }

    @classmethod
    def from_description(
        cls, description: Mapping[str, Any], params: dict[str, Any], origin: str
    ) -> "Checkpoint":
        """Joins weights with a description that was read from `origin`.

        Raises:
          UserError: The description lacks the model or the size of its images.
        """
        known = {field.name for field in dataclasses.fields(cls)} - {"params"}
        fields = {key: value for key, value in description.items() if key in known}
        for key in ("model", "image_shape"):
            if not fields.get(key):
                raise UserError(
                    f"the description in {origin} has no {key!r}, so its weights "
                    "cannot be used; it was written by an older version or by hand"
                )
        names = fields.get("class_names")
        fields["class_names"] = None if names is None else tuple(names)
        fields["image_shape"] = tuple(fields["image_shape"])
        return cls(params=params, **fields)

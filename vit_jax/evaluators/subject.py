# SPDX-License-Identifier: Apache-2.0
"""The model that an evaluator looks at, frozen: its logits and its named features."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.errors import UserError, unknown

Features = Callable[[Any, Array], Float[Array, "b d"]]

POOLS = ("cls", "mean")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model in evaluation mode: no dropout, no stochastic depth.

    Attributes:
      model: The model.
      shapes: Shapes of its parameters.
      image_shape: (height, width, channels) of an image that it takes.
    """

    model: nn.Module
    shapes: Any
    image_shape: tuple[int, int, int]

    def apply(self, params: Any, image: Array) -> tuple[Array, dict[str, Array]]:
        """Returns logits and named outputs."""
        applied: Any = self.model.apply({"params": params}, image, train=False)
        return applied

    def predict(self, params: Any, image: Array) -> Array:
        """Returns logits."""
        return self.apply(params, image)[0]

    @functools.cached_property
    def outputs(self) -> Mapping[str, Any]:
        """Shapes of the named outputs for one image."""
        image = jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)
        return jax.eval_shape(self.apply, self.shapes, image)[1]

    def features(self, name: str) -> Features:
        """Makes the function from parameters and images to one vector an image.

        Args:
          name: A named output, such as `pre_logits` or `block11/output`. Tokens are
            pooled: `block11/output:cls` takes the class token, `block11/output:mean`
            the mean over the patches, without class token and registers; with neither,
            it is the class token where the model has one. A map is averaged.

        Raises:
          UserError: An output or pooling that does not exist, or no class token.
        """
        output, _, pool = name.partition(":")
        outputs = self.outputs
        if output not in outputs:
            raise unknown("feature", output, outputs)
        if pool and pool not in POOLS:
            raise unknown("pooling of a feature", pool, POOLS)
        tokens = outputs[output].ndim == 3
        if pool == "cls" and not (tokens and "cls" in self.shapes):
            raise UserError(
                f"feature {name!r}: {output} has no class token; take it with ':mean', "
                "or without a pooling"
            )
        first = tokens and pool != "mean" and "cls" in self.shapes

        def features(params: Any, image: Array) -> Float[Array, "b d"]:
            out = self.apply(params, image)[1]
            x = out[output].astype(jnp.float32)
            if first:
                return x[:, 0]
            if tokens:
                patches = out["stem"].shape[1] * out["stem"].shape[2]
                # The patches come last, as many as the stem has; later, coarser maps
                # have fewer tokens and no others among them.
                return x[:, max(x.shape[1] - patches, 0) :].mean(axis=1)
            return x.reshape(x.shape[0], -1, x.shape[-1]).mean(axis=1)

        return features

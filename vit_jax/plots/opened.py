# SPDX-License-Identifier: Apache-2.0
"""A checkpoint opened to look at what it attends to."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jaxtyping import Float

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, presets
from vit_jax.models.axial import AxialViT
from vit_jax.models.hybrid import Hybrid
from vit_jax.models.vit import ViT
from vit_jax.plots import attention
from vit_jax.plots.layers import Layer, find_layers
from vit_jax.plots.windows import places

_PAIRS = 2_000_000
"""Pairs of tokens that are looked at together, in each layer and head."""


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """A model with its weights.

    Attributes:
      model: The model, computing in float32.
      params: The weights.
      image_shape: (height, width, channels) of the pictures that it gets.
      ops: How pictures become its inputs; None if that is not known.
    """

    model: nn.Module
    params: Any
    image_shape: tuple[int, int, int]
    ops: str | None

    @property
    def family(self) -> str:
        """The word for the kind of model, for messages."""
        return type(self.model).__name__

    @functools.cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that have attention, the first one first.

        Raises:
          UserError: A model without attention.
        """
        return find_layers(self.model, self.image_shape[:2], self.before)

    def weights(
        self, images: Float[np.ndarray, "b h w c"]
    ) -> dict[str, Float[np.ndarray, "b ..."]]:
        """Returns the attention probabilities of each layer by its name.

        A model whose head attends to the patches has `map_head` too.
        """
        names = [layer.name for layer in self.layers]  # an error for those without
        found = {
            name.removesuffix("/attention_weights"): np.asarray(value)
            for name, value in self._weights(self.params, images).items()
        }
        return {name: found[name] for name in [*names, "map_head"] if name in found}

    @functools.cached_property
    def _weights(self) -> Any:
        def run(params: Any, images: Any) -> dict[str, Any]:
            out: Mapping[str, Any] = self.model.apply(
                {"params": params}, images, train=False, return_attention=True
            )[1]
            return {k: v for k, v in out.items() if k.endswith("attention_weights")}

        return jax.jit(run)

    def rollout(
        self, images: Float[np.ndarray, "b h w c"], *, residual: bool = True
    ) -> Float[np.ndarray, "b i j"]:
        """Returns what the head sees of each patch: rollout, summing to 1.

        The last layer is looked at as the head does: at the class token, at the mean
        over the patches, or with the weights of attention pooling.

        Raises:
          UserError: A model whose layers do not have the same tokens.
        """
        layers = self.layers
        if layers[0].windows is not None:
            raise UserError(
                "rollout multiplies the matrices of layers that attend over the whole "
                f"map; the tokens of a {self.family} attend within windows or lines. "
                "Take the kind attention with --layer, or distances"
            )
        weights = self.weights(images)
        matrices = [weights[layer.name] for layer in layers]
        read = self._read(matrices[-1].shape[-1], weights.get("map_head"))
        read = np.broadcast_to(read, (len(images), 1, matrices[0].shape[-1]))
        seen = attention.rollout(matrices, residual=residual, start=read)
        return attention.on_grid(seen[:, 0], layers[0].before, layers[0].grid)

    def maps(
        self,
        images: Float[np.ndarray, "b h w c"],
        layer: int = -1,
        query: tuple[int, int] | None = None,
    ) -> Float[np.ndarray, "b m i j"]:
        """Returns where each head of a layer looks, summing to 1 over the patches.

        Args:
          images: Inputs.
          layer: Number of the layer from 0; negative ones count from the last.
          query: Row and column of the patch that looks. None is what the head of the
            model reads, the class token or the mean over all patches; in windows, the
            mean over all.

        Raises:
          UserError: No such layer or patch.
        """
        chosen = self.find_layer(layer)
        if query is not None and not all(
            0 <= at < side for at, side in zip(query, chosen.grid, strict=True)
        ):
            rows, columns = chosen.grid
            raise UserError(
                f"no patch in row {query[0]} and column {query[1]}: the map of "
                f"{chosen.name} has {rows} rows and {columns} columns, counted from 0"
            )
        weights = self.weights(images)
        found = weights[chosen.name]
        if chosen.windows is not None:
            return attention.on_map(found, *places(chosen.windows), chosen.grid, query)
        if query is None:
            read = self._read(found.shape[-1], weights.get("map_head"))
            read = np.broadcast_to(read, (len(found), 1, found.shape[-1]))
        else:
            read = np.zeros((len(found), 1, found.shape[-1]))
            read[..., chosen.before + query[0] * chosen.grid[1] + query[1]] = 1.0
        seen = np.einsum("bxq,bmqn->bmn", read, found)
        return attention.on_grid(seen, chosen.before, chosen.grid)

    def find_layer(self, number: int) -> Layer:
        """Returns a layer by its number; negative ones count from the last.

        Raises:
          UserError: No such layer.
        """
        if not -len(self.layers) <= number < len(self.layers):
            raise UserError(
                f"no layer {number}: the model has {len(self.layers)}, from 0 to "
                f"{len(self.layers) - 1} (negative numbers count from the last)"
            )
        return self.layers[number]

    def distances(
        self, images: Float[np.ndarray, "b h w c"]
    ) -> list[Float[np.ndarray, " m"]]:
        """Returns the mean attention distance of the heads of each layer, in pixels.

        Args:
          images: Inputs; Appendix D.7 of the paper averages over 128.
        """
        totals = [np.zeros(1) for _ in self.layers]
        # The matrices of all layers are there at a time.
        tokens = self.before + math.prod(self.layers[0].grid)
        batch_size = min(max(_PAIRS // tokens**2, 1), 16)
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size]
            weights = self.weights(batch)
            for number, layer in enumerate(self.layers):
                found = layer.distances(weights[layer.name])
                totals[number] = totals[number] + len(batch) * found
        return [total / len(images) for total in totals]

    @property
    def prefix(self) -> int:
        """Number of class and distillation tokens."""
        return ("cls" in self.params) + ("dist" in self.params)

    @property
    def before(self) -> int:
        """Number of tokens before the patches: these and the registers."""
        registers = self.params.get("registers")
        return self.prefix + (0 if registers is None else registers.shape[1])

    def _read(self, size: int, map_head: np.ndarray | None) -> np.ndarray:
        """Returns how much of each output token the head of the model reads."""
        before, pool = self.before, getattr(self.model, "pool", "mean")
        read = np.zeros((1, 1, size))
        if pool == "cls":
            read[..., : self.prefix] = 1 / self.prefix
        elif pool == "map" and map_head is not None:
            weights = map_head.mean(axis=(1, 2))[:, None]
            read = np.zeros((len(weights), 1, size))
            read[..., size - weights.shape[-1] :] = weights
        else:
            read[..., before:] = 1 / (size - before)
            if pool == "cls_mean":
                read = read / 2
                read[..., 0] = 0.5
        return read


def open_checkpoint(checkpoint: Checkpoint, resolution: int | None = None) -> Opened:
    """Builds the model of a checkpoint.

    Args:
      checkpoint: What to open.
      resolution: Side of the pictures, where that is not the checkpoint's own; a
        position table is then resized by the method of the weights' origin.

    Raises:
      UserError: A model that cannot be built.
    """
    fields: dict[str, Any] = {**checkpoint.model, "dtype": "float32"}
    name = str(fields.get("preset") or catalog.find(fields["name"]).preset)
    preset = presets.find(name)
    shape, ops = checkpoint.image_shape, checkpoint.preprocessing
    if resolution is not None and (resolution, resolution) != shape[:2]:
        shape = (resolution, resolution, shape[2])
        ops = preset.evaluation_ops(resolution)
        if isinstance(build_model(**fields), ViT | Hybrid | AxialViT):
            fields["resize_positions"] = preset.position_resize
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), checkpoint.params)
    return Opened(build_model(**fields), params, shape, ops)

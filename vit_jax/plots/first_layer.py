# SPDX-License-Identifier: Apache-2.0
"""What a model does before its first layer: position embeddings and filters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models.axial import AxialViT
from vit_jax.models.hybrid import Hybrid
from vit_jax.models.layers.patches import patch_grid
from vit_jax.models.layers.positions import ADDED, PositionTable
from vit_jax.models.swin import Swin
from vit_jax.models.swin_v2 import SwinV2
from vit_jax.models.vit import ViT
from vit_jax.plots.layers import patches
from vit_jax.plots.opened import Opened


def positions(
    opened: Opened, layer: int = 0
) -> tuple[Float[np.ndarray, "n d"], tuple[int, int]]:
    """Returns the position embeddings of the patches in raster order, and their grid.

    Args:
      opened: The model.
      layer: Which table, where each layer has its own.

    Raises:
      UserError: A model that adds no positions to its tokens, or no such table.
    """
    model, params = opened.model, opened.params
    if isinstance(model, Swin | SwinV2) and "absolute_pos_embed" in params:
        (table,) = np.asarray(params["absolute_pos_embed"])
        rows, columns, width = table.shape
        return table.reshape(-1, width), (rows, columns)
    if not isinstance(model, ViT | Hybrid | AxialViT):
        raise UserError(
            f"this {opened.family} adds no position embeddings to its tokens, so there "
            "are none to compare; take the kind filters"
        )
    if model.positions not in ADDED:
        raise UserError(
            f"the positions of this model, {model.positions!r}, act within the "
            f"attention or not at all; only {', '.join(ADDED)} are vectors that can be "
            "compared"
        )
    tables = _tables(opened, model)
    if not -len(tables) <= layer < len(tables):
        raise UserError(
            f"no position table {layer}: the model has {len(tables)}; leave --layer "
            "out for the first"
        )
    return tables[layer], patches(model, opened.image_shape[:2])[0]


def _tables(
    opened: Opened, model: ViT | Hybrid | AxialViT
) -> Float[np.ndarray, "l n d"]:
    grid, stride = patches(model, opened.image_shape[:2])
    resolution = model.resolution
    params = opened.params.get("Transformer", {}).get("posembed_input", {})
    rows: Any = PositionTable(
        model.positions,
        getattr(model, "class_position", False),
        copies=next((len(leaf) for leaf in params.values()), 1),
        grid=None if resolution is None else patch_grid(resolution, stride),
        resize=model.resize_positions,
    ).apply(
        {"params": jax.tree.map(jnp.asarray, params)},
        grid,
        model.width,
        prefix=opened.prefix,
    )
    return np.asarray(rows)[:, opened.prefix :]


def filters(opened: Opened) -> Float[np.ndarray, "p q c d"]:
    """Returns the kernel of the convolution that sees the picture.

    Raises:
      UserError: There is none.
    """
    for leaf in trees.flatten(opened.params).values():
        if np.ndim(leaf) == 4 and leaf.shape[2] == opened.image_shape[2]:
            return np.asarray(leaf)
    raise UserError(f"this {opened.family} has no convolution that sees the picture")

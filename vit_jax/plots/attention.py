# SPDX-License-Identifier: Apache-2.0
"""Numbers about attention probabilities: rollout, distance, maps. NumPy alone.

`(b, m, q, n)`: images, heads, queries, keys; the probabilities of a query sum to 1.
Windows add an axis for their groups: `(b, g, m, q, n)`.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

Grid = tuple[int, int]


def rollout(
    layers: Sequence[Float[np.ndarray, "b m n n"]],
    *,
    residual: bool = True,
    start: Float[np.ndarray, "b q n"] | None = None,
) -> Float[np.ndarray, "b q n"]:
    """Returns how much of each input token is in each output token.

    Attention rollout of Abnar and Zuidema (arXiv:2005.00928, Section 3), as in Appendix
    D.8 of the ViT paper: the product A_L ... A_2 A_1 of the layers' matrices, each the
    mean over its heads.

    Args:
      layers: Probabilities of each layer, the first layer first.
      residual: Whether 0.5 A + 0.5 I stands for A, as the tokens of a layer are added
        to what it attends to. The ViT paper does not say whether it does that.
      start: Weights of the outputs to look at; None takes each output by itself, which
        gives the whole matrix.
    """
    size = layers[0].shape[-1]
    if start is None:
        start = np.broadcast_to(np.eye(size), (len(layers[0]), size, size))
    result = np.asarray(start, np.float64)
    for weights in reversed(layers):
        result_after = result @ weights.mean(axis=1, dtype=np.float64)
        result = 0.5 * result_after + 0.5 * result if residual else result_after
    return result


def on_grid(
    row: Float[np.ndarray, "*x n"], before: int, grid: Grid
) -> Float[np.ndarray, "*x h w"]:
    """Puts the weights of patches on their grid, so that they sum to 1.

    Args:
      row: Weights of all tokens.
      before: How many tokens before the patches are left out: class token, distillation
        token and registers, which have no place in the picture.
      grid: Rows and columns of the patches.
    """
    patches = row[..., before:].astype(np.float64)
    total = patches.sum(axis=-1, keepdims=True)
    patches = patches / np.where(total > 0, total, 1.0)
    return patches.reshape(*row.shape[:-1], *grid)


def centres(grid: Grid, stride: tuple[int, int]) -> Float[np.ndarray, "n 2"]:
    """Returns where patches lie: pixels down and across from the first, raster order.

    Args:
      grid: Rows and columns of the patches.
      stride: Pixels from one to the next, down and across.
    """
    places = np.moveaxis(np.indices(grid), 0, -1).reshape(-1, 2)
    return places * np.asarray(stride, np.float64)


def mean_distance(
    weights: Float[np.ndarray, "b g m q n"],
    queries: Float[np.ndarray, "g q 2"],
    keys: Float[np.ndarray, "g n 2"],
) -> Float[np.ndarray, " m"]:
    """Returns the mean distance of what each head attends to, in pixels.

    Appendix D.7 and Figure 7 (right) of arXiv:2010.11929: distances between a query and
    all keys, weighted by attention, averaged over queries and images. Keys without a
    place, such as class token and registers, are left out, and the weights of the
    others made to sum to 1; the paper does not say what it does with them.

    Args:
      weights: Attention probabilities in g groups.
      queries: Place of each query; NaN where it has none, it is then left out.
      keys: Place of each key; NaN where it has none.
    """
    offsets = queries[:, :, None] - keys[:, None]
    distance = np.hypot(offsets[..., 0], offsets[..., 1])  # (g, q, n)
    placed = ~np.isnan(distance)
    mass = np.einsum("bgmqn,gqn->bgmq", weights, placed.astype(weights.dtype))
    known = np.where(placed, distance, 0.0).astype(weights.dtype)
    total = np.einsum("bgmqn,gqn->bgmq", weights, known)
    each = total.astype(np.float64) / np.where(mass > 0, mass, 1.0)
    real = ~np.isnan(queries[..., 0])  # (g, q)
    each = np.moveaxis(each, 2, -1)[:, real]  # (b, queries with a place, m)
    return each.mean(axis=(0, 1))


def uniform_distance(grid: Grid, stride: tuple[int, int]) -> float:
    """Returns the mean distance that uniform attention over a grid has, in pixels.

    (h - |i|) (w - |j|) of the (h w)^2 pairs of patches are i rows and j columns apart.

    Args:
      grid: Rows and columns of the patches.
      stride: Pixels from one to the next, down and across.
    """
    (h, w), (down, across) = grid, stride
    i, j = np.arange(1 - h, h)[:, None], np.arange(1 - w, w)
    pairs = (h - np.abs(i)) * (w - np.abs(j))
    return float((pairs * np.hypot(i * down, j * across)).sum()) / math.prod(grid) ** 2


def on_map(
    weights: Float[np.ndarray, "b g m q n"],
    queries: Float[np.ndarray, "g q 2"],
    keys: Float[np.ndarray, "g n 2"],
    grid: Grid,
    query: tuple[int, int] | None = None,
) -> Float[np.ndarray, "b m h w"]:
    """Puts attention within windows on the map of tokens.

    Args:
      weights: Attention probabilities in g groups.
      queries: Row and column of each query on the map; NaN for padding.
      keys: The same of each key.
      grid: Rows and columns of the map.
      query: Row and column of the query to look at. None takes the mean over all:
        a token's share of all that is attended to.
    """
    real = ~np.isnan(queries[..., 0])
    chosen = real if query is None else (queries == query).all(axis=-1)
    summed = np.einsum("bgmqn,gq->bmgn", weights, chosen / chosen.sum())
    found = np.zeros((*summed.shape[:2], *grid))
    placed = ~np.isnan(keys[..., 0])
    rows, columns = keys[placed].astype(int).T
    for image, head in np.ndindex(*found.shape[:2]):
        np.add.at(found[image, head], (rows, columns), summed[image, head][placed])
    return found

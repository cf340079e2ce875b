# SPDX-License-Identifier: Apache-2.0
"""Numbers about what is learned before the first layer: Figure 7 of arXiv:2010.11929.

NumPy alone.
"""

import numpy as np
from jaxtyping import Float


def similarity(
    table: Float[np.ndarray, "n d"], grid: tuple[int, int]
) -> Float[np.ndarray, "h w h w"]:
    """Returns the cosine similarity of each position with each other (centre).

    Args:
      table: The position embeddings in raster order.
      grid: Their rows and columns, h and w.

    Returns:
      At [i, j] the similarities of the position in row i and column j with all others,
      on their grid. A vector of zeros is similar to none.
    """
    table = table.astype(np.float64)
    norms = np.linalg.norm(table, axis=-1, keepdims=True)
    unit = table / np.where(norms > 0, norms, 1.0)
    return (unit @ unit.T).reshape(*grid, *grid)


def nearest_are_neighbours(cosines: Float[np.ndarray, "h w h w"]) -> float:
    """Returns the share of positions whose most similar other one is next to them.

    Next to a position are those at most one row and one column away.

    Args:
      cosines: See `similarity`.
    """
    h, w = cosines.shape[:2]
    flat = cosines.reshape(h * w, h * w).copy()
    np.fill_diagonal(flat, -np.inf)
    places = np.moveaxis(np.indices((h, w)), 0, -1).reshape(-1, 2)
    steps = np.abs(places[flat.argmax(axis=1)] - places).max(axis=1)
    return float((steps <= 1).mean())


def filter_components(
    kernel: Float[np.ndarray, "p q c d"], count: int
) -> tuple[Float[np.ndarray, "k p q c"], Float[np.ndarray, " k"]]:
    """Returns the first principal components of the filters (left).

    The d filters are the samples and the values of a patch their features; the mean
    filter is taken off. The sign of a component means nothing: its largest value is
    made positive.

    Args:
      kernel: Of the convolution that embeds patches.
      count: How many components, at most as many as there are.

    Returns:
      The components, the one that explains most first, and the share of the variance
      that each explains.
    """
    features = kernel.reshape(-1, kernel.shape[-1]).T.astype(np.float64)
    centred = features - features.mean(axis=0)
    _, deviations, components = np.linalg.svd(centred, full_matrices=False)
    largest = np.abs(components).argmax(axis=1)
    components = (
        components * np.sign(components[np.arange(len(largest)), largest])[:, None]
    )
    explained = deviations**2 / max(float((deviations**2).sum()), 1e-30)
    return components[:count].reshape(-1, *kernel.shape[:-1]), explained[:count]

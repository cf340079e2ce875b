# SPDX-License-Identifier: Apache-2.0
"""Weighted votes of the nearest neighbours by cosine, as DINO evaluates features.

Each of the k most similar examples votes for its class with `exp(cosine / 0.07)`
(arXiv:2104.14294, section 4.1 and appendix F.1; the votes are those of Wu et al.,
arXiv:1805.01978, section 3.4). Nothing is trained, nothing standardised.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

TEMPERATURE = 0.07
USUAL_K = 20
"""The best number of neighbours in DINO's table."""

QUERIES = 1024
"""Queries that are compared with the support set at a time."""


def classify(
    support: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    queries: Float[np.ndarray, "m d"],
    values: Sequence[int],
    temperature: float = TEMPERATURE,
) -> tuple[list[Int[np.ndarray, " m"]], list[Bool[np.ndarray, " n"]]]:
    """Predicts classes by vote; of equal votes the class with the smaller id wins.

    Args:
      support: Features with known classes.
      labels: Those classes.
      queries: Features whose classes are asked for.
      values: Numbers of neighbours; more than there are is all of them.
      temperature: What cosines are divided by; the smaller, the more the very nearest
        count.

    Returns:
      For each number the classes of the queries, and which examples of the support set
      are right by the votes of the others; the latter is empty for a single number.
    """
    classes, columns = np.unique(labels, return_inverse=True)
    keys = _normalised(support)
    most = min(max(values), len(keys))
    cosines, neighbours = _nearest(keys, _normalised(queries), most)
    found = [
        classes[_vote(cosines, columns[neighbours], k, len(classes), temperature)]
        for k in values
    ]
    if len(values) == 1:
        return found, []
    # Everyone is its own nearest neighbour, or a duplicate is, and goes in its place.
    cosines, neighbours = _nearest(keys, keys, min(most + 1, len(keys)))
    own = neighbours == np.arange(len(keys))[:, None]
    own[:, -1] |= ~own.any(axis=1)
    others = ~own
    cosines = cosines[others].reshape(len(keys), -1)
    neighbours = neighbours[others].reshape(len(keys), -1)
    right = [
        _vote(cosines, columns[neighbours], k, len(classes), temperature) == columns
        for k in values
    ]
    return found, right


def _normalised(features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    lengths = np.linalg.norm(features.astype(np.float64), axis=1, keepdims=True)
    return (features / np.maximum(lengths, 1e-12)).astype(np.float32)


def _nearest(
    keys: Float[np.ndarray, "n d"], queries: Float[np.ndarray, "m d"], k: int
) -> tuple[Float[np.ndarray, "m k"], Int[np.ndarray, "m k"]]:
    """Returns the k largest cosines of each query, largest first, and whose they are.

    Of equal ones that with the smaller row comes first.
    """
    on_device, size = jnp.asarray(keys), min(QUERIES, len(queries))
    parts: list[Any] = []
    for start in range(0, len(queries), size):
        part = queries[start : start + size]
        padded = np.pad(part, [(0, size - len(part)), (0, 0)])
        best = jax.device_get(_top(on_device, padded, k))
        parts.append([array[: len(part)] for array in best])
    cosines, rows = zip(*parts, strict=True)
    return np.concatenate(cosines), np.concatenate(rows)


@functools.partial(jax.jit, static_argnames="k")
def _top(
    keys: Float[Array, "n d"], queries: Float[Array, "m d"], k: int
) -> list[Array]:
    # Accelerators would otherwise round the factors to bfloat16.
    cosines = jnp.matmul(queries, keys.T, precision=jax.lax.Precision.HIGHEST)
    return list(jax.lax.top_k(cosines, k))


def _vote(
    cosines: Float[np.ndarray, "m n"],
    columns: Int[np.ndarray, "m n"],
    k: int,
    num_classes: int,
    temperature: float,
) -> Int[np.ndarray, " m"]:
    cosines, columns = cosines[:, :k].astype(np.float64), columns[:, :k]
    # Relative to the nearest: the same winner, and no overflow.
    weights = np.exp((cosines - cosines[:, :1]) / temperature)
    votes = np.zeros((len(cosines), num_classes))
    np.add.at(votes, (np.arange(len(cosines))[:, None], columns), weights)
    return votes.argmax(axis=1)

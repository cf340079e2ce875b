# SPDX-License-Identifier: Apache-2.0
"""Regularised least squares in closed form, for a whole list of regularisers at once.

The paper maps frozen features to targets in {-1, 1}^k by least squares with an l2
penalty (arXiv:2010.11929, section 4.1). X (n, d) holds the features of the support
set, Y (n, k) the targets:

    W = (X'X + l2 I)^-1 X'Y = X' (XX' + l2 I)^-1 Y

One eigen-decomposition of the smaller of the two Gram matrices, Q diag(e) Q', serves
every l2, and both forms read W = basis (projected / (e + l2)):

    n >= d:  X'X = Q diag(e) Q',  basis = Q,    projected = Q'X'Y
    n < d:   XX' = Q diag(e) Q',  basis = X'Q,  projected = Q'Y

What the paper leaves open is as in big_vision and Scenic: features are standardised by
the support set, `(x - mean) / (std + 1e-5)`, and a constant feature of 100 stands for
the bias, so large that the penalty hardly touches it. l2 is added as it is, not times
n. All is float64 on the host.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

BIAS = 100.0
EPSILON = 1e-5
USUAL_L2 = 2.0**10
"""The fixed regulariser of big_vision."""


@dataclasses.dataclass(frozen=True)
class Ridge:
    """Least squares that are solved but for the regulariser.

    Attributes:
      x: The features.
      y: The targets.
      eigenvalues: e, of the smaller Gram matrix.
      q: Its eigenvectors.
      basis: See the module.
      projected: See the module.
    """

    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, "n k"]
    eigenvalues: Float[np.ndarray, " r"]
    q: Float[np.ndarray, "g r"]
    basis: Float[np.ndarray, "d r"]
    projected: Float[np.ndarray, "r k"]

    def weights(self, l2: float) -> Float[np.ndarray, "d k"]:
        """Returns W."""
        return self.basis @ self._shrunk(l2)

    def scores(
        self, rotated: Float[np.ndarray, "m r"], l2: float
    ) -> Float[np.ndarray, "m k"]:
        """Returns `x W` for features that were multiplied with `basis` once."""
        return rotated @ self._shrunk(l2)

    def left_out(self, l2: float) -> Float[np.ndarray, "n k"]:
        """Returns the scores of each row from weights that were fitted without it.

        `y - (y - f(x)) / (1 - h)`, with h the diagonal of X (X'X + l2 I)^-1 X', equals
        n fits (Allen, Technometrics 16, 1974). Standardisation stays that of all rows.
        """
        inverse = 1.0 / (self.eigenvalues + l2)
        if self.basis is self.q:
            rotated = self.x @ self.q
            residual = self.y - rotated @ self._shrunk(l2)
            free = 1.0 - np.square(rotated) @ inverse
        else:
            # Both over l2, which saves the subtractions: I - H = l2 (XX' + l2 I)^-1.
            residual = self.q @ self._shrunk(l2)
            free = np.square(self.q) @ inverse
        return self.y - residual / np.maximum(free, 1e-12)[:, None]

    def _shrunk(self, l2: float) -> Float[np.ndarray, "r k"]:
        return self.projected / (self.eigenvalues + l2)[:, None]


def solve(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n k"]) -> Ridge:
    """Does all of the work that does not depend on the regulariser."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    n, d = x.shape
    if n >= d:
        eigenvalues, q = np.linalg.eigh(x.T @ x)
        return Ridge(x, y, np.maximum(eigenvalues, 0.0), q, q, q.T @ (x.T @ y))
    eigenvalues, q = np.linalg.eigh(x @ x.T)
    return Ridge(x, y, np.maximum(eigenvalues, 0.0), q, x.T @ q, q.T @ y)


@dataclasses.dataclass(frozen=True)
class Scaler:
    """Standardises features by the mean and deviation of others.

    Attributes:
      mean: Of the support set.
      std: Population deviation of the support set, plus `EPSILON`.
    """

    mean: Float[np.ndarray, " d"]
    std: Float[np.ndarray, " d"]

    @classmethod
    def fit(cls, features: Float[np.ndarray, "n d"]) -> "Scaler":
        """Measures the support set."""
        features = features.astype(np.float64)
        return cls(features.mean(axis=0), features.std(axis=0) + EPSILON)

    def apply(self, features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Returns standardised features."""
        return (features - self.mean) / self.std

    def apply_with_bias(
        self, features: Float[np.ndarray, "n d"]
    ) -> Float[np.ndarray, "n d1"]:
        """Returns standardised features and the constant one."""
        return np.pad(self.apply(features), ((0, 0), (0, 1)), constant_values=BIAS)


def classify(
    support: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    queries: Float[np.ndarray, "m d"],
    values: Sequence[float],
) -> tuple[list[Int[np.ndarray, " m"]], list[Bool[np.ndarray, " n"]]]:
    """Predicts classes by the largest score.

    A class without support has no column. It could not win: its column would be the
    constant -s, while the mean of the k present ones is s (2 - k) / k > -s.

    Args:
      support: Features with known classes.
      labels: Those classes.
      queries: Features whose classes are asked for.
      values: The regularisers.

    Returns:
      For each regulariser the classes of the queries, and which rows of the support
      set are right when they are left out; the latter is empty for a single one.
    """
    classes, columns = np.unique(labels, return_inverse=True)
    targets = np.where(columns[:, None] == np.arange(len(classes)), 1.0, -1.0)
    scaler = Scaler.fit(support)
    ridge = solve(scaler.apply_with_bias(support), targets)
    rotated = scaler.apply_with_bias(queries) @ ridge.basis
    predictions, right = [], []
    for l2 in values:
        predictions.append(classes[ridge.scores(rotated, l2).argmax(axis=1)])
        if len(values) > 1:
            right.append(ridge.left_out(l2).argmax(axis=1) == columns)
    return predictions, right

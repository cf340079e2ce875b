# SPDX-License-Identifier: Apache-2.0
"""Linear probe: multinomial logistic regression on frozen features.

It minimises the summed cross-entropy plus `l2 / 2 * |W|^2`, the bias free, over the
whole support set; scikit-learn's LogisticRegression with `C = 1 / l2` is the same
problem. The gradient comes from the device, L-BFGS from SciPy. Features are
standardised by the support set, as in `ridge`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from vit_jax.evaluators.ridge import Scaler

USUAL_L2 = 1.0
MAX_STEPS = 1000
TOLERANCE = 1e-6
"""Largest entry of the gradient of the mean loss at the end."""

HELD_OUT = 5
"""Every so many examples of a class one is held out to compare regularisers."""


def classify(
    support: Float[np.ndarray, "n d"],
    labels: Int[np.ndarray, " n"],
    queries: Float[np.ndarray, "m d"],
    values: Sequence[float],
) -> tuple[list[Int[np.ndarray, " m"]], list[Bool[np.ndarray, " h"]]]:
    """Predicts classes by the largest logit.

    Args:
      support: Features with known classes.
      labels: Those classes.
      queries: Features whose classes are asked for.
      values: The regularisers.

    Returns:
      For each regulariser the classes of the queries; and, if there are several, which
      held-out examples of the support set (each fifth of a class) are right by a fit to
      the others.
    """
    classes, columns = np.unique(labels, return_inverse=True)

    def predict(
        rows: Int[np.ndarray, " r"], features: Float[np.ndarray, "q d"], l2: float
    ) -> Int[np.ndarray, " q"]:
        scaler = Scaler.fit(support[rows])
        kernel, bias = fit(scaler.apply(support[rows]), columns[rows], len(classes), l2)
        return (scaler.apply(features) @ kernel + bias).argmax(axis=1)

    everything = np.arange(len(labels))
    found = [classes[predict(everything, queries, l2)] for l2 in values]
    held_out = _places_within_classes(columns) % HELD_OUT == HELD_OUT - 1
    if len(values) == 1 or not held_out.any():
        return found, []
    rest = np.flatnonzero(~held_out)
    right = [predict(rest, support[held_out], l2) == columns[held_out] for l2 in values]
    return found, right


def _places_within_classes(columns: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Returns how many earlier examples each one has in its class."""
    order = np.argsort(columns, kind="stable")
    firsts = np.searchsorted(columns[order], columns[order])
    places = np.empty_like(order)
    places[order] = np.arange(len(columns)) - firsts
    return places


def fit(
    features: Float[np.ndarray, "n d"],
    columns: Int[np.ndarray, " n"],
    num_classes: int,
    l2: float,
) -> tuple[Float[np.ndarray, "d k"], Float[np.ndarray, " k"]]:
    """Returns kernel and bias of the regression.

    Args:
      features: Standardised features.
      columns: Class of each, 0 to k - 1.
      num_classes: k.
      l2: The penalty.
    """
    from scipy.optimize import minimize

    d = features.shape[1]
    x, y = jnp.asarray(features, jnp.float32), jnp.asarray(columns)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        params = jnp.asarray(flat.reshape(d + 1, num_classes), jnp.float32)
        value, gradient = jax.device_get(_objective(params, x, y, jnp.float32(l2)))
        return float(value), gradient.astype(np.float64).ravel()

    found = minimize(
        objective,
        np.zeros((d + 1) * num_classes),
        jac=True,
        method="L-BFGS-B",
        # It ends by the gradient: the value has too few digits in float32 to tell.
        options={"maxiter": MAX_STEPS, "gtol": TOLERANCE, "ftol": 0.0},
    )
    params = found.x.reshape(d + 1, num_classes)
    return params[:-1], params[-1]


@jax.jit
@jax.value_and_grad
def _objective(
    params: Float[Array, "d1 k"],
    x: Float[Array, "n d"],
    columns: Int[Array, " n"],
    l2: Float[Array, ""],
) -> Float[Array, ""]:
    """Returns the mean loss and penalty, with the bias as the last row of `params`."""
    kernel, bias = params[:-1], params[-1:]
    logits = jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST) + bias
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, columns)
    # Divided by n, so that one tolerance serves supports of every size.
    return losses.mean() + l2 / (2 * len(x)) * jnp.square(kernel).sum()

# SPDX-License-Identifier: Apache-2.0
"""Linear probe: multinomial logistic regression on frozen features.

It minimises the summed cross-entropy plus `l2 / 2 * |W|^2`, the bias free, over the
whole support set by L-BFGS; scikit-learn's LogisticRegression with `C = 1 / l2` is the
same problem. Features are standardised by the support set, as in `ridge`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from vit_jax.evaluators.ridge import Scaler

USUAL_L2 = 1.0
MAX_STEPS = 1000
TOLERANCE = 1e-5
"""Largest norm of the gradient of the mean loss at the end."""

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
    x = jnp.asarray(features, jnp.float32)
    fitted = _minimise(x, jnp.asarray(columns), num_classes, jnp.float32(l2))
    kernel, bias = jax.device_get(fitted)
    return np.asarray(kernel), np.asarray(bias)


@functools.partial(jax.jit, static_argnames="num_classes")
def _minimise(
    x: Float[Array, "n d"],
    columns: Int[Array, " n"],
    num_classes: int,
    l2: Float[Array, ""],
) -> tuple[Array, Array]:
    def objective(params: tuple[Array, Array]) -> Float[Array, ""]:
        kernel, bias = params
        product = jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            product + bias[None], columns
        )
        # Divided by n, so that one tolerance serves supports of every size.
        return losses.mean() + l2 / (2 * len(x)) * jnp.square(kernel).sum()

    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def step(carry: Any) -> Any:
        params, state, _, count = carry
        value, grad = value_and_grad(params, state=state)
        updates, state = optimizer.update(
            grad, state, params, value=value, grad=grad, value_fn=objective
        )
        norm = optax.tree.norm(grad)
        return optax.apply_updates(params, updates), state, norm, count + 1

    def unfinished(carry: Any) -> Any:
        return (carry[2] > TOLERANCE) & (carry[3] < MAX_STEPS)

    params = jnp.zeros((x.shape[1], num_classes)), jnp.zeros(num_classes)
    start = params, optimizer.init(params), jnp.float32(jnp.inf), 0
    return jax.lax.while_loop(unfinished, step, start)[0]

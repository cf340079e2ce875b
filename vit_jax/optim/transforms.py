# SPDX-License-Identifier: Apache-2.0
"""Update directions by name: our table first, then whatever optax offers.

A direction points uphill, like a gradient: `build_optimizer` adds the weight decay to
it and multiplies the sum by minus the learning rate. Hyperparameters keep the names
that optax gives them, so its documentation applies.
"""

import inspect
from collections.abc import Callable
from typing import Any

import optax

from vit_jax.errors import UserError, unknown


def sgd(
    momentum: float = 0.0, nesterov: bool = False, accumulator_dtype: Any = None
) -> optax.GradientTransformation:
    """Gradient descent; with momentum m, the direction is d <- gradient + m * d.

    Args:
      momentum: m above, 0 to 1; 0 keeps no state.
      nesterov: Whether to look ahead: the direction is gradient + m * d.
      accumulator_dtype: dtype of d; None is the parameter's.
    """
    if not momentum:
        return optax.identity()
    return optax.trace(momentum, nesterov=nesterov, accumulator_dtype=accumulator_dtype)


# Adam (arXiv:1412.6980) under two names: recipes say "adamw" where they decay and
# "adam" where they do not, and our decay is decoupled for every direction.
TRANSFORMS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": optax.scale_by_adam,
    "adamw": optax.scale_by_adam,
    "sgd": sgd,
}


# Functions of optax that look like an optimizer and are none here: they need the loss
# or a random key, their learning rate is not a factor of the update, or they are
# deprecated.
NOT_OFFERED = {
    "fromage",
    "lbfgs",
    "noisy_sgd",
    "optimistic_adam",
    "rprop",
    "scale_by_backtracking_linesearch",
    "scale_by_lbfgs",
    "scale_by_learning_rate",
    "scale_by_polyak",
    "scale_by_rprop",
    "scale_by_schedule",
    "scale_by_zoom_linesearch",
}

# Arguments of optax's functions that `build_optimizer` decides.
OURS = {"learning_rate", "weight_decay", "mask", "weight_decay_mask"}


def known_names() -> list[str]:
    """Returns every name that `build_direction` knows: the table and optax's own."""
    names = set(TRANSFORMS)
    for name, value in vars(optax).items():
        if name.startswith("_") or not inspect.isfunction(value):
            continue
        accepted = inspect.signature(value).parameters
        if name.startswith("scale_by_") or "learning_rate" in accepted:
            names.add(name)
    return sorted(names - NOT_OFFERED)


def direction_options(name: str) -> set[str]:
    """Returns the names of the options that the optimizer `name` takes.

    Raises:
      UserError: An unknown name.
    """
    return set(inspect.signature(_factory(name)).parameters) - OURS


def build_direction(
    name: str, weight_decay: float, decay_mask: Any, options: dict[str, Any]
) -> tuple[optax.GradientTransformation, bool]:
    """Builds the direction that an optimizer moves along.

    Args:
      name: A key of `TRANSFORMS`; an optimizer of optax such as `lion`, used with
        learning rate 1; or a `scale_by_...` of optax.
      weight_decay: Given to those optimizers of optax that take `weight_decay` and a
        mask, since some, such as `lamb`, use it inside their direction.
      decay_mask: Tree of booleans, True for the parameters to decay.
      options: Keyword arguments of that function, some of `direction_options`.

    Returns:
      The transformation, and whether it contains the weight decay already.

    Raises:
      UserError: An unknown name, or an option that optax refuses.
    """
    factory = _factory(name)
    accepted = set(inspect.signature(factory).parameters)
    masks = accepted & {"mask", "weight_decay_mask"}
    fixed: dict[str, Any] = dict.fromkeys(masks, decay_mask)
    if "learning_rate" in accepted:
        fixed["learning_rate"] = 1.0
    if "weight_decay" in accepted:
        fixed["weight_decay"] = weight_decay if masks else 0.0
    try:
        transform = factory(**fixed, **options)
    except (TypeError, ValueError) as err:
        raise UserError(
            f"optimizer {name!r} refuses its options {options}: {err}"
        ) from err
    if "learning_rate" in accepted:  # it points downhill
        transform = optax.chain(transform, optax.scale(-1.0))
    return transform, bool(masks) and "weight_decay" in accepted


def _factory(name: str) -> Callable[..., optax.GradientTransformation]:
    known = known_names()
    if name not in known:
        raise unknown("optimizer", name, known)
    return TRANSFORMS.get(name) or getattr(optax, name)

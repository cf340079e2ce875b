# SPDX-License-Identifier: Apache-2.0
"""Optimizers: direction, weight decay, learning rate, freezing and clipping.

The names of the parameters decide what is decayed, frozen or given another learning
rate, through lists of `(pattern, value)` rules in which the first match wins.
Accumulation of gradients is not here: the step sums them before the optimizer runs,
so that "step" has one meaning everywhere.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import optax

from vit_jax import trees
from vit_jax.errors import UserError, unknown
from vit_jax.optim.schedules import NAMES, Schedule, build_schedule
from vit_jax.optim.transforms import build_direction, direction_options

# The paper does not say which parameters it decays; big_vision decays the kernels, that
# is neither biases, norms, class tokens nor position tables.
DECAY_KERNELS = ((r"(.*/)?kernel", True), (r".*", False))


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer and what there is to say about it.

    Attributes:
      tx: The optax transformation; `init(params)` and `update(grads, state, params)`.
      schedule: The learning rate of update s + 1 as a function of s, before the
        factors of `lr_rules`.
      decayed: Names of the parameters that the weight decay shrinks.
      frozen: Names of the parameters that never change.
    """

    tx: optax.GradientTransformation
    schedule: Schedule
    decayed: tuple[str, ...]
    frozen: tuple[str, ...]


def build_optimizer(  # noqa: PLR0913 - the arguments are a section of the config
    params: Any,
    *,
    name: str = "adamw",
    lr: float,
    total_steps: int,
    schedule: str | Mapping[str, Any] = "cosine",
    warmup_steps: int = 0,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    decay_rules: Sequence[tuple[str, bool]] = DECAY_KERNELS,
    lr_rules: Sequence[tuple[str, float]] = ((".*", 1.0),),
    freeze_rules: Sequence[tuple[str, bool]] = ((".*", False),),
    **options: Any,
) -> Optimizer:
    """Builds the optimizer of a run.

    Update s + 1 adds to each parameter that is not frozen

        -schedule(s) * factor * (direction + weight_decay * parameter)

    with weight decay on the decayed parameters only. So a step shrinks a weight by
    learning rate times `weight_decay`: the convention of the paper (arXiv:2010.11929
    table 3, as inferred from released recipes), of `torch.optim.AdamW` and of
    `optax.adamw`. A weight decay of big_vision, which leaves `lr` out of the product,
    must be divided by its `lr` (1e-4 there at lr 1e-3 is 0.1 here).

    Args:
      params: The parameters or their shapes; only the names are looked at.
      name: `adamw`, `adam`, `sgd`, any optimizer of optax (`lion`, `lamb`, ...) or any
        of its `scale_by_...`.
      lr: The peak learning rate.
      total_steps: Updates of the whole run.
      schedule: A name (`constant`, `cosine`, `linear`, `rsqrt`), or a mapping of
        `name` and options of `schedules.build_schedule`.
      warmup_steps: Updates over which the learning rate rises from 0.
      weight_decay: See the formula; 0 is none.
      clip_norm: Scales the gradients down so that their global norm, over all
        parameters that are not frozen, is at most this; None does not.
      decay_rules: Pairs of a pattern for whole names and whether to decay.
      lr_rules: Pairs of a pattern and a factor on the learning rate.
      freeze_rules: Pairs of a pattern and whether to freeze. Frozen parameters have
        zero updates and no optimizer state.
      **options: Passed on by name, such as `b2=0.95`, `momentum=0.9` or
        `mu_dtype="bfloat16"`.

    Returns:
      The optimizer.

    Raises:
      UserError: An unknown name, option or schedule, a number out of range, a
        parameter that no rule matches, or rules that freeze every parameter.
    """
    _check_options(name, options)
    if weight_decay < 0:
        raise UserError(f"weight_decay is {weight_decay}; use a number of 0 or more")
    if clip_norm is not None and clip_norm <= 0:
        raise UserError(
            f"clip_norm is {clip_norm}; use a number above 0, or None not to clip"
        )
    schedule_name, schedule_options = _split_schedule(schedule)
    rate = build_schedule(
        schedule_name,
        lr=lr,
        total_steps=total_steps,
        warmup_steps=warmup_steps,
        **schedule_options,
    )
    decay = trees.match_rules(params, decay_rules, "weight decay")
    factors = trees.match_rules(params, lr_rules, "learning rate factor")
    frozen = trees.match_rules(params, freeze_rules, "freezing")
    frozen_names = _names_where(frozen)
    if frozen_names and all(jax.tree.leaves(frozen)):
        raise UserError(
            "freeze_rules freeze every parameter, so nothing would be trained; "
            "add a rule with False for the parameters to train"
        )

    direction, has_decay = build_direction(name, weight_decay, decay, options)
    parts = [] if clip_norm is None else [optax.clip_by_global_norm(clip_norm)]
    parts.append(direction)
    if weight_decay and not has_decay:
        parts.append(optax.add_decayed_weights(weight_decay, mask=decay))
    parts.append(optax.scale_by_schedule(lambda step: -rate(step)))
    tx = optax.chain(*parts)
    if frozen_names:
        labels = jax.tree.map(lambda f: "frozen" if f else "trained", frozen)
        tx = optax.partition({"trained": tx, "frozen": optax.set_to_zero()}, labels)
    if any(factor != 1.0 for factor in jax.tree.leaves(factors)):
        tx = optax.chain(tx, _scale_by(factors))
    decayed = set(_names_where(decay)) if weight_decay else set()
    return Optimizer(
        tx=tx,
        schedule=rate,
        decayed=tuple(sorted(decayed - set(frozen_names))),
        frozen=frozen_names,
    )


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    allowed = direction_options(name)
    for option in options:
        if option not in allowed:
            own = set(inspect.signature(build_optimizer).parameters)
            own -= {"params", "total_steps", "options"}
            raise unknown(f"option of optimizer {name}", option, allowed | own)


def _split_schedule(
    schedule: str | Mapping[str, Any],
) -> tuple[str, dict[str, Any]]:
    """Returns the name of a schedule and its options, checked by name."""
    if isinstance(schedule, str):
        return schedule, {}
    options = dict(schedule)
    allowed = ("name", "cooldown_steps", "linear_end", "timescale")
    for key in options:
        if key not in allowed:
            raise unknown("schedule option", key, allowed)
    if "name" not in options:
        raise UserError(
            f"the schedule {options} has no name; add name= one of {', '.join(NAMES)}"
        )
    return options.pop("name"), options


def _names_where(tree: Any) -> tuple[str, ...]:
    return tuple(name for name, value in trees.flatten(tree).items() if value)


def _scale_by(factors: Any) -> optax.GradientTransformation:
    """Multiplies each update by its own factor."""

    def update(updates: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda factor, u: factor * u, factors, updates)

    return optax.stateless(update)

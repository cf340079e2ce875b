# SPDX-License-Identifier: Apache-2.0
"""How frozen features are evaluated: method, support sets, regularisers.

Two conventions fill in what is not given. The mathematics is the same (see `ridge`);
they differ in whose defaults they are:

- `big_vision`: random support sets of seeds 0, 1, 2 and one fixed l2 of 2^10.
- `scenic`: one support set, the first examples of each class in the order of the
  split, and l2 of 2^-10, 2^-9, ..., 2^20. Scenic takes the l2 that is best on the
  *test* set; that is not done here.

Where there are several regularisers (or numbers of neighbours), all are reported, and
one is chosen without a look at the test set, for each number of shots: the one with
most right answers on the support sets of all seeds for examples that are left out. The
ridge and the k-NN leave out each example in turn, the probe each fifth of a class. Of
equal ones, as always with 1 shot, it is the one nearest to the usual value by ratio.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vit_jax.errors import UserError, unknown
from vit_jax.evaluators import knn, probe, ridge
from vit_jax.evaluators.support import Shots


@dataclasses.dataclass(frozen=True)
class Method:
    """A classifier on frozen features.

    Attributes:
      classify: `(support, labels, queries, values) ->` the predictions for each value,
        and which left-out examples are right.
      parameter: What `values` are.
      usual: The value that is taken where nothing speaks for another.
      shots: The usual numbers of examples a class.
    """

    classify: Callable[..., tuple[list[Any], list[Any]]]
    parameter: str
    usual: float
    shots: tuple[Shots, ...]


METHODS: Mapping[str, Method] = {
    "ridge": Method(ridge.classify, "l2", ridge.USUAL_L2, (1, 5, 10, 25)),
    "probe": Method(probe.classify, "l2", probe.USUAL_L2, ("all",)),
    "knn": Method(knn.classify, "k", knn.USUAL_K, ("all",)),
}


@dataclasses.dataclass(frozen=True)
class Convention:
    """Defaults of a code base.

    Attributes:
      l2: The regularisers.
      seeds: Number of support sets.
      shuffled: Whether they are random.
    """

    l2: tuple[float, ...]
    seeds: int
    shuffled: bool


CONVENTIONS: Mapping[str, Convention] = {
    "big_vision": Convention((ridge.USUAL_L2,), 3, shuffled=True),
    "scenic": Convention(tuple(2.0**p for p in range(-10, 21)), 1, shuffled=False),
}


@dataclasses.dataclass(frozen=True)
class Protocol:
    """A method with all its settings.

    Attributes:
      name: Key of `METHODS`.
      shots: Numbers of examples a class.
      seeds: Number of support sets.
      values: The regularisers, or numbers of neighbours.
      shuffled: Whether support sets are random.
    """

    name: str
    shots: tuple[Shots, ...]
    seeds: int
    values: tuple[float, ...]
    shuffled: bool

    @property
    def method(self) -> Method:
        """The method itself."""
        return METHODS[self.name]

    def metric(self, shots: Shots) -> str:
        """Returns what the accuracy is called: `5shot`, `knn`, `knn/5shot`."""
        if self.name == "ridge":
            return f"{shots}shot"
        return self.name if len(self.shots) == 1 else f"{self.name}/{shots}shot"

    def choose(self, right: Sequence[int]) -> float:
        """Returns one of the values; see the module.

        Args:
          right: How many left-out examples each value gets right; empty if unknown.
        """
        best = max(right, default=0)
        candidates = [
            value
            for index, value in enumerate(self.values)
            if not right or right[index] == best
        ]
        return min(candidates, key=lambda value: abs(math.log(value / self.usual)))

    @property
    def usual(self) -> float:
        """The usual value."""
        return self.method.usual


def make_protocol(
    name: str = "ridge",
    *,
    convention: str = "big_vision",
    shots: Shots | Sequence[Shots] | None = None,
    seeds: int | None = None,
    values: float | Sequence[float] | None = None,
) -> Protocol:
    """Checks settings and fills in what is not given.

    Args:
      name: Key of `METHODS`.
      convention: Key of `CONVENTIONS`.
      shots: Numbers of examples a class, "all" among them; None for the usual ones.
      seeds: Number of support sets; None for the convention's.
      values: The regularisers, or numbers of neighbours; None for the convention's.

    Raises:
      UserError: An unknown name, or a value out of range.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    if convention not in CONVENTIONS:
        raise unknown("convention", convention, CONVENTIONS)
    method, defaults = METHODS[name], CONVENTIONS[convention]
    numbers = method.shots if shots is None else _as_tuple(shots)
    if seeds is None:
        seeds = 1 if numbers == ("all",) else defaults.seeds
    if values is None:
        values = defaults.l2 if name == "ridge" else method.usual
    protocol = Protocol(name, numbers, seeds, _as_tuple(values), defaults.shuffled)
    _check(protocol)
    return protocol


def _check(protocol: Protocol) -> None:
    method = protocol.method
    whole = method.parameter == "k"
    for number in protocol.shots:
        if number != "all" and number < 1:
            raise UserError(
                f"shots are {number}; give numbers of examples a class, such as 1, 5, "
                "10, or 'all'"
            )
    for value in protocol.values:
        if value <= 0 or (whole and not isinstance(value, int)):
            kind = "a whole number" if whole else "a number"
            raise UserError(
                f"{method.parameter} is {value}; give {kind} above 0, such as "
                f"{method.usual:g}"
            )
    if protocol.seeds < 1:
        raise UserError(
            f"seeds is {protocol.seeds}; give the number of support sets, such as 3"
        )
    if not protocol.shots or not protocol.values:
        raise UserError(
            f"{protocol.name} needs at least one number of shots and one "
            f"{method.parameter}"
        )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)

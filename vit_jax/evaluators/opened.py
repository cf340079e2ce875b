# SPDX-License-Identifier: Apache-2.0
"""An evaluator whose data is open and whose model is not there yet."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from vit_jax.data.feed import EvalFeed
from vit_jax.evaluators.subject import Subject
from vit_jax.losses import Loss


@runtime_checkable
class Evaluator(Protocol):
    """What the loop asks of an evaluator."""

    def run(self, params: Any) -> Iterator[tuple[str, float]]:
        """Yields each metric by its name."""
        ...


@dataclasses.dataclass(frozen=True)
class Opened:
    """An evaluator before there is a model to evaluate.

    Attributes:
      feed: The split that is evaluated.
      bind: Makes the evaluator of a model and its loss.
      own_classes: Whether its classes are those of its own data set and not those of
        the training data.
    """

    feed: EvalFeed
    bind: Callable[[Subject, Loss], Evaluator]
    own_classes: bool = False

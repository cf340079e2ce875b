# SPDX-License-Identifier: Apache-2.0
"""The evaluators of a config: their data first, then bound to a model."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vit_jax import losses
from vit_jax.build import fields as fields_lib
from vit_jax.config import section_call
from vit_jax.data.feed import EvalFeed, TrainFeed
from vit_jax.errors import unknown
from vit_jax.evaluators import EVALUATORS
from vit_jax.evaluators.opened import Evaluator, Opened
from vit_jax.evaluators.subject import Subject
from vit_jax.train.loop import Evaluation
from vit_jax.train.state import TrainState


@dataclasses.dataclass(frozen=True)
class OpenEvaluator:
    """An evaluator before there is a model to evaluate, with its cadence."""

    opened: Opened
    every: int | None

    @property
    def feed(self) -> EvalFeed:
        """The split that is evaluated."""
        return self.opened.feed


def open_evaluators(
    section: Mapping[str, Any], train: TrainFeed, num_classes: int | None
) -> dict[str, OpenEvaluator]:
    """Opens the data of every evaluator.

    Raises:
      UserError: An unknown type or field, or whatever is wrong with the data.
    """
    opened = {}
    for name, given in section.items():
        given, every = fields_lib.take_steps(given, "every", train, None)
        fields, kind = fields_lib.take(given, "type")
        if kind not in EVALUATORS:
            raise unknown(f"config.evaluators.{name}.type:", str(kind), EVALUATORS)
        evaluator = section_call(
            EVALUATORS[kind],
            fields,
            f"evaluators.{name}",
            train=train,
            num_classes=num_classes,
        )
        opened[name] = OpenEvaluator(evaluator, every)
    return opened


def bind_evaluators(
    evaluators: Mapping[str, OpenEvaluator],
    subject: Subject,
    loss: losses.Loss,
    averaged: bool,
) -> dict[str, Evaluation]:
    """Binds each evaluator to the model; averaged weights are evaluated as well.

    Raises:
      UserError: A feature that the model does not have.
    """

    def bind(
        name: str, evaluator: Evaluator
    ) -> Callable[..., Iterator[tuple[str, float]]]:
        def run(state: TrainState) -> Iterator[tuple[str, float]]:
            for metric, value in evaluator.run(state.params):
                yield f"{name}/{metric}", value
            if averaged:
                for metric, value in evaluator.run(state.ema):
                    yield f"{name}_ema/{metric}", value

        return run

    return {
        name: Evaluation(bind(name, each.opened.bind(subject, loss)), each.every)
        for name, each in evaluators.items()
    }

# SPDX-License-Identifier: Apache-2.0
"""Which examples of a training split support a few-shot classifier.

Rule, for `shots` examples a class:

- A seed draws a permutation of the rows of each class from a generator of its own,
  seeded by (seed, class); the first `shots` are taken. So 1 shot is part of 5 shots,
  and the choice depends on nothing but the labels in the order of the split: not on
  devices, processes or other classes. `shuffled=False` takes the first rows instead.
- A class with fewer examples gives all that it has.
- A class without any is in no support set. Its test examples count as wrong.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int

from vit_jax.data.labels import MultiHot
from vit_jax.data.sources import Source
from vit_jax.errors import UserError

Shots = int | Literal["all"]


def select(
    labels: Int[np.ndarray, " n"], shots: Shots, seed: int, shuffled: bool = True
) -> Int[np.ndarray, " s"]:
    """Returns the rows of a support set, class by class.

    Args:
      labels: Class id of each row; negative ones are never taken.
      shots: Examples a class, or "all".
      seed: Number of the support set.
      shuffled: Whether a class gives random rows, and not its first ones.
    """
    order = np.argsort(labels, kind="stable")
    classes, firsts = np.unique(labels[order], return_index=True)
    chosen = [np.empty(0, np.int64)]
    for class_id, rows in zip(classes, np.split(order, firsts[1:]), strict=True):
        if class_id < 0:
            continue
        if shots != "all":
            if shuffled:
                generator = np.random.default_rng([seed, int(class_id)])
                rows = generator.permutation(rows)
            rows = rows[:shots]
        chosen.append(rows)
    return np.concatenate(chosen)


def class_ids(source: Source) -> Int[np.ndarray, " n"]:
    """Returns one class an example.

    Raises:
      UserError: Several labels an example, numbers to predict, or no label.
    """
    labels = source.labels
    if isinstance(labels, MultiHot) or not np.issubdtype(labels.dtype, np.integer):
        kind = "several labels" if isinstance(labels, MultiHot) else "a number"
        raise UserError(
            f"{source.description} has {kind} an example, and few-shot and k-NN "
            "evaluation need one class; use another data set"
        )
    if (labels < 0).any():
        (name,) = source.names(np.flatnonzero(labels < 0)[:1])
        raise UserError(
            f"{int((labels < 0).sum())} examples of {source.description} have no "
            f"label, first {name}; use another split"
        )
    return labels


def describe_shortage(
    support: Int[np.ndarray, " n"],
    test: Int[np.ndarray, " m"],
    shots: Sequence[Shots],
    class_names: Sequence[str] | None,
) -> dict[str, object]:
    """Lists the classes that the rule above has to make do with.

    Args:
      support: Labels of the whole training split.
      test: Labels of the test split.
      shots: Examples a class.
      class_names: Name of each class; None takes the ids.

    Returns:
      `absent_classes`, of the test split and without an example in the training split;
      `short_classes`, for each number of shots those with fewer examples than that.
    """
    count = 1 + max(int(support.max(initial=-1)), int(test.max(initial=-1)))
    examples = np.bincount(support, minlength=count)
    tested = np.bincount(test, minlength=count) > 0

    def named(which: np.ndarray) -> list[str]:
        ids = np.flatnonzero(which).tolist()
        return [str(i) if class_names is None else class_names[i] for i in ids]

    return {
        "absent_classes": named((examples == 0) & tested),
        "short_classes": {
            str(number): named((examples > 0) & (examples < number))
            for number in shots
            if number != "all"
        },
    }

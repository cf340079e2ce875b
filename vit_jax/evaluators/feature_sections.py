# SPDX-License-Identifier: Apache-2.0
"""The evaluators of frozen features as sections of a config: `fewshot`, `knn`, `probe`.

The keyword arguments of `open_fewshot`, `open_knn` and `open_probe` are the fields of
the three types; `open_features` is what they share with the command line.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from vit_jax.data.feed import TrainFeed, eval_feed
from vit_jax.data.sources import check_source, open_source
from vit_jax.evaluators import support as support_lib
from vit_jax.evaluators.fewshot import Evaluator
from vit_jax.evaluators.opened import Opened
from vit_jax.evaluators.protocol import Protocol, make_protocol
from vit_jax.evaluators.subject import Subject
from vit_jax.evaluators.support import Shots


@dataclasses.dataclass(frozen=True)
class Splits:
    """Where the examples come from and how they reach the model.

    Attributes:
      dataset: A DATASET.
      train_split: Where support sets are taken from.
      test_split: Where they are tested.
      ops: Preprocessing of both.
      mesh: The device mesh.
      batch_size: Images at a time.
      data_dir: Where prepared TensorFlow Datasets lie.
    """

    dataset: str
    train_split: str
    test_split: str
    ops: str
    mesh: Mesh
    batch_size: int
    data_dir: str | None = None


def open_features(splits: Splits, feature: str, protocol: Protocol) -> Opened:
    """Opens both splits.

    Args:
      splits: Where the examples come from.
      feature: A named output of the model; see `Subject.features`.
      protocol: What is done with the features.

    Raises:
      UserError: Whatever is wrong with the data or the ops.
    """
    train = open_source(splits.dataset, splits.train_split, data_dir=splits.data_dir)
    test = open_source(
        splits.dataset,
        splits.test_split,
        class_names=train.class_names,
        data_dir=splits.data_dir,
    )
    for source in (train, test):
        check_source(source)
        support_lib.class_ids(source)
    train_feed, test_feed = (
        eval_feed(source, splits.ops, splits.mesh, splits.batch_size)
        for source in (train, test)
    )

    def bind(subject: Subject, loss: Any) -> Evaluator:
        del loss
        return Evaluator(subject.features(feature), train_feed, test_feed, protocol)

    return Opened(test_feed, bind, own_classes=True)


def open_fewshot(  # noqa: PLR0913 - the arguments are a section of the config
    *,
    dataset: str,
    split: str,
    ops: str,
    train: TrainFeed,
    num_classes: int | None = None,
    train_split: str = "train",
    feature: str = "pre_logits",
    convention: str = "big_vision",
    shots: Shots | Sequence[Shots] | None = None,
    seeds: int | None = None,
    l2: float | Sequence[float] | None = None,
    batch_size: int | None = None,
    data_dir: str | None = None,
) -> Opened:
    """Opens the type `fewshot`: regularised least squares on a few examples a class.

    Args:
      dataset: A DATASET.
      split: The test split.
      ops: The preprocessing.
      train: The training data, for its mesh and batch size.
      num_classes: Not used: classes are those of the data set.
      train_split: Where support sets are taken from.
      feature: A named output of the model; see `Subject.features`.
      convention: `big_vision` or `scenic`; see `protocol`.
      shots: Numbers of examples a class; None for 1, 5, 10 and 25.
      seeds: Number of support sets; None for the convention's.
      l2: Regularisers; None for the convention's.
      batch_size: Images at a time; None takes that of training.
      data_dir: Where prepared TensorFlow Datasets lie.

    Raises:
      UserError: Whatever is wrong with the data, the ops or the settings.
    """
    del num_classes
    protocol = make_protocol(
        "ridge", convention=convention, shots=shots, seeds=seeds, values=l2
    )
    size = batch_size or train.batch_size
    splits = Splits(dataset, train_split, split, ops, train.mesh, size, data_dir)
    return open_features(splits, feature, protocol)


def open_knn(  # noqa: PLR0913 - the arguments are a section of the config
    *,
    dataset: str,
    split: str,
    ops: str,
    train: TrainFeed,
    num_classes: int | None = None,
    train_split: str = "train",
    feature: str = "pre_logits",
    k: int | Sequence[int] | None = None,
    batch_size: int | None = None,
    data_dir: str | None = None,
) -> Opened:
    """Opens the type `knn`: votes of the nearest examples of a training split.

    Args:
      dataset: A DATASET.
      split: The test split.
      ops: The preprocessing.
      train: The training data, for its mesh and batch size.
      num_classes: Not used: classes are those of the data set.
      train_split: Whose examples vote, all of them.
      feature: A named output of the model; see `Subject.features`.
      k: Numbers of neighbours; None for 20.
      batch_size: Images at a time; None takes that of training.
      data_dir: Where prepared TensorFlow Datasets lie.

    Raises:
      UserError: Whatever is wrong with the data, the ops or the settings.
    """
    del num_classes
    size = batch_size or train.batch_size
    splits = Splits(dataset, train_split, split, ops, train.mesh, size, data_dir)
    return open_features(splits, feature, make_protocol("knn", values=k))


def open_probe(  # noqa: PLR0913 - the arguments are a section of the config
    *,
    dataset: str,
    split: str,
    ops: str,
    train: TrainFeed,
    num_classes: int | None = None,
    train_split: str = "train",
    feature: str = "pre_logits",
    l2: float | Sequence[float] | None = None,
    batch_size: int | None = None,
    data_dir: str | None = None,
) -> Opened:
    """Opens the type `probe`: logistic regression on the features of a split.

    Args:
      dataset: A DATASET.
      split: The test split.
      ops: The preprocessing.
      train: The training data, for its mesh and batch size.
      num_classes: Not used: classes are those of the data set.
      train_split: Whose examples it is fitted to, all of them.
      feature: A named output of the model; see `Subject.features`.
      l2: Regularisers; None for 1.
      batch_size: Images at a time; None takes that of training.
      data_dir: Where prepared TensorFlow Datasets lie.

    Raises:
      UserError: Whatever is wrong with the data, the ops or the settings.
    """
    del num_classes
    size = batch_size or train.batch_size
    splits = Splits(dataset, train_split, split, ops, train.mesh, size, data_dir)
    return open_features(splits, feature, make_protocol("probe", values=l2))

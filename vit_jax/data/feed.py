# SPDX-License-Identifier: Apache-2.0
"""A data set opened for training or for evaluation, as batches that lie on a mesh.

The keyword arguments of `open_train` and `open_eval` are the schemas of `config.data`
and of an evaluator's section. All that can be wrong with data is found here, before
anything is compiled.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax import sharding
from vit_jax.data import mixing, pipeline, transfer
from vit_jax.data.mixtures import open_mixture
from vit_jax.data.preprocess import check_ops
from vit_jax.data.sources import (
    Source,
    check_source,
    count_classes,
    open_source,
    present_classes,
)
from vit_jax.errors import UserError

Batch = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class TrainFeed:
    """The training data of a run.

    Attributes:
      source: The examples.
      batch_size: Images a step over all devices.
      ops: Their preprocessing.
      mesh: The device mesh.
      host_batches: Starts this process's batches, as NumPy arrays, at a step.
      mix: Changes a batch on the device with a key, or None.
      num_classes: Classes that labels lie in, or None for other targets.
      skip_errors: Whether other images stand in for broken ones.
    """

    source: Source
    batch_size: int
    ops: str
    mesh: Mesh
    host_batches: Callable[[int], Any]
    mix: Callable[[jax.Array, Batch], Batch] | None
    num_classes: int | None
    skip_errors: bool = False

    def batches(self, step: int) -> Any:
        """Returns device batches from `step` on, without end; to be closed."""
        return transfer.prefetch_to_device(
            self.host_batches(step), sharding.batch_sharding(self.mesh)
        )

    def one_example(self) -> Batch:
        """Returns a batch of one example, to see what batches hold."""
        batches = pipeline.train_batches(
            self.source,
            batch_size=1,
            ops=self.ops,
            seed=0,
            prefetch=1,
            skip_errors=self.skip_errors,
        )
        with contextlib.closing(batches):
            return next(batches)

    def image_shape(self) -> tuple[int, int, int]:
        """Returns height, width and channels of the images that the ops make."""
        return self.one_example()["image"].shape[1:]


def open_train(  # noqa: PLR0913 - the arguments are a section of the config
    *,
    dataset: str | None = None,
    split: str | None = None,
    mixture: Mapping[str, Mapping[str, Any]] | None = None,
    batch_size: int,
    ops: str,
    mesh: Mesh,
    seed: int,
    num_classes: int | None,
    has_classes: bool = True,
    mixup: float | None = None,
    cutmix: float | None = None,
    switch_prob: float = 0.5,
    repeats: int = 1,
    data_dir: str | None = None,
    prefetch: int = 2,
    num_parallel: int | None = None,
    skip_errors: bool = False,
) -> TrainFeed:
    """Opens the training data.

    Args:
      dataset: A DATASET, see README.md.
      split: Such as `train[:99%]`.
      mixture: Instead of both, several of them: name to `dataset`, `split` and
        `weight`; see `mixtures`. An epoch of the config is then as many examples as
        all parts hold together.
      batch_size: Images a step over all devices.
      ops: The preprocessing, such as `decode|inception_crop(224)|flip_lr`.
      mesh: The device mesh.
      seed: Seed of order and augmentation.
      num_classes: Classes that labels must lie in; None counts those of the data.
      has_classes: Whether labels are classes, and not numbers to predict or nothing.
      mixup: Parameter of mixup's Beta distribution; None mixes nothing.
      cutmix: Parameter of CutMix's Beta distribution; None cuts nothing.
      switch_prob: Probability of CutMix at a step where both are on.
      repeats: Repeated augmentation: how many images next to each other in a batch show
        one example, augmented anew. An epoch remains as many images, of fewer examples.
      data_dir: Where prepared TensorFlow Datasets lie.
      prefetch: Batches kept ready in the host's memory.
      num_parallel: Images preprocessed at a time; None for as many as there are cores.
      skip_errors: Whether other images stand in for broken ones, which the log names
        and counts; else a broken image ends the run.

    Raises:
      UserError: Whatever is wrong with the data, the ops or the batch size.
    """
    check_ops(ops)
    if repeats < 1:
        raise UserError(f"config.data.repeats is {repeats}; give 1 for none, or more")
    sharding.check_batch_size(batch_size, mesh, "config.data.batch_size")
    source = _open_training(dataset, split, mixture, data_dir)
    if not has_classes:
        num_classes = None
    elif num_classes is None:
        num_classes = count_classes(source)
    check_source(
        source,
        batch_size=batch_size,
        num_classes=num_classes,
        decode=not skip_errors,
    )
    mix = mixing.build_mix(mixup, cutmix, switch_prob, num_classes)

    def host_batches(start_step: int) -> Any:
        part, parts = sharding.process_part(mesh)
        return pipeline.train_batches(
            source,
            batch_size=batch_size,
            ops=ops,
            seed=seed,
            start_step=start_step,
            num_parallel=num_parallel,
            prefetch=prefetch,
            process_index=part,
            process_count=parts,
            skip_errors=skip_errors,
            repeats=repeats,
        )

    return TrainFeed(
        source, batch_size, ops, mesh, host_batches, mix, num_classes, skip_errors
    )


def _open_training(
    dataset: str | None,
    split: str | None,
    mixture: Mapping[str, Mapping[str, Any]] | None,
    data_dir: str | None,
) -> Source:
    given = {"dataset": dataset, "split": split}
    if mixture is not None:
        for name, value in given.items():
            if value is not None:
                raise UserError(
                    f"config.data has a mixture and {name}={value!r}; set one of them "
                    "to None"
                )
        return open_mixture(mixture, data_dir)
    if dataset is not None and split is not None:
        return open_source(dataset, split, data_dir=data_dir)
    missing = next(name for name, value in given.items() if value is None)
    raise UserError(
        f"config.data.{missing} is missing; set it in the config file or with "
        f"--config.data.{missing}=VALUE"
    )


@dataclasses.dataclass(frozen=True)
class EvalFeed:
    """The data of one evaluator.

    Attributes:
      source: The examples.
      ops: Their preprocessing.
      mesh: The device mesh.
      batch_size: Images at a time, a multiple of the devices.
      classes: The only classes that the model may choose among; None for all.
    """

    source: Source
    ops: str
    mesh: Mesh
    batch_size: int
    classes: np.ndarray | None = None

    def batches(self) -> Generator[Batch, None, None]:
        """Starts one pass over the split: device batches with `mask` and `row`."""
        part, parts = sharding.process_part(self.mesh)
        host = pipeline.eval_batches(
            self.source,
            batch_size=self.batch_size,
            ops=self.ops,
            process_index=part,
            process_count=parts,
        )
        return transfer.prefetch_to_device(host, sharding.batch_sharding(self.mesh))

    def take(self, rows: np.ndarray) -> "EvalFeed":
        """Returns the feed of some rows of the split."""
        return dataclasses.replace(self, source=self.source.take(rows))


def open_eval(  # noqa: PLR0913 - the arguments are a section of the config
    *,
    dataset: str,
    split: str,
    ops: str,
    train: TrainFeed,
    num_classes: int | None,
    batch_size: int | None = None,
    data_dir: str | None = None,
    restrict_classes: bool = False,
) -> EvalFeed:
    """Opens the data of an evaluator; its classes are those of the training data.

    Args:
      dataset: A DATASET.
      split: Such as `test`.
      ops: The preprocessing.
      train: The training data.
      num_classes: Classes that labels must lie in, or None for other targets.
      batch_size: Images at a time; None takes that of training. Rounded up to a
        multiple of the devices; it has no influence on the result.
      data_dir: Where prepared TensorFlow Datasets lie.
      restrict_classes: Whether the model chooses among the classes that occur in the
        split only, as ImageNet-A and -R ask for.

    Raises:
      UserError: Whatever is wrong with the data or the ops.
    """
    check_ops(ops)
    source = open_source(
        dataset, split, class_names=train.source.class_names, data_dir=data_dir
    )
    check_source(source, num_classes=num_classes)
    feed = eval_feed(source, ops, train.mesh, batch_size or train.batch_size)
    classes = present_classes(source) if restrict_classes else None
    return dataclasses.replace(feed, classes=classes)


def eval_feed(source: Source, ops: str, mesh: Mesh, batch_size: int) -> EvalFeed:
    """Makes the feed of a source that is open.

    Args:
      source: The examples.
      ops: The preprocessing.
      mesh: The device mesh.
      batch_size: Images at a time, rounded up to a multiple of the devices.

    Raises:
      UserError: A wrong op string.
    """
    check_ops(ops)
    parts = sharding.batch_parts(mesh)
    return EvalFeed(source, ops, mesh, -(-batch_size // parts) * parts)

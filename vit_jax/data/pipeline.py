# SPDX-License-Identifier: Apache-2.0
"""Batches of arrays for training and evaluation, made in `tf.data`.

Which examples a batch holds is told in `order`. One Python call a batch looks them up
and reads them; decoding and the ops run for each example on all cores, in order.
"""

import atexit
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.data.examples import Source
from vit_jax.data.labels import MultiHot
from vit_jax.data.order import Plan, batch_rows
from vit_jax.data.pixels import decode_image
from vit_jax.errors import UserError

__all__ = ["Batches", "batch_rows", "eval_batches", "train_batches"]

Batch = dict[str, np.ndarray]

FOREVER = 2**62
"""End of the steps of training; the loop stops before."""


def train_batches(  # noqa: PLR0913 (a section of the config is this signature)
    source: Source,
    *,
    batch_size: int,
    ops: str,
    seed: int,
    start_step: int = 0,
    num_parallel: int | None = None,
    prefetch: int = 2,
    process_index: int = 0,
    process_count: int = 1,
) -> "Batches":
    """Yields this process's part of the batches from step `start_step` on.

    Args:
      source: The training examples.
      batch_size: Size of the global batch, over all processes.
      ops: Op string that turns an example into what the model takes.
      seed: Fixes the order of the examples and every random op.
      start_step: The first step: the number of updates done.
      num_parallel: Threads that run the ops; None for as many as the machine has.
      prefetch: Batches held ready on the host.
      process_index: Number of this process.
      process_count: Number of processes.

    Returns:
      An endless iterator of dictionaries: what `ops` leaves of `image` and `label`
      (class ids or targets) or `labels` (several classes an example).

    Raises:
      UserError: No example, a batch size that the processes do not divide, a wrong op
        string; and from the iterator, an image that cannot be read or decoded.
    """
    if batch_size < 1 or batch_size % process_count:
        raise UserError(
            f"batch_size {batch_size} is not a positive multiple of {process_count} "
            f"processes; use for example {_next_multiple(batch_size, process_count)}"
        )
    plan = Plan(len(source), batch_size, process_index, process_count, seed)
    steps = (start_step, FOREVER)
    return Batches(source, ops, plan, steps, Threads(num_parallel, prefetch))


def eval_batches(
    source: Source,
    *,
    batch_size: int,
    ops: str,
    num_parallel: int | None = None,
    prefetch: int = 2,
    process_index: int = 0,
    process_count: int = 1,
) -> "Batches":
    """Yields this process's part of every batch of one ordered pass.

    All processes yield the same number of batches of the same size. The last is filled
    up with repetitions that `mask` marks.

    Args:
      source: The examples.
      batch_size: Size of the global batch; rounded up to a multiple of the processes.
      ops: Op string that turns an example into what the model takes.
      num_parallel: Threads that run the ops; None for as many as the machine has.
      prefetch: Batches held ready on the host.
      process_index: Number of this process.
      process_count: Number of processes.

    Returns:
      An iterator of dictionaries, as of `train_batches`, and in each `mask`: float32
      `(b,)`, 1 for an example and 0 for padding.

    Raises:
      UserError: No example, a batch size below 1, a wrong op string; and from the
        iterator, an image that cannot be read or decoded.
    """
    if batch_size < 1:
        raise UserError(f"batch_size {batch_size} is too small; use at least 1")
    batch_size = _next_multiple(batch_size, process_count)
    plan = Plan(len(source), batch_size, process_index, process_count, None)
    steps = (0, -(-len(source) // batch_size))
    return Batches(source, ops, plan, steps, Threads(num_parallel, prefetch))


@dataclasses.dataclass(frozen=True)
class Threads:
    """How much runs ahead; no result depends on it.

    Attributes:
      num_parallel: Threads that run the ops; None for as many as the machine has.
      prefetch: Batches held ready.
    """

    num_parallel: int | None
    prefetch: int


class Batches(Iterator[Batch]):
    """An iterator over batches of NumPy arrays, which works ahead in threads.

    Close it, or use it in a `with` statement, to end the threads; the end of the
    program does so too.
    """

    def __init__(
        self,
        source: Source,
        ops: str,
        plan: Plan,
        steps: tuple[int, int],
        threads: Threads,
    ):
        if plan.size == 0:
            raise UserError(f"{source.description} has no example; use a wider split")
        # Here, so that importing this module does not import TensorFlow.
        from vit_jax.data.preprocess import build_preprocess

        self._source = source
        self._plan = plan
        self._preprocess = build_preprocess(ops)
        self._step = steps[0]
        dataset = _build_dataset(source, self._preprocess, plan, steps, threads)
        self._iterator: Iterator[Batch] | None = dataset.as_numpy_iterator()
        _OPEN.add(self)

    def __next__(self) -> Batch:
        import tensorflow as tf

        if self._iterator is None:
            raise StopIteration
        try:
            batch = next(self._iterator)
        except tf.errors.OpError as err:
            culprit = self._find_culprit()
            self.close()
            raise culprit or err from err
        if self._plan.seed is None:
            batch["mask"] = self._plan.mask(self._step)
        self._step += 1
        return batch

    def close(self) -> None:
        """Ends the threads; the iterator is exhausted from then on."""
        self._iterator = None

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _find_culprit(self) -> UserError | None:
        """Repeats the batch that failed, example by example, and names the culprit."""
        import tensorflow as tf

        rows = self._plan.rows(self._step)
        batch = _read_batch(self._source, self._plan, self._step)
        for number, name in enumerate(self._source.names(rows)):
            example = {key: column[number] for key, column in batch.items()}
            try:
                if self._source.encoded:
                    decode_image(example["image"])
                self._preprocess({k: tf.constant(v) for k, v in example.items()})
            except UserError as err:
                return UserError(f"{name}: {err}")
            except tf.errors.OpError as err:
                return UserError(
                    f"{name}: the ops fail on this image ({err.message}); remove it or "
                    "change the ops"
                )
        return None


_OPEN: "weakref.WeakSet[Batches]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends all threads while they can still call Python."""
    for batches in list(_OPEN):
        batches.close()


def _read_batch(source: Source, plan: Plan, step: int) -> Batch:
    """Reads the examples of a step, not yet decoded."""
    rows = plan.rows(step)
    images = source.read(rows)
    if source.encoded:
        images = np.array(images, dtype=object)
    several = isinstance(source.labels, MultiHot)
    return {
        "image": np.asarray(images),
        "labels" if several else "label": source.labels[rows],
        "seed": plan.seeds(step),
        "name": np.array(source.names(rows), dtype=object),
    }


def _build_dataset(
    source: Source,
    preprocess: Any,
    plan: Plan,
    steps: tuple[int, int],
    threads: Threads,
) -> Any:
    """Builds the `tf.data` part: read a batch, take it apart, run the ops, join."""
    import tensorflow as tf

    # The first example shows the keys, types and shapes of all.
    first = _read_batch(
        source, dataclasses.replace(plan, batch_size=plan.process_count), 0
    )
    types = {
        key: tf.string if column.dtype == object else tf.as_dtype(column.dtype)
        for key, column in first.items()
    }

    def read(step: Any) -> dict[str, Any]:
        def call(step: np.ndarray) -> list[np.ndarray]:
            batch = _read_batch(source, plan, int(step))
            return [batch[key] for key in types]

        columns = tf.numpy_function(call, [step], list(types.values()))
        for key, column in zip(types, columns, strict=True):
            column.set_shape((plan.local_size, *first[key].shape[1:]))
        return dict(zip(types, columns, strict=True))

    # Ops are traced as they are: AutoGraph would wrap their errors in its own.
    run_ops = tf.autograph.experimental.do_not_convert(preprocess)
    parallel = threads.num_parallel or tf.data.AUTOTUNE
    dataset = tf.data.Dataset.range(*steps).map(read).prefetch(1).unbatch()
    dataset = dataset.map(run_ops, num_parallel_calls=parallel, deterministic=True)
    dataset = dataset.batch(plan.local_size, drop_remainder=True)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.max_intra_op_parallelism = 1
    if threads.num_parallel:
        options.threading.private_threadpool_size = threads.num_parallel
    return dataset.prefetch(threads.prefetch).with_options(options)


def _next_multiple(number: int, factor: int) -> int:
    return max(1, -(-number // factor)) * factor

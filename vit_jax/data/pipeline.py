# SPDX-License-Identifier: Apache-2.0
"""Batches of arrays for training and evaluation, made in `tf.data`.

Which examples a batch holds is told in `order`. One Python call a batch looks them up
and reads them; decoding and the ops run for each example on all cores, in order.

An image that cannot be read, decoded or preprocessed ends the iteration with an error
that names it. Training that skips errors notes its row instead, says so in the log, and
starts again at the batch that failed, with the row that `order` puts in its place.
"""

import atexit
import concurrent.futures
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import logging

from vit_jax.data.examples import Rows, Source
from vit_jax.data.labels import MultiHot
from vit_jax.data.ops.headers import picture_kind
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
    skip_errors: bool = False,
    repeats: int = 1,
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
      skip_errors: Whether other images stand in for broken ones; else a broken image is
        an error.
      repeats: How many images next to each other show one example, augmented anew.

    Returns:
      An endless iterator of dictionaries: what `ops` leaves of `image` and `label`
      (class ids or targets) or `labels` (several classes an example).

    Raises:
      UserError: No example, a batch size that the processes do not divide, repeats
        below 1, a wrong op string; and from the iterator, an image that cannot be read
        or decoded.
    """
    if batch_size < 1 or batch_size % process_count:
        raise UserError(
            f"batch_size {batch_size} is not a positive multiple of {process_count} "
            f"processes; use for example {_next_multiple(batch_size, process_count)}"
        )
    if repeats < 1:
        raise UserError(f"repeats is {repeats}; give 1 for none, or more, such as 3")
    share = (process_index, process_count)
    plan = Plan(len(source), batch_size, *share, seed, source.mixture, repeats)
    if plan.size:
        plan.rows(start_step)  # finds a wrong seed here and not in a thread
    threads = Threads(num_parallel, prefetch)
    return Batches(source, ops, plan, (start_step, FOREVER), threads, skip_errors)


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
      `(b,)`, 1 for an example and 0 for padding, and `row`: int32 `(b,)`, its row in
      the source.

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
        skip_errors: bool = False,
    ):
        if plan.size == 0:
            raise UserError(f"{source.description} has no example; use a wider split")
        # Here, so that importing this module does not import TensorFlow.
        from vit_jax.data.preprocess import build_preprocess

        self._source = source
        self._plan = plan
        self._preprocess = build_preprocess(ops)
        self._step = steps[0]
        self._skip_errors = skip_errors
        # Batch 0 of the dataset is this step; skipping moves it.
        self._first = steps[0]
        self._dataset = _build_dataset(
            source,
            self._preprocess,
            plan,
            threads,
            steps[1] - steps[0],
            lambda number: self._read(self._first + number),
        )
        self._iterator: Iterator[Batch] | None = self._dataset.as_numpy_iterator()
        _OPEN.add(self)

    def __next__(self) -> Batch:
        import tensorflow as tf

        batch = None
        while batch is None:
            if self._iterator is None:
                raise StopIteration
            try:
                batch = next(self._iterator)
            except tf.errors.OpError as err:
                broken = self._find_broken()
                if not (self._skip_errors and broken):
                    self.close()
                    raise (next(iter(broken.values())) if broken else err) from err
                self._skip(broken)
        if self._plan.seed is None:
            batch["mask"] = self._plan.mask(self._step)
            batch["row"] = self._plan.rows(self._step).astype(np.int32)
        self._step += 1
        return batch

    def _skip(self, broken: dict[int, UserError]) -> None:
        """Notes rows as broken, and starts again at the batch that failed."""
        for row, err in broken.items():
            self._source.broken[row] = str(err)
            logging.warning(
                "skipped %s (%d skipped so far)", err, len(self._source.broken)
            )
        self._first = self._step
        self._iterator = self._dataset.as_numpy_iterator()

    def _read(self, step: int) -> Batch:
        """Reads the examples of a step, not yet decoded."""
        rows = self._plan.rows(step, self._source.broken)
        return read_examples(self._source, rows, self._plan.seeds(step))

    def close(self) -> None:
        """Ends the threads; the iterator is exhausted from then on."""
        self._iterator = None

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _find_broken(self) -> dict[int, UserError]:
        """Repeats the batch that failed, example by example, to find the culprits.

        Returns:
          What is wrong, by row. With the first look at images alone, then at the ops.
        """
        rows = self._plan.rows(self._step, self._source.broken)
        places = range(len(rows))
        seeds = self._plan.seeds(self._step)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            reasons = list(threads.map(self._try_image, rows.tolist()))
        if not any(reasons):
            reasons = [self._try_ops(rows[p : p + 1], seeds[p : p + 1]) for p in places]
        return {
            int(row): reason
            for row, reason in zip(rows, reasons, strict=True)
            if reason is not None
        }

    def _try_image(self, row: int) -> UserError | None:
        rows = np.array([row])
        name = self._source.names(rows)[0]
        try:
            image = self._source.read(rows)[0]
        except UserError as err:
            return err
        try:
            if self._source.encoded:
                decode_image(bytes(image))
        except UserError as err:
            return UserError(f"{name}: {err}")
        return None

    def _try_ops(self, rows: Rows, seeds: np.ndarray) -> UserError | None:
        import tensorflow as tf

        batch = read_examples(self._source, rows, seeds)
        name = self._source.names(rows)[0]
        try:
            self._preprocess({k: tf.constant(v[0]) for k, v in batch.items()})
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


def read_examples(source: Source, rows: Rows, seeds: np.ndarray) -> Batch:
    """Reads examples with their labels, names and the seeds of their random ops."""
    images = source.read(rows)
    kinds = {}
    if source.encoded:
        kinds["kind"] = np.array([picture_kind(data) for data in images], np.int32)
        images = np.array(images, dtype=object)
    several = isinstance(source.labels, MultiHot)
    return {
        **kinds,
        "image": np.asarray(images),
        "labels" if several else "label": source.labels[rows],
        "seed": seeds,
        "name": np.array(source.names(rows), dtype=object),
    }


def _build_dataset(
    source: Source,
    preprocess: Any,
    plan: Plan,
    threads: Threads,
    count: int,
    read_batch: Callable[[int], Batch],
) -> Any:
    """Builds the `tf.data` part: read a batch, take it apart, run the ops, join."""
    import tensorflow as tf

    shapes = {"seed": (2,), "name": ()}
    types = {"seed": tf.int32, "name": tf.string}
    if source.encoded:
        shapes |= {"image": (), "kind": ()}
        types |= {"image": tf.string, "kind": tf.int32}
    else:
        shapes["image"] = np.shape(source.read(np.array([0])))[1:]
        types["image"] = tf.uint8
    labels = source.labels[np.array([0])]
    key = "labels" if isinstance(source.labels, MultiHot) else "label"
    shapes[key], types[key] = labels.shape[1:], tf.as_dtype(labels.dtype)

    def read(number: Any) -> dict[str, Any]:
        def call(number: Any) -> list[np.ndarray]:
            batch = read_batch(int(number))
            return [batch[key] for key in types]

        columns = tf.numpy_function(call, [number], list(types.values()))
        for key, column in zip(types, columns, strict=True):
            column.set_shape((plan.local_size, *shapes[key]))
        return dict(zip(types, columns, strict=True))

    # Traced as they are: AutoGraph would wrap the errors of ops in its own.
    read = tf.autograph.experimental.do_not_convert(read)
    run_ops = tf.autograph.experimental.do_not_convert(preprocess)
    parallel = threads.num_parallel or tf.data.AUTOTUNE
    dataset = tf.data.Dataset.range(count).map(read).prefetch(1).unbatch()
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

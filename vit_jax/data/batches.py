# SPDX-License-Identifier: Apache-2.0
"""Makes batches of arrays in `tf.data`, ahead of whoever takes them.

One Python call a batch looks its examples up and reads them; decoding and the ops run
for each example on all cores, in order.

An image that cannot be read, decoded or preprocessed ends the iteration with an error
that names it. Training that skips errors notes its row instead, says so in the log, and
starts again at the batch that failed, with the row that `order` puts in its place.
"""

import atexit
import dataclasses
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from absl import logging

from vit_jax.data.examples import Source
from vit_jax.data.labels import MultiHot
from vit_jax.data.order import Plan
from vit_jax.data.reading import Batch, find_broken, read_examples
from vit_jax.errors import UserError


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
            except StopIteration:
                self.close()
                raise
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
        rows = self._plan.rows(self._step, self._source.broken)
        seeds = self._plan.seeds(self._step)
        return find_broken(self._source, self._preprocess, rows, seeds)


_OPEN: "weakref.WeakSet[Batches]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends all threads while they can still call Python."""
    for batches in list(_OPEN):
        batches.close()


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
    parallel = threads.num_parallel or os.cpu_count() or 1
    dataset = tf.data.Dataset.range(count).map(read).prefetch(1).unbatch()
    dataset = dataset.map(run_ops, num_parallel_calls=parallel, deterministic=True)
    dataset = dataset.batch(plan.local_size, drop_remainder=True)
    options = tf.data.Options()
    options.deterministic = True
    # What it tunes is given here, and an iterator that is closed waits for its thread,
    # which sleeps for up to a minute.
    options.autotune.enabled = False
    options.threading.max_intra_op_parallelism = 1
    if threads.num_parallel:
        options.threading.private_threadpool_size = threads.num_parallel
    return dataset.prefetch(threads.prefetch).with_options(options)

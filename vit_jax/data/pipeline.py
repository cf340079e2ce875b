# SPDX-License-Identifier: Apache-2.0
"""The batches of training and of evaluation: which examples, in which order.

What a step's batch holds is told in `order`, how it is made and what happens when an
image is broken in `batches`.
"""

from vit_jax.data.batches import Batches, Threads
from vit_jax.data.examples import Source
from vit_jax.data.order import Plan, batch_rows
from vit_jax.errors import UserError

__all__ = ["Batches", "batch_rows", "eval_batches", "train_batches"]

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
) -> Batches:
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
) -> Batches:
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


def _next_multiple(number: int, factor: int) -> int:
    return max(1, -(-number // factor)) * factor

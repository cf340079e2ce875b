# SPDX-License-Identifier: Apache-2.0
"""Batches of the training pipeline on the host, and the same of other pipelines."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from vit_jax.benchmark import timing
from vit_jax.data import pipeline, speed
from vit_jax.data.examples import Source
from vit_jax.data.sources import check_source, open_source


@contextlib.contextmanager
def opened(
    dataset: str, split: str, batch_size: int, upscale: str | None
) -> Iterator[Source]:
    """Opens a split, with its images enlarged if asked for.

    Args:
      dataset: A DATASET.
      split: Of it.
      batch_size: Images a batch.
      upscale: Such as "500x375", or None.

    Yields:
      The examples.

    Raises:
      UserError: Data that is not there, or fewer examples than a batch.
    """
    source = open_source(dataset, split)
    check_source(source, batch_size=batch_size)
    with tempfile.TemporaryDirectory() as folder:
        if upscale:
            tar = os.path.join(folder, "upscaled.tar")
            speed.write_upscaled(source, tar, speed.parse_size(upscale))
            source = open_source(f"tar:{tar}", "train")
        yield source


def measure(source: Source, *, batch_size: int, ops: str, steps: int) -> dict[str, Any]:
    """Times batches of the training pipeline.

    Args:
      source: The examples.
      batch_size: Images a batch.
      ops: The preprocessing.
      steps: Batches to time, after the first.
    """
    batches = pipeline.train_batches(source, batch_size=batch_size, ops=ops, seed=0)
    first, seconds = timing.time_calls(lambda: next(batches), steps)
    batches.close()
    return {
        **timing.rate(seconds, batch_size),
        "first_batch_seconds": round(first, 3),
    }


def ops_ms(source: Source, ops: str, turns: Mapping[str, int]) -> dict[str, Any]:
    """Times each op of a preprocessing, see `speed.ops_ms`."""
    return {"ops_ms": speed.ops_ms(source, ops, **turns), **turns}


def compare(
    source: Source, resolution: int, turns: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Times the pipeline beside others, see `speed.compare`."""
    return speed.compare(source, resolution=resolution, **turns)

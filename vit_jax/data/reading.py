# SPDX-License-Identifier: Apache-2.0
"""Reads the examples of a batch, and finds those on which it failed."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np

from vit_jax.data.examples import Rows, Source
from vit_jax.data.labels import MultiHot
from vit_jax.data.ops.headers import picture_kind
from vit_jax.data.pixels import decode_image
from vit_jax.errors import UserError

Batch = dict[str, np.ndarray]


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


def find_broken(
    source: Source,
    preprocess: Callable[[dict[str, Any]], dict[str, Any]],
    rows: Rows,
    seeds: np.ndarray,
) -> dict[int, UserError]:
    """Repeats a batch that failed, example by example, to find the culprits.

    Args:
      source: Holds the examples.
      preprocess: Runs the ops on one of them.
      rows: The batch's.
      seeds: Of its random ops.

    Returns:
      What is wrong, by row. With the first look at images alone, then at the ops.
    """
    with concurrent.futures.ThreadPoolExecutor() as threads:
        tries = threads.map(lambda row: _try_image(source, row), rows.tolist())
        reasons = list(tries)
    if not any(reasons):
        reasons = [
            _try_ops(source, preprocess, rows[p : p + 1], seeds[p : p + 1])
            for p in range(len(rows))
        ]
    return {
        int(row): reason
        for row, reason in zip(rows, reasons, strict=True)
        if reason is not None
    }


def _try_image(source: Source, row: int) -> UserError | None:
    rows = np.array([row])
    name = source.names(rows)[0]
    try:
        image = source.read(rows)[0]
    except UserError as err:
        return err
    try:
        if source.encoded:
            decode_image(bytes(image))
    except UserError as err:
        return UserError(f"{name}: {err}")
    return None


def _try_ops(
    source: Source,
    preprocess: Callable[[dict[str, Any]], dict[str, Any]],
    rows: Rows,
    seeds: np.ndarray,
) -> UserError | None:
    import tensorflow as tf

    batch = read_examples(source, rows, seeds)
    name = source.names(rows)[0]
    try:
        preprocess({k: tf.constant(v[0]) for k, v in batch.items()})
    except UserError as err:
        return UserError(f"{name}: {err}")
    except tf.errors.OpError as err:
        return UserError(
            f"{name}: the ops fail on this image ({err.message}); remove it or "
            "change the ops"
        )
    return None

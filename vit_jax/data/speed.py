# SPDX-License-Identifier: Apache-2.0
"""How fast the input pipeline is, next to plain tf.data over the same files in memory.

All pipelines make batches of the same normalised pixels, or do part of that work:

  ours         `train_batches`: decode, random box, resize, flip, normalise
  bare         decode, random box, resize; no flip, no normalisation
  bare_fused   the same, decoding only the box
  big_vision   shuffle, repeat, map, batch, in the order of operations of big_vision's
               ops: decode, box, resize, back to uint8, flip, normalise
  ours_randaug ours, with `randaug(2, 10)` before the normalisation

Machines are shared and their clocks move, so the pipelines take turns of a second or
less, many times, and what is reported is the median of the ratios within rounds. Time
is counted twice: on the clock, and as processor time of this process, which other
programs disturb less.
"""

import io
import itertools
import statistics
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from vit_jax.data import pipeline, rivals
from vit_jax.data.examples import Source
from vit_jax.data.ops.headers import JPEG, picture_kind
from vit_jax.data.pixels import decode_image
from vit_jax.data.preprocess import build_preprocess
from vit_jax.errors import UserError
from vit_jax.registry import parse_pipeline

TRAIN_OPS = "decode|inception_crop({})|flip_lr|value_range(-1, 1)"
RANDAUG_OPS = "decode|inception_crop({})|flip_lr|randaug(2, 10)|value_range(-1, 1)"
MOST_FILES = 2000
"""Files that are held in memory."""
PREFETCHED = 12
"""Batches that are not timed when a turn begins: 4 lie ready, and the next few are in
part, in the queue of the parallel map (measured)."""

Turn = tuple[float, float]
"""Seconds on the clock and of the processors, an image."""


def write_upscaled(source: Source, path: str, size: tuple[int, int]) -> None:
    """Writes a tar of the pictures of a source in another size, as JPEG.

    Args:
      source: The pictures; the first 2,000 are taken.
      path: The tar file, in WebDataset's form.
      size: Width and height.
    """
    with tarfile.open(path, "w") as tar:
        for row in range(min(len(source), MOST_FILES)):
            data = source.read(np.array([row]))[0]
            if isinstance(data, bytes):
                data = decode_image(data)
            levels = np.broadcast_to(data, (*data.shape[:2], 3))
            picture = Image.fromarray(levels).resize(size, Image.Resampling.BICUBIC)
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=90)
            _add(tar, f"{row:06}.jpg", file.getvalue())
            _add(tar, f"{row:06}.cls", b"%d" % source.labels[np.array([row])][0])


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def compare(
    source: Source, *, resolution: int, batch_size: int, batches: int, rounds: int
) -> list[dict[str, Any]]:
    """Measures the pipelines of the top of this file in turns.

    Args:
      source: Encoded pictures; what is no plain JPEG is left out for the rivals.
      resolution: Side of the images made.
      batch_size: Images a batch.
      batches: Batches a turn.
      rounds: Turns of each pipeline.

    Returns:
      One entry a pipeline: its rate, and `ratio`, ours over it: the median over rounds,
      by the clock and (`cpu_ratio`) by processor time.

    Raises:
      UserError: A source without JPEG files.
    """
    files = _read_jpegs(source)
    size = (resolution, resolution)

    def ours(ops: str) -> Iterator[Any]:
        ops = ops.format(resolution)
        return pipeline.train_batches(source, batch_size=batch_size, ops=ops, seed=0)

    contestants = {
        "ours": ours(TRAIN_OPS),
        "bare": rivals.bare(files, batch_size, size, fused=False),
        "bare_fused": rivals.bare(files, batch_size, size, fused=True),
        "big_vision": rivals.big_vision(files, batch_size, size),
        "ours_randaug": ours(RANDAUG_OPS),
    }
    turns = take_turns(contestants, batch_size, batches, rounds)
    mine = turns["ours"]
    return [
        {
            "pipeline": name,
            "images_per_second": round(1 / statistics.median(t[0] for t in theirs), 1),
            "cpu_ms_per_image": round(
                1000 * statistics.median(t[1] for t in theirs), 3
            ),
            "ratio": _median_ratio(theirs, mine, 0),
            "cpu_ratio": _median_ratio(theirs, mine, 1),
        }
        for name, theirs in turns.items()
    ]


def ops_ms(
    source: Source, ops: str, *, batch_size: int, batches: int, rounds: int
) -> dict[str, float]:
    """Measures what each op of a string adds to a picture, in processor milliseconds.

    Args:
      source: Encoded pictures.
      ops: The op string.
      batch_size: Images a batch.
      batches: Batches a turn.
      rounds: Turns of each beginning of the string.

    Returns:
      Milliseconds by op, as written; medians of differences within rounds. The work of
      an op that the next one takes over shows there.
    """
    files = _read_jpegs(source)
    calls = [call.where for call in parse_pipeline(ops)]
    names = [where[where.index("[") + 1 : where.rindex("]")] for where in calls]
    contestants = {"read": _scalars(files, batch_size, "")}
    for count in range(1, len(names) + 1):
        beginning = "|".join(names[:count])
        contestants[beginning] = _scalars(files, batch_size, beginning)
    turns = list(take_turns(contestants, batch_size, batches, rounds).values())
    return {
        name: round(
            1000 * statistics.median(b[1] - a[1] for a, b in zip(*pair, strict=True)), 3
        )
        for name, pair in zip(names, itertools.pairwise(turns), strict=True)
    }


def take_turns(
    contestants: Mapping[str, Iterator[Any]], batch_size: int, batches: int, rounds: int
) -> dict[str, list[Turn]]:
    """Times batches of each contestant in turns, in another order each round."""
    turns: dict[str, list[Turn]] = {name: [] for name in contestants}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for name in rng.permutation(list(contestants)).tolist():
            iterator = contestants[name]
            for _ in range(PREFETCHED):
                next(iterator)
            clock, cpu = time.perf_counter(), time.process_time()
            for _ in range(batches):
                next(iterator)
            images = batches * batch_size
            clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
            turns[name].append((clock / images, cpu / images))
            _wait_until_idle()
    return turns


def _wait_until_idle() -> None:
    """Lets the threads of the last turn fill their buffers."""
    busy = True
    while busy:
        before = time.process_time()
        time.sleep(0.05)
        busy = time.process_time() - before > 0.005


def _median_ratio(theirs: Sequence[Turn], mine: Sequence[Turn], column: int) -> float:
    ratios = [a[column] / b[column] for a, b in zip(theirs, mine, strict=True)]
    return round(statistics.median(ratios), 3)


def _read_jpegs(source: Source) -> list[bytes]:
    files = []
    if source.encoded:
        rows = np.arange(min(len(source), MOST_FILES))
        files = [bytes(file) for file in source.read(rows)]
    files = [file for file in files if picture_kind(file) == JPEG]
    if not files:
        raise UserError(
            f"{source.description} has no JPEG files to compare pipelines on; give a "
            "--dataset of photographs"
        )
    return files


def _scalars(files: list[bytes], batch_size: int, ops: str) -> Iterator[Any]:
    """Runs ops and keeps one number of each result, so that little else is timed."""
    run_ops = build_preprocess(ops)

    def run(features: Any) -> Any:
        image = run_ops(features)["image"]
        return tf.size(image) if image.dtype == tf.string else image[0, 0, 0]

    kinds = np.array([picture_kind(file) for file in files], np.int32)
    seeds = np.random.default_rng(0).integers(0, 2**31, (len(files), 2), np.int32)
    examples: Any = {"image": files, "kind": kinds, "seed": seeds}
    dataset = tf.data.Dataset.from_tensor_slices(examples).repeat()
    return rivals.batched(dataset, run, batch_size)


def parse_size(text: str) -> tuple[int, int]:
    """Returns width and height of a text such as 500x375.

    Raises:
      UserError: Not two positive numbers.
    """
    sides = text.split("x")
    if len(sides) != 2 or not all(side.isdigit() and int(side) for side in sides):
        raise UserError(f"--upscale={text} is no size; write WIDTHxHEIGHT, as 500x375")
    return int(sides[0]), int(sides[1])

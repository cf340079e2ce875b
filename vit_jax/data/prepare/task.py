# SPDX-License-Identifier: Apache-2.0
"""From archives or a DATASET to shards: what `vit_jax.data.prepare` does, in order."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from vit_jax.data.examples import Source
from vit_jax.data.labels import read_class_names
from vit_jax.data.prepare import (
    archives as prepare_archives,
    jobs as prepare_jobs,
    plan as prepare_plan,
    shards as prepare_shards,
)
from vit_jax.data.prepare.counts import FORMS, check_counts, class_counts
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

SHARD_SIZE = 10_000
"""Examples in a shard unless said otherwise: about 1.1 GB of ImageNet."""
CLASS_FILE = "classes.txt"
WORK_FOLDER = ".prepare"


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be written.

    Attributes:
      data: FORM:DIR of archives, or a DATASET.
      split: Its split; the text before a `[` or `+` names the shards.
      output: Folder of the shards.
      file_format: "tar" or "tfrecord".
      num_shards: Number of shards; None for one per `SHARD_SIZE` examples.
      seed: Fixes the order.
      removed: Files of ids to leave out, one a line.
      take: How many examples to write; None for all.
      allow_incomplete: Whether ImageNet's numbers may differ from the published.
      data_dir: Where prepared TensorFlow Datasets lie.
    """

    data: str
    split: str
    output: str
    file_format: str = "tar"
    num_shards: int | None = None
    seed: int = 0
    removed: Sequence[str] = ()
    take: int | None = None
    allow_incomplete: bool = False
    data_dir: str | None = None


def prepare(task: Task, run_jobs: prepare_jobs.RunJobs) -> dict[str, Any]:
    """Writes the shards of a task.

    Args:
      task: What to write.
      run_jobs: Does the jobs; see `prepare_jobs`.

    Returns:
      What was counted, as it is written to `SPLIT.json`.

    Raises:
      UserError: Data that cannot be read or is not complete, or an output that is
        there already or of another task.
    """
    name = shard_name(task)
    output = epath.Path(task.output)
    if (output / f"{name}.json").exists():
        raise UserError(
            f"{output} holds the finished shards of {name!r} already; name another "
            "--output"
        )
    work = output / WORK_FOLDER / name
    work.mkdir(parents=True, exist_ok=True)
    source = open_input(task, run_jobs, os.fspath(work))
    counts = class_counts(source)
    check_counts(
        source.description,
        len(source),
        counts,
        allow_incomplete=task.allow_incomplete,
    )
    keys = prepare_plan.example_keys(source)
    rows = prepare_plan.choose_rows(
        keys, seed=task.seed, removed=read_ids(task.removed), take=task.take
    )
    _write_class_names(source, output)
    number = task.num_shards or -(-len(rows) // SHARD_SIZE)
    if number > len(rows):
        raise UserError(f"{number} shards of {len(rows)} examples; use fewer shards")
    _keep_plan(task, source, [keys[row] for row in rows.tolist()], number, work)
    parts = np.array_split(rows, number)
    for shard, part in enumerate(parts):
        chunk = prepare_plan.make_chunk(source, keys, part)
        chunk.save(os.fspath(work / f"chunk-{shard:05}.npz"))
    files = [shard_file(task, shard, number) for shard in range(number)]
    missing = [n for n, file in enumerate(files) if not (output / file).exists()]
    job = functools.partial(write_job, task, number, os.fspath(work))
    prepare_jobs.run_guarded(run_jobs, job, missing, os.fspath(work))
    report = {
        "input": task.data,
        "split": task.split,
        "format": task.file_format,
        "seed": task.seed,
        "examples": len(rows),
        "examples_of_input": len(source),
        "removed": len(read_ids(task.removed)),
        "shards": dict(zip(files, map(len, parts), strict=True)),
        "classes": counts,
    }
    prepare_plan.write_whole(
        os.fspath(output / f"{name}.json"), json.dumps(report, indent=1).encode()
    )
    work.rmtree()
    if not list(work.parent.iterdir()):
        work.parent.rmtree()
    return report


def open_input(task: Task, run_jobs: prepare_jobs.RunJobs, work: str) -> Source:
    """Opens archives, after a look into each of them, or a DATASET.

    Raises:
      UserError: See `prepare_archives` and `open_source`.
    """
    form, _, folder = task.data.partition(":")
    if form not in FORMS:
        return open_source(task.data, task.split, data_dir=task.data_dir)
    raw = prepare_archives.find_archives(form, folder, task.split)
    job = functools.partial(index_job, raw.archives, work)
    numbers = range(len(raw.archives))
    paths = [_index_path(work, number) for number in numbers]
    missing = [n for n in numbers if not epath.Path(paths[n]).exists()]
    prepare_jobs.run_guarded(run_jobs, job, missing, work)
    return prepare_archives.merge_indices(raw, paths)


def index_job(
    archives: Sequence[prepare_archives.Archive], work: str, number: int
) -> None:
    """Looks into one archive."""
    prepare_archives.index_archive(archives[number], _index_path(work, number))


def write_job(task: Task, num_shards: int, work: str, number: int) -> None:
    """Writes one shard."""
    chunk = prepare_plan.Chunk.load(f"{work}/chunk-{number:05}.npz")
    path = epath.Path(task.output) / shard_file(task, number, num_shards)
    prepare_shards.write_shard(chunk, os.fspath(path), task.file_format)


def shard_name(task: Task) -> str:
    """Returns the name that a task's files begin with.

    Example:
      >>> shard_name(Task("folder:/data", "train[:98%]", "/out"))
      'train'
    """
    return task.split.split("[")[0].split("+")[0]


def shard_file(task: Task, number: int, num_shards: int) -> str:
    """Returns the name of a shard."""
    return f"{shard_name(task)}-{number:05}-of-{num_shards:05}.{task.file_format}"


def read_ids(paths: Sequence[str]) -> set[str]:
    """Reads files of ids, one a line.

    Raises:
      UserError: A file that cannot be read.
    """
    ids: set[str] = set()
    for path in paths:
        try:
            ids |= set(epath.Path(path).read_text().splitlines())
        except OSError as err:
            raise UserError(
                f"cannot read the removed ids in {path}: {err.strerror or err}; name a "
                "file that has an id a line"
            ) from err
    return ids - {""}


def _index_path(work: str, number: int) -> str:
    return f"{work}/index-{number:05}.npz"


def _write_class_names(source: Source, output: epath.Path) -> None:
    """Writes the names file that all splits of a folder share."""
    if source.class_names is None:
        return
    path = output / CLASS_FILE
    if not path.exists():
        text = "".join(f"{name}\n" for name in source.class_names)
        prepare_plan.write_whole(os.fspath(path), text.encode())
    elif read_class_names(os.fspath(path)) != source.class_names:
        raise UserError(
            f"{path} names other classes than {source.description}; name another "
            "--output, or fix the classes with @names=FILE"
        )


def _keep_plan(
    task: Task, source: Source, keys: Sequence[str], number: int, work: epath.Path
) -> None:
    """Makes sure that the shards in an unfinished output are those of this task."""
    digest = hashlib.blake2b(digest_size=16)
    for key in keys:
        digest.update(key.encode() + b"\n")
    plan = {
        "input": source.description,
        "format": task.file_format,
        "shards": number,
        "keys": digest.hexdigest(),
    }
    path = work / "plan.json"
    if path.exists() and json.loads(path.read_text()) != plan:
        raise UserError(
            f"{task.output} holds part of the shards of another task; remove it, or "
            "name another --output"
        )
    prepare_plan.write_whole(os.fspath(path), json.dumps(plan).encode())

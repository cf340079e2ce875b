# SPDX-License-Identifier: Apache-2.0
"""Indexes shards once, and keeps what was found for the next run.

The index of the shards of a folder is `.vit_jax_index/READER.index` in that folder or,
where the folder cannot be written, `vit_jax/index/` in the user's cache folder; with
`$VIT_JAX_INDEX_DIR` it is always below that. A shard whose size or time of last change
differs from what is written there is indexed anew. What was found is saved every
`SAVE_SECONDS` and at the end, also of an indexing that fails, so that the next one goes
on from there.
"""

import concurrent.futures
import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from absl import logging
from etils import epath

from vit_jax.data.buckets import bucket_errors, is_remote
from vit_jax.data.shards.index_file import (
    EMPTY,
    Found,
    Shard,
    Shards,
    collect,
    join,
    load,
    save,
)
from vit_jax.data.tables import REMOTE_READERS
from vit_jax.errors import UserError

FOLDER = ".vit_jax_index"
VARIABLE = "VIT_JAX_INDEX_DIR"
SAVE_SECONDS = 30.0
LOG_SECONDS = 10.0
REMOTE_INDEXERS = 4
"""Files in buckets that one process reads at a time, each in whole."""


@runtime_checkable
class Reader(Protocol):
    """Goes through a shard; can be sent to another process."""

    @property
    def name(self) -> str:
        """Name of its index files: two readers that find other things differ in it."""
        ...

    def __call__(self, path: str) -> Iterator[Found]:
        """Yields the examples of a file."""
        ...


Report = Callable[[int, int], None]
"""Is told how many shards are done, of how many."""


def index_shards(
    paths: Sequence[str],
    reader: Reader,
    *,
    workers: int = 1,
    report: Report | None = None,
) -> Shards:
    """Returns what the shards hold, from saved indexes as far as there are any.

    Args:
      paths: The files, each once.
      reader: Goes through the files that no index knows.
      workers: Processes that go through files; 1 for this one alone.
      report: Is told about the progress; None for lines in the log.

    Raises:
      UserError: A file that is not there or that the reader refuses.
    """
    stamps = _stamps(paths)
    folders = list(dict.fromkeys(map(os.path.dirname, paths)))
    stores = {folder: Store(folder, reader.name) for folder in folders}
    known = [
        part
        for folder, store in stores.items()
        for part in store.find([s for s in stamps if os.path.dirname(s.path) == folder])
    ]
    done = {shard.path for part in known for shard in part.shards}
    missing = [stamp for stamp in stamps if stamp.path not in done]
    if missing:
        if report is None:
            report = _log_report(missing, next(iter(stores)))
        known += _index(missing, stores, reader, workers, report)
    return join(known).select(paths)


class Store:
    """The indexes of the shards of one folder.

    Attributes:
      folder: The folder of the shards.
      places: Where an index may lie; the first that can be written gets it.
    """

    def __init__(self, folder: str, name: str):
        self.folder = folder
        where = folder if is_remote(folder) else os.path.abspath(folder)
        digest = hashlib.blake2s(
            where.encode("utf-8", "surrogateescape"), digest_size=8
        )
        own = f"{os.path.basename(where)}-{digest.hexdigest()}"
        if given := os.environ.get(VARIABLE):
            folders = [os.path.join(given, own)]
        else:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            cache = os.path.join(base, "vit_jax", "index", own)
            folders = [os.path.join(folder, FOLDER), cache]
        self.places = [os.path.join(place, f"{name}.index") for place in folders]
        self._stored: Shards | None = None

    def find(self, stamps: Sequence[Shard]) -> list[Shards]:
        """Returns what saved indexes know of unchanged files."""
        found: list[Shards] = []
        wanted = {stamp.path: stamp for stamp in stamps}
        for place in self.places:
            index = load(place, self.folder)
            if index is None:
                continue
            same = {
                shard.path
                for shard in index.shards
                if shard.path in wanted
                and shard[1:3] == wanted[shard.path][1:3]  # size and time
            }
            if same:
                found.append(index.select([p for p in wanted if p in same]))
                wanted = {p: stamp for p, stamp in wanted.items() if p not in same}
        return found

    def add(self, fresh: Sequence[Shards]) -> None:
        """Saves what was found in some files beside what is known of the others.

        Where no place can be written, the log says so.
        """
        new = {shard.path for part in fresh for shard in part.shards}
        if self._stored is None:
            indexes = (load(place, self.folder) for place in self.places)
            self._stored = next((i for i in indexes if i is not None), EMPTY)
        old = [s.path for s in self._stored.shards if s.path not in new]
        self._stored = join([self._stored.select(old), *fresh])
        paths = sorted((s.path for s in self._stored.shards), key=os.fsencode)
        self._stored = self._stored.select(paths)
        reasons = []
        for place in self.places:
            try:
                save(self._stored, place, self.folder)
            except (OSError, UserError) as err:
                reasons.append(str(err))
            else:
                return
        logging.warning(
            "the index of %s cannot be kept (%s), so each start makes it anew; set %s "
            "to a folder that can be written",
            self.folder,
            "; ".join(reasons),
            VARIABLE,
        )


def _index(
    missing: Sequence[Shard],
    stores: dict[str, Store],
    reader: Reader,
    workers: int,
    report: Report,
) -> list[Shards]:
    """Goes through files, and saves now and then what was found."""
    done: list[Shards] = []
    unsaved: list[Shards] = []
    saved = time.monotonic()
    try:
        for shard in _read_all(missing, reader, workers):
            unsaved.append(shard)
            done.append(shard)
            report(len(done), len(missing))
            if time.monotonic() - saved > SAVE_SECONDS:
                _save(unsaved, stores)
                unsaved, saved = [], time.monotonic()
    finally:
        _save(unsaved, stores)
    return done


def _save(fresh: Sequence[Shards], stores: dict[str, Store]) -> None:
    for folder, store in stores.items():
        own = [s for s in fresh if os.path.dirname(s.shards[0].path) == folder]
        if own:
            store.add(own)


def _read_all(
    missing: Sequence[Shard], reader: Reader, workers: int
) -> Iterator[Shards]:
    """Yields what each file holds, as the files are done."""
    workers = min(workers, len(missing))
    remote = is_remote(missing[0].path)
    if workers == 1 and not remote:
        for stamp in missing:
            yield read_shard(reader, stamp)
        return
    pool: concurrent.futures.Executor
    if workers == 1:
        pool = concurrent.futures.ThreadPoolExecutor(REMOTE_INDEXERS)
    else:
        # Threads would wait for Python's lock: with two of them it is no faster. A
        # fresh interpreter each, as a fork of held locks may never go on.
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(workers, context)
    with pool:
        futures = [pool.submit(read_shard, reader, stamp) for stamp in missing]
        try:
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def read_shard(reader: Reader, stamp: Shard) -> Shards:
    """Goes through one file.

    Raises:
      UserError: A file that the reader refuses.
    """
    return collect(stamp.path, stamp.size, stamp.mtime, reader(stamp.path))


def _stamps(paths: Sequence[str]) -> list[Shard]:
    """Looks up size and time of files."""
    if any(is_remote(path) for path in paths):
        with concurrent.futures.ThreadPoolExecutor(REMOTE_READERS) as threads:
            return list(threads.map(_stamp, paths))
    return [_stamp(path) for path in paths]


def _stamp(path: str) -> Shard:
    try:
        if is_remote(path):
            with bucket_errors(path):
                remote = epath.Path(path).stat()
            return Shard(path, remote.length, int(remote.mtime) * 10**9, 0, 0, "")
        local = os.stat(path)
    except OSError as err:
        raise UserError(
            f"cannot read {path}: {err.strerror or err}; put the file back"
        ) from err
    return Shard(path, local.st_size, local.st_mtime_ns, 0, 0, "")


def _log_report(missing: Sequence[Shard], folder: str) -> Report:
    """Logs the start, then now and then how far it is."""
    size = sum(shard.size for shard in missing)
    logging.info(
        "no index yet of %d files (%.1f GB) in %s: going through them; next time "
        "'python -m vit_jax.data.index DATASET' does it beforehand, on all cores",
        len(missing),
        size / 1e9,
        folder,
    )
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > LOG_SECONDS or done == total:
            last = time.monotonic()
            logging.info("indexed %d of %d files", done, total)

    return report

# SPDX-License-Identifier: Apache-2.0
"""Searches a data set for near-duplicates of test images: hash, match, confirm, report.

What counts as one is told in `duplicates`, how hashes are matched in `hash_matching`.
"""

import functools
import hashlib
import io
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from etils import epath
from PIL import Image

from vit_jax.data.examples import Source
from vit_jax.data.pixels import decode_image
from vit_jax.data.prepare.hash_matching import (
    find_candidates,
    pixel_distance,
    thumbnail,
)
from vit_jax.data.prepare.jobs import RunJobs, run_guarded
from vit_jax.data.prepare.plan import Chunk, example_keys, make_chunk, write_whole
from vit_jax.errors import UserError

RADIUS = 8
THRESHOLD = 0.4
CHUNK_SIZE = 1000
"""Images in a job of hashing: some seconds."""
REPORT_FILE = "duplicates.json"
IDS_FILE = "removed_ids.txt"


class Hashed(NamedTuple):
    """The perceptual hashes of a source.

    Attributes:
      source: The source.
      keys: The key of each example.
      hashes: uint64 (n,).
      decoded: bool (n,), which images could be decoded; the others have no hash.
    """

    source: Source
    keys: list[str]
    hashes: np.ndarray
    decoded: np.ndarray


def search(
    source: Source,
    tests: Sequence[Source],
    *,
    output: str,
    run_jobs: RunJobs,
    radius: int = RADIUS,
    threshold: float = THRESHOLD,
) -> dict[str, Any]:
    """Finds the examples of a source that near-duplicate a test image.

    Args:
      source: The training examples.
      tests: The test sets.
      output: Folder for the report, the removed ids, and the hashes, which another
        search with the same folder does not compute again.
      run_jobs: Does the hashing; see `prepare_jobs`.
      radius: Bits in which hashes of candidates may differ.
      threshold: Largest pixel distance of a near-duplicate.

    Returns:
      The report as it is written to `duplicates.json`.

    Raises:
      UserError: A source without files, or files that cannot be read.
    """
    root = epath.Path(output)
    root.mkdir(parents=True, exist_ok=True)
    own = hash_source(source, run_jobs, output)
    best: dict[int, dict[str, Any]] = {}
    candidates = 0
    for test in tests:
        other = hash_source(test, run_jobs, output)
        pairs = _candidates(own, other, radius)
        candidates += len(pairs)
        for row, match in _confirm(own, other, pairs, threshold):
            if row not in best or match["pixel_distance"] < best[row]["pixel_distance"]:
                best[row] = match
    report = {
        "dataset": source.description,
        "against": [test.description for test in tests],
        "hash": "pHash, 64 bits",
        "radius": radius,
        "threshold": threshold,
        "examples": len(source),
        "not_decoded": _undecoded(own),
        "candidates": candidates,
        "removed": [best[row] for row in sorted(best)],
    }
    write_whole(os.fspath(root / REPORT_FILE), json.dumps(report, indent=1).encode())
    ids = "".join(f"{match['id']}\n" for match in report["removed"])
    write_whole(os.fspath(root / IDS_FILE), ids.encode())
    return report


def hash_source(source: Source, run_jobs: RunJobs, output: str) -> Hashed:
    """Returns the hashes of a source, from an earlier search where there was one.

    Raises:
      UserError: A source without files, or files that cannot be read.
    """
    keys = example_keys(source)
    digest = hashlib.blake2b("\n".join([source.description, *keys]).encode())
    work = epath.Path(output) / "hashes" / digest.hexdigest()[:16]
    work.mkdir(parents=True, exist_ok=True)
    starts = range(0, len(source), CHUNK_SIZE)
    paths = [work / f"{number:06}.npz" for number in range(len(starts))]
    missing = [number for number, path in enumerate(paths) if not path.exists()]
    for number in missing:
        stop = min(starts[number] + CHUNK_SIZE, len(source))
        chunk = make_chunk(source, keys, np.arange(starts[number], stop))
        chunk.save(os.fspath(work / f"chunk-{number:06}.npz"))
    logging.info("%s: %d images to hash", source.description, len(source))
    job = functools.partial(hash_job, os.fspath(work))
    run_guarded(run_jobs, job, missing, os.fspath(work))
    parts = [dict(np.load(io.BytesIO(path.read_bytes()))) for path in paths]
    hashes, decoded = (
        np.concatenate([part[name] for part in parts]) for name in ("hashes", "decoded")
    )
    for path in work.glob("chunk-*"):
        path.unlink()
    return Hashed(source, keys, hashes, decoded)


def hash_job(work: str, number: int) -> None:
    """Hashes the images of one chunk."""
    chunk = Chunk.load(f"{work}/chunk-{number:06}.npz")
    size = len(chunk.keys)
    hashes, decoded = np.zeros(size, np.uint64), np.zeros(size, bool)
    for row, data in enumerate(chunk.table.read(np.arange(size))):
        try:
            image = decode_image(data)
        except UserError:  # data.scan tells which and why
            continue
        hashes[row], decoded[row] = perceptual_hash(image), True
    buffer = io.BytesIO()
    np.savez(buffer, hashes=hashes, decoded=decoded)
    write_whole(f"{work}/{number:06}.npz", buffer.getvalue())


def perceptual_hash(image: np.ndarray) -> int:
    """Returns the 64-bit pHash of uint8 RGB levels: signs of low DCT coefficients.

    Raises:
      UserError: The library that computes it is not installed.
    """
    try:
        import imagehash  # pyright: ignore[reportMissingImports] (extra `prepare`)
    except ImportError as err:
        raise UserError(
            "hashing needs the library imagehash; install it with pip install "
            "'.[prepare]'"
        ) from err
    bits = imagehash.phash(Image.fromarray(image)).hash
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def _candidates(own: Hashed, other: Hashed, radius: int) -> np.ndarray:
    rows, matched = np.flatnonzero(own.decoded), np.flatnonzero(other.decoded)
    pairs = find_candidates(own.hashes[rows], other.hashes[matched], radius)
    columns = (rows[pairs[:, 0]], matched[pairs[:, 1]], pairs[:, 2])
    return np.stack(columns, axis=-1)


def _confirm(
    own: Hashed, other: Hashed, pairs: np.ndarray, threshold: float
) -> list[tuple[int, dict[str, Any]]]:
    """Compares the pixels of candidates and describes those that are confirmed."""
    found = []
    # A picture that many others resemble is read once.
    get = functools.lru_cache(maxsize=4096)(
        lambda hashed, row: thumbnail(
            decode_image(hashed.read(np.array([row]))[0], exif=True)
        )
    )
    for row, match, bits in pairs.tolist():
        distance = pixel_distance(get(own.source, row), get(other.source, match))
        if distance <= threshold:
            description = {
                "id": own.keys[row],
                "file": own.source.names(np.array([row]))[0],
                "matched_set": other.source.description,
                "matched_file": other.source.names(np.array([match]))[0],
                "hash_distance": bits,
                "pixel_distance": round(distance, 4),
            }
            found.append((row, description))
    return found


def _undecoded(hashed: Hashed) -> list[str]:
    return [hashed.keys[row] for row in np.flatnonzero(~hashed.decoded).tolist()]

# SPDX-License-Identifier: Apache-2.0
"""Reads every image of a data set and lists what is wrong or odd, by path.

  python -m vit_jax.data.scan folder:/data/pets --output=scan.json
  python -m vit_jax.data.scan csv:/data/list.csv --split=train --num_classes=1000

Wrong, with exit status 1: images that are broken or empty, and labels that are unknown
or outside --num_classes. Odd: tiny (a side shorter than --tiny), grey, cmyk, 16bit,
rotated (by EXIF or XMP). Also counts examples by class, and gives mean and standard
deviation of each colour channel over all pixels, from 0 to 1. --output writes all of it
as JSON.
"""

import collections
import concurrent.futures
import dataclasses
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from absl import flags, logging
from etils import epath

from vit_jax import command
from vit_jax.data.examples import ALL, Source
from vit_jax.data.labels import MultiHot
from vit_jax.data.scan_image import Look, look
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

WRONG = ("broken", "empty", "mislabelled")
KINDS = (*WRONG, "tiny", "grey", "cmyk", "16bit", "rotated")
SHOWN = 20
"""Paths of a kind that are printed; the file of --output has all."""
CHUNK = 64
"""Images that are read at a time by each thread."""


@dataclasses.dataclass
class Scan:
    """What a scan has found so far.

    Attributes:
      found: For each of `KINDS`, path and reason ("" where none is needed).
      pixels: Number of pixels.
      total: Sum of each channel's levels.
      squares: Sum of their squares.
    """

    found: dict[str, list[tuple[str, str]]]
    pixels: int
    total: np.ndarray
    squares: np.ndarray

    def add(self, name: str, seen: Look) -> None:
        """Adds an image."""
        for kind in seen.kinds:
            self.found[kind].append((name, seen.reason if kind in WRONG else ""))
        self.pixels += seen.pixels
        self.total += seen.total
        self.squares += seen.squares


def scan_source(
    source: Source,
    *,
    num_classes: int | None = None,
    tiny: int = 32,
    workers: int | None = None,
) -> dict[str, Any]:
    """Reads every image of a source.

    Args:
      source: Opened with `lenient`, so that wrong labels are listed.
      num_classes: Labels from this number on are wrong; None for as many classes as
        have names.
      tiny: Images with a side shorter than this are listed.
      workers: Threads that decode; None for as many as the machine has cores.

    Returns:
      `examples`; for each of `KINDS` a list, of paths or for what is wrong of
      dictionaries with `path` and `reason`; `classes`: number of examples by name;
      `mean` and `std` of each channel, None without a single image that decodes.
    """
    scan = Scan({kind: [] for kind in KINDS}, 0, np.zeros(3), np.zeros(3))
    for name, reason in _wrong_labels(source, num_classes):
        scan.found["mislabelled"].append((name, reason))
    starts = range(0, len(source), CHUNK)
    with concurrent.futures.ThreadPoolExecutor(workers or os.cpu_count()) as threads:
        chunks = threads.map(lambda start: _scan_chunk(source, start, tiny), starts)
        for done, chunk in enumerate(chunks, start=1):
            for name, seen in chunk:
                scan.add(name, seen)
            if done % (5000 // CHUNK) == 0:
                logging.info("scanned %d of %d images", done * CHUNK, len(source))
    mean = scan.total / scan.pixels if scan.pixels else None
    std = None
    if mean is not None:
        std = np.sqrt(np.maximum(scan.squares / scan.pixels - mean**2, 0)).tolist()
    result: dict[str, Any] = {"examples": len(source)}
    for kind, found in scan.found.items():
        result[kind] = [path for path, _ in found]
        if kind in WRONG:
            result[kind] = [{"path": path, "reason": reason} for path, reason in found]
    result["classes"] = _count_classes(source)
    return {**result, "mean": None if mean is None else mean.tolist(), "std": std}


def _scan_chunk(source: Source, start: int, tiny: int) -> list[tuple[str, Look]]:
    rows = np.arange(start, min(start + CHUNK, len(source)))
    try:
        images = [*source.read(rows)]
    except UserError:
        images = [_read_one(source, row) for row in rows.tolist()]
    seen = [image if isinstance(image, Look) else look(image, tiny) for image in images]
    return list(zip(source.names(rows), seen, strict=True))


def _read_one(source: Source, row: int) -> Any:
    try:
        return source.read(np.array([row]))[0]
    except UserError as err:
        return Look(("broken",), str(err), 0, np.zeros(3), np.zeros(3))


def _wrong_labels(source: Source, num_classes: int | None) -> Iterator[tuple[str, str]]:
    """Yields name and reason of each example with a label that is no class."""
    labels = source.labels
    limit = num_classes or source.num_classes or 2**31
    several = isinstance(labels, MultiHot)
    ids = labels.ids if several else labels
    if ids.dtype.kind == "f":
        return
    wrong = np.flatnonzero((ids < 0) | (ids >= limit))
    rows = wrong
    if isinstance(labels, MultiHot):
        rows = np.searchsorted(labels.offsets, wrong, side="right") - 1
    for name, label in zip(source.names(rows), ids[wrong].tolist(), strict=True):
        reason = "unknown class" if label < 0 else f"label {label} of {limit} classes"
        yield name, reason


def _count_classes(source: Source) -> dict[str, int]:
    """Returns the number of examples by class name or id."""
    labels = source.labels
    ids = labels.ids if isinstance(labels, MultiHot) else labels
    if ids.dtype.kind == "f":
        return {}
    counts = collections.Counter(ids[ids >= 0].tolist())
    names = source.class_names
    if names is None:
        return {str(label): counts[label] for label in sorted(counts)}
    return {name: counts[label] for label, name in enumerate(names)}


FLAGS = flags.FlagValues()
flags.DEFINE_string(
    "split", ALL, "A split; by default each of the data set.", flag_values=FLAGS
)
flags.DEFINE_string(
    "output", None, "JSON file that gets all that was found.", flag_values=FLAGS
)
flags.DEFINE_integer(
    "num_classes",
    None,
    "Labels from this number on are wrong.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "tiny", 32, "Shorter sides are listed.", lower_bound=0, flag_values=FLAGS
)
flags.DEFINE_integer(
    "workers", os.cpu_count(), "Threads that decode.", lower_bound=1, flag_values=FLAGS
)
flags.DEFINE_string(
    "data_dir", None, "Where TensorFlow Datasets lie.", flag_values=FLAGS
)


def main(argv: Sequence[str]) -> None:
    """Scans the data set that the command line names."""
    if len(argv) != 1:
        raise UserError("name one data set, such as folder:/data/pets")

    warnings.filterwarnings("ignore", module="PIL")  # broken EXIF breaks no image
    source = open_source(argv[0], FLAGS.split, data_dir=FLAGS.data_dir, lenient=True)
    result = scan_source(
        source,
        num_classes=FLAGS.num_classes,
        tiny=FLAGS.tiny,
        workers=FLAGS.workers,
    )
    result = {"dataset": argv[0], "split": FLAGS.split, **result}
    if FLAGS.output is not None:
        epath.Path(FLAGS.output).write_text(json.dumps(result, indent=1) + "\n")
    print(describe(result))
    _raise_if_wrong(result)


def describe(result: dict[str, Any]) -> str:
    """Returns the result of a scan as text."""
    lines = [f"{result['dataset']} {result['split']}: {result['examples']:,} examples"]
    for kind in KINDS:
        found = [
            entry if isinstance(entry, str) else entry["path"] for entry in result[kind]
        ]
        lines.append(f"{kind}: {len(found):,}")
        lines += [f"  {path}" for path in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"  and {len(found) - SHOWN:,} more; --output writes all")
    counts = result["classes"]
    if counts:
        few, many = min(counts.values()), max(counts.values())
        lines.append(f"classes: {len(counts):,}, of {few:,} to {many:,} examples")
    for name in ("mean", "std"):
        if result[name] is not None:
            lines.append(f"{name}: " + ", ".join(f"{v:.4f}" for v in result[name]))
    return "\n".join(lines)


def _raise_if_wrong(result: dict[str, Any]) -> None:
    counts = [f"{len(result[kind])} {kind}" for kind in WRONG if result[kind]]
    if not counts:
        return
    first = next(result[kind][0] for kind in WRONG if result[kind])
    reason = first["reason"]
    path = "" if first["path"] in reason else f"{first['path']}: "
    raise UserError(
        f"{', '.join(counts)} of {result['examples']} examples, first {path}{reason}"
    )


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

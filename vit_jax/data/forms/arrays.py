# SPDX-License-Identifier: Apache-2.0
"""Sources whose images are pixels, held or computed: `bundled:` and `synthetic:`."""

import functools
import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8

from vit_jax.data.examples import Collection, Request, Rows
from vit_jax.data.labels import translate_ids
from vit_jax.errors import UserError, unknown

MNIST_FILES = {"train": "train", "test": "t10k"}
MNIST_DIR = Path(__file__).parents[1] / "bundled" / "mnist"
IDX_UINT8 = 0x0800
"""First half of an IDX file's magic number: unsigned bytes; then the dimensions."""

SYNTHETIC_DEFAULTS = {
    "size": 32,
    "train": 1024,
    "validation": 128,
    "test": 128,
    "seed": 0,
}
SYNTHETIC_SPLITS = ("train", "validation", "test")
PATTERN_SIDE = 4
"""A synthetic class is a pattern of this many squares a side in random colours."""


class ArrayRecords:
    """Images held in memory.

    Attributes:
      images: uint8 pixels of all rows.
      name: What to call the set in messages.
    """

    encoded = False

    def __init__(self, images: UInt8[np.ndarray, "n h w c"], name: str):
        self.images = images
        self.name = name

    def read(self, rows: Rows) -> UInt8[np.ndarray, "n h w c"]:
        """Returns the pixels of `rows`."""
        return self.images[rows]

    def names(self, rows: Rows) -> list[str]:
        """Returns `NAME:ROW` for each row."""
        return [f"{self.name}:{row}" for row in rows.tolist()]


def open_bundled(request: Request) -> Collection:
    """Opens the data set that ships with the package.

    Raises:
      UserError: Another name than `mnist`, or a split that it does not have.
    """
    if request.location != "mnist":
        raise unknown("bundled data set", request.location, ["mnist"])
    names = tuple(str(digit) for digit in range(10))
    images, labels, splits, end = [], [], {}, 0
    for asked, split in request.find_splits(MNIST_FILES, "bundled:mnist").items():
        pixels, digits = load_mnist(split)
        images.append(pixels)
        labels.append(digits)
        splits[asked] = (end, end + len(digits))
        end += len(digits)
    ids = np.concatenate(labels).astype(np.int32)
    if request.class_names is not None:
        ids = translate_ids(ids, names, request.class_names, "bundled:mnist")
        names = request.class_names
    # One split is used as it lies in the cache, without a copy.
    pixels = images[0] if len(images) == 1 else np.concatenate(images)
    return Collection(ArrayRecords(pixels, "mnist"), ids, splits, names)


@functools.lru_cache(maxsize=2)
def load_mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 28, 28, 1) and labels (n,) of "train" or "test", as uint8."""
    stem = MNIST_DIR / MNIST_FILES[split]
    images = read_idx(Path(f"{stem}-images-idx3-ubyte.gz"))
    labels = read_idx(Path(f"{stem}-labels-idx1-ubyte.gz"))
    return images[..., None], labels


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """Reads a gzipped IDX file of unsigned bytes.

    Raises:
      UserError: Not such a file, or one that is cut.
    """
    data = gzip.decompress(path.read_bytes())
    magic = int.from_bytes(data[:4], "big")
    num_dims = magic & 0xFF
    start = 4 + 4 * num_dims
    shape = np.frombuffer(data[4:start], ">u4").astype(int)
    if magic >> 8 != IDX_UINT8 >> 8 or len(data) != start + int(shape.prod()):
        raise UserError(f"{path} is no IDX file of bytes; install the package again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


class SyntheticRecords:
    """Seeded noise with the pattern of its class, computed when it is read.

    Row r of a split shows class r % num_classes: half of each level comes from the
    class's pattern of coloured squares, half is noise of seed, split and r alone.

    Attributes:
      num_classes: Number of classes.
      size: Side of the images in pixels.
      seed: Fixes patterns and noise.
      splits: Name, first row and end of each split.
    """

    encoded = False

    def __init__(
        self,
        num_classes: int,
        size: int,
        seed: int,
        splits: Sequence[tuple[str, int, int]],
    ):
        self.num_classes = num_classes
        self.size = size
        self.seed = seed
        self.splits = splits
        shape = (num_classes, PATTERN_SIDE, PATTERN_SIDE, 3)
        rng = np.random.default_rng([seed, num_classes])
        self._patterns = rng.integers(0, 256, shape, np.uint8)

    def read(self, rows: Rows) -> UInt8[np.ndarray, "n h w 3"]:
        """Returns the pixels of `rows`."""
        square = np.arange(self.size) * PATTERN_SIDE // self.size
        images = np.empty((len(rows), self.size, self.size, 3), np.uint8)
        num_words = -(-images[:1].size // 8)
        places = zip(*self._split_and_row(rows), strict=True)
        for image, (split, row) in zip(images, places, strict=True):
            rng = np.random.Generator(np.random.SFC64([self.seed, split, row]))
            words = rng.integers(0, 2**64, num_words, np.uint64)
            noise = words.view(np.uint8)[: image.size].reshape(image.shape)
            pattern = self._patterns[row % self.num_classes] >> 1
            np.add(pattern[:, square][square], noise >> 1, out=image)
        return images

    def names(self, rows: Rows) -> list[str]:
        """Returns `synthetic SPLIT:ROW` for each row."""
        return [
            f"synthetic {SYNTHETIC_SPLITS[split]}:{row}"
            for split, row in zip(*self._split_and_row(rows), strict=True)
        ]

    def labels(self, rows: Rows) -> Int[np.ndarray, " n"]:
        """Returns the class ids of `rows`."""
        return (self._split_and_row(rows)[1] % self.num_classes).astype(np.int32)

    def _split_and_row(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        split = np.zeros(len(rows), np.int64)
        row = np.zeros(len(rows), np.int64)
        for name, start, stop in self.splits:
            inside = (start <= rows) & (rows < stop)
            split[inside] = SYNTHETIC_SPLITS.index(name)
            row[inside] = rows[inside] - start
        return split, row


def open_synthetic(request: Request) -> Collection:
    """Opens `synthetic:CLASSES`, with options `size`, `seed` and the split sizes.

    Raises:
      UserError: Numbers that are none or too small, or an unknown split.
    """
    num_classes = _whole_number("the number of classes", request.location, 1)
    sizes = dict(SYNTHETIC_DEFAULTS)
    for key, value in request.options.items():
        sizes[key] = _whole_number(key, value, 0 if key == "seed" else 1)
    splits: dict[str, tuple[int, int]] = {}
    own_splits: list[tuple[str, int, int]] = []
    end = 0
    for asked, split in request.find_splits(SYNTHETIC_SPLITS, "synthetic:").items():
        splits[asked] = (end, end + sizes[split])
        own_splits.append((split, *splits[asked]))
        end += sizes[split]
    records = SyntheticRecords(
        num_classes, sizes["size"], sizes["seed"] % 2**64, own_splits
    )
    names = tuple(str(number) for number in range(num_classes))
    ids = records.labels(np.arange(end))
    if request.class_names is not None:
        ids = translate_ids(ids, names, request.class_names, "synthetic:")
        names = request.class_names
    return Collection(records, ids, splits, names)


def _whole_number(what: str, text: str, smallest: int) -> int:
    if not text.isdecimal() or int(text) < smallest:
        raise UserError(
            f"{what} of synthetic: is {text!r}; give a whole number from {smallest} "
            "on, as in synthetic:10@size=64;train=1024;test=128"
        )
    return int(text)

# SPDX-License-Identifier: Apache-2.0
"""Tar shards with an index of any number of rows, to measure big tables with."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from vit_jax.data.shards.index_file import Shard, Shards, join
from vit_jax.data.shards.store import Store, index_shards
from vit_jax.data.shards.tars import TarReader

NUM_CLASSES = 1000


def write_synthetic_shards(
    folder: str, rows: int, *, shards: int = 100, images: int = 100, side: int = 224
) -> str:
    """Writes tar shards of JPEG files of noise, and an index that repeats them.

    Training sees `rows` examples and reads any of them as it would a data set of that
    size, though the files hold only `shards * images` pictures.

    Args:
      folder: Where they go; made if it is not there.
      rows: Number of examples, at least `shards`.
      shards: Number of tar files.
      images: Number of images in each.
      side: Side of the images in pixels.

    Returns:
      The DATASET, with the single split `train`.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (images, side // 8, side // 8, 3), np.uint8)
    files = [_jpeg(pixels, side) for pixels in small]
    paths = [
        os.path.join(folder, f"train-{number:05d}.tar") for number in range(shards)
    ]
    for path in paths:
        _write_tar(path, files)
    index = index_shards(paths, TarReader(), report=lambda done, total: None)
    counts = np.diff(np.arange(shards + 1) * rows // shards).tolist()
    parts = [
        _repeat(index.select([path]), count)
        for path, count in zip(paths, counts, strict=True)
    ]
    Store(folder, TarReader().name).add([join(parts)])
    return f"tar:{folder}/train-*.tar"


def _jpeg(pixels: np.ndarray, side: int) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels).resize((side, side), Image.Resampling.BICUBIC)
    image.save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def _write_tar(path: str, files: list[bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, data in enumerate(files):
            label = str(number % NUM_CLASSES).encode()
            for extension, content in (("jpg", data), ("cls", label)):
                member = tarfile.TarInfo(f"{number:06d}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def _repeat(index: Shards, rows: int) -> Shards:
    """Returns a shard's index with its rows repeated up to a number."""
    (shard,) = index.shards
    place = np.arange(rows) % len(index.offset)
    return Shards(
        shards=(Shard(*shard[:3], rows, 0, shard.kind),),
        offset=index.offset[place],
        length=index.length[place],
        label=index.label[place],
        codes=index.codes,
    )

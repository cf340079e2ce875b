# SPDX-License-Identifier: Apache-2.0
"""Feeds of pixels that a test writes down."""

from collections.abc import Sequence

import jax
import numpy as np

from vit_jax import sharding
from vit_jax.data.examples import Collection, Source
from vit_jax.data.feed import EvalFeed, eval_feed
from vit_jax.data.labels import MultiHot


class Pixels:
    """Records that lie in memory."""

    encoded = False

    def __init__(self, images: np.ndarray):
        self.images = images

    def read(self, rows: np.ndarray) -> np.ndarray:
        return self.images[rows]

    def names(self, rows: np.ndarray) -> list[str]:
        return [f"image {row}" for row in rows]


def source(
    images: np.ndarray,
    labels: np.ndarray | MultiHot,
    class_names: Sequence[str] | None = None,
) -> Source:
    size = len(images)
    names = None if class_names is None else tuple(class_names)
    collection = Collection(Pixels(images), labels, {"all": (0, size)}, names)
    return Source(collection, [(0, size)], "pixels all")


def feed(
    images: np.ndarray,
    labels: np.ndarray | MultiHot,
    class_names: Sequence[str] | None = None,
    *,
    batch_size: int = 8,
    devices: int = 1,
) -> EvalFeed:
    mesh = sharding.make_mesh(devices=jax.devices()[:devices])
    examples = source(images, labels, class_names)
    return eval_feed(examples, "value_range(0, 255)", mesh, batch_size)


def several(rows: Sequence[Sequence[int]], num_classes: int) -> MultiHot:
    offsets = np.cumsum([0, *map(len, rows)])
    ids = np.array([label for row in rows for label in row], np.int32)
    return MultiHot(offsets, ids, num_classes)

# SPDX-License-Identifier: Apache-2.0
"""Plain tf.data pipelines over JPEG files in memory, to measure ours by.

They draw boxes and flips as ours does, but from generators with a state, and do the
same work on pixels; see `speed`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf


def bare(
    files: list[bytes], batch_size: int, size: tuple[int, int], fused: bool
) -> Iterator[Any]:
    """Decodes, cuts out a random box and resizes; `fused` decodes only the box."""

    def run(data: Any) -> Any:
        window = _draw_window(tf.io.extract_jpeg_shape(data)) if fused else None
        return cut_and_resize(data, window, size)

    return batched(tf.data.Dataset.from_tensor_slices(files).repeat(), run, batch_size)


def big_vision(
    files: list[bytes], batch_size: int, size: tuple[int, int]
) -> Iterator[Any]:
    """Shuffles, repeats, maps and batches; decodes to normalised pixels."""

    def run(features: Any) -> Any:
        image = cut_and_resize(features["image"], None, size)
        flip = tf.random.uniform([]) < 0.5
        return {"image": as_big_vision(image, flip), "label": features["label"]}

    examples: Any = {"image": files, "label": np.zeros(len(files), np.int32)}
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    dataset = dataset.shuffle(len(files)).repeat()
    return batched(dataset, run, batch_size)


def batched(dataset: Any, run: Callable[[Any], Any], batch_size: int) -> Iterator[Any]:
    """Maps a data set in parallel and makes batches."""
    run = tf.autograph.experimental.do_not_convert(run)
    dataset = dataset.map(run, num_parallel_calls=tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 1
    dataset = dataset.batch(batch_size, drop_remainder=True).prefetch(2)
    return dataset.with_options(options).as_numpy_iterator()


def cut_and_resize(data: Any, window: Any, size: tuple[int, int]) -> tf.Tensor:
    """Decodes, cuts and resizes one JPEG file to float levels.

    Args:
      data: The file.
      window: `(top, left, height, width)` to decode; None decodes everything, and cuts
        out a box that is drawn then.
      size: Height and width.
    """
    if window is None:
        image = tf.image.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE")
        window = _draw_window(tf.shape(image))
        begin, extent = tf.pad(window[:2], [[0, 1]]), tf.concat([window[2:], [3]], 0)
        image = tf.slice(image, begin, extent)
    else:
        image = tf.image.decode_and_crop_jpeg(
            data, window, 3, dct_method="INTEGER_ACCURATE"
        )
    return tf.image.resize(image, size)


def as_big_vision(image: Any, flip: Any) -> tf.Tensor:
    """Goes on from resized levels as big_vision does, to -1...1."""
    image = tf.cast(image, tf.uint8)  # cuts off, which ours does not
    image = tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)
    unit = (tf.cast(image, tf.float32) - 0.0) / (255.0 - 0.0)
    return -1.0 + unit * (1.0 - -1.0)


def _draw_window(shape: Any) -> tf.Tensor:
    begin, extent, _ = tf.image.sample_distorted_bounding_box(
        shape,
        tf.zeros((0, 0, 4)),
        area_range=(0.05, 1.0),
        min_object_covered=0,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], extent[:2]], 0)

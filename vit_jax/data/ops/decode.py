# SPDX-License-Identifier: Apache-2.0
"""Decoding inside tf.data: TensorFlow where it equals Pillow, Pillow elsewhere.

Which files are which, `headers.picture_kind` tells. The pipeline looks at the headers
as it reads, and hands the kinds down in `features["kind"]`; without that key they are
looked at here, one call into Python a picture.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from vit_jax.data import pixels
from vit_jax.data.ops.headers import JPEG, PNG, TURNED_JPEG, picture_kind
from vit_jax.errors import UserError

Features = dict[str, Any]


def decode(features: Features, *, exif: bool) -> tf.Tensor:
    """Decodes one encoded picture.

    Args:
      features: `image`, the file as a scalar string tensor; `kind`, its kind; and
        `name`, which errors give, such as the path. The latter two may be absent.
      exif: Whether to apply the orientation that EXIF or XMP state.

    Returns:
      uint8 `(h, w, 3)`, equal to `pixels.decode_image(data, exif=exif)`.
    """
    data, kind = features["image"], kind_of(features)
    return tf.cond(
        is_plain_jpeg(kind, exif=exif),
        lambda: tf.image.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE"),
        lambda: decode_other({**features, "kind": kind}, exif=exif),
    )


def decode_other(features: Features, *, exif: bool) -> tf.Tensor:
    """Decodes what is no plain JPEG; see `decode`."""
    data = features["image"]
    return tf.cond(
        kind_of(features) == PNG,
        lambda: tf.image.decode_png(data, 3),
        lambda: _decode_with_pillow(data, exif, features.get("name", "")),
    )


def decode_window(data: Any, window: Any, ratio: int = 1) -> tf.Tensor:
    """Decodes only the window `(top, left, height, width)` of a plain JPEG.

    Args:
      data: The file.
      window: In pixels of the picture as it is made smaller.
      ratio: 1, 2, 4 or 8: how many times smaller, by leaving out high frequencies.
    """
    return tf.image.decode_and_crop_jpeg(
        data, window, 3, ratio=ratio, dct_method="INTEGER_ACCURATE"
    )


def kind_of(features: Features) -> tf.Tensor:
    """Returns the kind of the file in `image`; see `headers`."""
    if "kind" in features:
        return tf.cast(features["kind"], tf.int32)

    def look(data: Any) -> np.ndarray:
        return np.array(picture_kind(_bytes(data)), np.int32)

    kind = tf.numpy_function(look, [features["image"]], tf.int32)
    kind.set_shape(())
    return kind


def is_plain_jpeg(kind: Any, *, exif: bool) -> tf.Tensor:
    """Says whether TensorFlow decodes a JPEG of that kind as Pillow does."""
    return (kind == JPEG) if exif else (kind == JPEG) | (kind == TURNED_JPEG)


def _decode_with_pillow(data: Any, exif: bool, name: Any) -> tf.Tensor:
    def decode_named(data: Any, name: Any) -> np.ndarray:
        try:
            return pixels.decode_image(_bytes(data), exif=exif)
        except UserError as err:
            path = _bytes(name).decode(errors="replace")
            raise UserError(f"{path}: {err}" if path else str(err)) from err

    image = tf.numpy_function(
        decode_named, [data, tf.convert_to_tensor(name)], tf.uint8
    )
    image.set_shape((None, None, 3))
    return image


def _bytes(scalar: Any) -> bytes:
    """Undoes the array of one object that eager mode makes of a string."""
    return scalar if isinstance(scalar, bytes) else scalar.item()

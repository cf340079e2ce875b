# SPDX-License-Identifier: Apache-2.0
"""Decoding inside tf.data: TensorFlow where it equals Pillow, Pillow elsewhere.

TensorFlow decodes plain JPEG and PNG without Python's lock, and with the accurate DCT
bit for bit as Pillow does. It ignores EXIF, fails on BMP and TIFF, makes four
dimensions of a WebP, drops alpha, and differs on CMYK. So a regular expression looks
for what it cannot do, and such files (a few per cent of most data sets) go to
`pixels.decode_image`.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from vit_jax.data import pixels
from vit_jax.errors import UserError

# RE2 reads patterns as UTF-8, so bytes above 0x7f can only be matched by \C (any byte).
# A match by chance inside compressed data does no harm: Pillow then decodes the file.
_FRAME = r"\x00(?:\x11\x08\C{4}\x03|\x0b\x08\C{4}\x01)"  # start of frame: RGB or grey
_TURNED = (
    r"\x12\x01[\x01-\x0c]\x00\x01\x00\x00\x00[^\x01]"  # tag 0x112, little-endian, not 1
    r"|\x01\x12\x00[\x01-\x0c]\x00\x00\x00\x01(?:\x00[^\x01]|[^\x00])"  # big-endian
    r"|tiff:Orientation(?:=\"|>)[02-9]"  # XMP
)
_PNG = r"\CPNG\r\n\x1a\n\C{4}IHDR\C{8}\x08[\x00\x02]\C*IEND\C{4}"  # 8-bit grey or RGB
_PNG_EXTRAS = "tRNS|eXIf|zTXt|iTXt|tEXtRaw|acTL"  # transparency, EXIF, XMP, animation


def decode(data: Any, *, exif: bool, name: Any = "") -> tf.Tensor:
    """Decodes one encoded picture.

    Args:
      data: Scalar string tensor, the file.
      exif: Whether to apply the orientation that EXIF or XMP state.
      name: Scalar string that errors give, such as the path.

    Returns:
      uint8 `(h, w, 3)`, equal to `pixels.decode_image(data, exif=exif)`.
    """
    return tf.cond(
        is_plain_jpeg(data, exif=exif),
        lambda: tf.image.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE"),
        lambda: tf.cond(
            _is_plain_png(data),
            lambda: tf.image.decode_png(data, 3),
            lambda: _decode_with_pillow(data, exif, name),
        ),
    )


def decode_window(data: Any, window: Any) -> tf.Tensor:
    """Decodes only the window `(top, left, height, width)` of a plain JPEG."""
    return tf.image.decode_and_crop_jpeg(data, window, 3, dct_method="INTEGER_ACCURATE")


def is_plain_jpeg(data: Any, *, exif: bool) -> tf.Tensor:
    """Says of a scalar string whether TensorFlow decodes it as Pillow does.

    That is: a JPEG with its end marker (so not cut off), grey or three colours, and
    upright or not to be turned. Only the first eighth is searched for an orientation
    (16 KiB at least, 256 KiB at most; 2 ns a byte); a file whose header is longer is
    not plain.
    """
    length = tf.strings.length(data)
    header = tf.strings.substr(data, 0, tf.clip_by_value(length // 8, 2**14, 2**18))
    last_two = tf.strings.substr(data, tf.maximum(length - 2, 0), 2)
    plain = (
        (tf.strings.substr(data, 0, 3) == b"\xff\xd8\xff")
        & (last_two == b"\xff\xd9")
        & tf.strings.regex_full_match(header, rf"\C*{_FRAME}\C*")
    )
    if exif:
        plain &= ~tf.strings.regex_full_match(header, rf"\C*(?:{_TURNED})\C*")
    return tf.cond(  # the frame that was found may be that of a thumbnail
        plain, lambda: tf.io.extract_jpeg_shape(data)[2] != 4, lambda: plain
    )


def _is_plain_png(data: Any) -> tf.Tensor:
    return tf.strings.regex_full_match(data, _PNG) & ~tf.strings.regex_full_match(
        data, rf"\C*(?:{_PNG_EXTRAS})\C*"
    )


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

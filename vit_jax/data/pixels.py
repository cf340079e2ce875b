# SPDX-License-Identifier: Apache-2.0
"""Pictures without TensorFlow: decoding and the deterministic ops, Pillow and NumPy.

This module serves prediction, decodes for training whatever TensorFlow cannot, and is
the reference that the TensorFlow ops are tested against. What a picture becomes:

  8-bit RGB, grey      as it is; grey three times
  palette, 1 bit       looked up
  alpha of any kind    over a white background
  16-bit grey          the high byte (TensorFlow's rule), so it never saturates
  16-bit RGB           the high byte
  CMYK, YCCK, YCbCr    Pillow's conversion; colour profiles are not applied
  animations           the first frame
  EXIF, XMP            orientation applied, unless `exif=False`

Refused by name: broken or empty files, floating-point and Lab pictures (no agreed
range or white), more than `MAX_PIXELS` pixels, and formats not in `FORMATS` (among
them EPS, which would start another program).
"""

import functools
import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from vit_jax.data.ops.arguments import LABEL_OPS
from vit_jax.data.ops.reference import NUMPY_OPS
from vit_jax.errors import UserError
from vit_jax.registry import OPS, Call, parse_pipeline

FORMATS = tuple("JPEG PNG GIF WEBP BMP DIB TIFF PPM JPEG2000 AVIF ICO PSD".split())
"""The formats, by content, that are opened."""

MAX_PIXELS = 89_478_485
"""Pictures with more pixels are refused (Pillow's limit against bombs)."""

_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    EOFError,
    OverflowError,
    struct.error,
    zlib.error,
)
"""What Pillow raises for broken files, besides its own errors (which are OSErrors)."""


def decode_image(data: bytes, *, exif: bool = True) -> UInt8[np.ndarray, "h w 3"]:
    """Decodes a picture by its content, whatever its file was named.

    Args:
      data: The encoded file.
      exif: Whether to apply the orientation that EXIF or XMP state. (TIFF files are
        always turned: Pillow does so on loading.)

    Returns:
      RGB levels; see the top of this file for what becomes of other pictures.

    Raises:
      UserError: The bytes are not a whole picture of a known format, or hold one that
        has no agreed 8-bit form.
    """
    if not data:
        raise UserError("not a picture: the file is empty; remove or replace it")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image)
            image.load()
            upright = ImageOps.exif_transpose(image) if exif else image
            return _to_rgb(upright)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as err:
        raise UserError(_too_large()) from err
    except UserError:
        raise
    except _BROKEN as err:
        reason = "" if isinstance(err, UnidentifiedImageError) else f" ({err})"
        raise UserError(
            f"not a picture that can be decoded: {_looks_like(data)}{reason}; remove "
            "or replace it"
        ) from err


def _check_size(image: Image.Image) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UserError(f"{_too_large()}; this one has {width} x {height}")


def _too_large() -> str:
    return f"picture with more than {MAX_PIXELS} pixels; make it smaller first"


def _looks_like(data: bytes) -> str:
    """Says in words what bytes that are no picture seem to be."""
    start = data[:512].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml", b"<svg")):
        return "it is an HTML or XML page, perhaps an error page saved as a picture"
    known = {
        b"\xff\xd8": "JPEG",
        b"\x89PNG": "PNG",
        b"GIF8": "GIF",
        b"RIFF": "WebP",
        b"BM": "BMP",
        b"II*\0": "TIFF",
        b"MM\0*": "TIFF",
    }
    for magic, name in known.items():
        if data.startswith(magic):
            return f"a {name} file of {len(data)} bytes that is truncated or damaged"
    return f"{len(data)} bytes of no known format, starting {data[:8]!r}"


def _to_rgb(image: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    if image.mode == "I" or image.mode.startswith("I;16"):
        levels = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        return np.repeat((levels >> 8).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode in ("F", "LAB"):
        kind = {"F": "floating-point", "LAB": "Lab"}[image.mode]
        raise UserError(
            f"{kind} picture: it has no agreed 8-bit form; save it as 8 or 16 bit "
            "RGB or grey"
        )
    if image.has_transparency_data:
        opaque = Image.new("RGBA", image.size, "white")
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque
    return np.array(image.convert("RGB"))


def preprocess(
    image: bytes | np.ndarray, ops: str
) -> UInt8[np.ndarray, "h w c"] | Float[np.ndarray, "h w c"]:
    """Runs the image ops of a string on one picture, without TensorFlow.

    Resizing uint8 agrees with the TensorFlow ops within one level; the rest is equal.
    Ops on labels and on dictionary keys (`onehot`, `keep`, `drop`) are passed over.

    Args:
      image: An encoded picture, or the uint8 array `(h, w, c)` of one.
      ops: Such as `"decode|resize(224)|value_range(-1, 1)"`.

    Returns:
      The image: uint8, or float32 once `value_range` or `normalize` ran.

    Raises:
      UserError: An op that is unknown, random, or has no NumPy form; wrong arguments;
        a picture that cannot be decoded, or is too small for a crop.
    """
    for run in _compile(ops):
        image = run(image)
    if isinstance(image, bytes):
        raise UserError(f"{ops!r} leaves the picture encoded; start it with 'decode'")
    return image


@functools.lru_cache
def _compile(ops: str) -> tuple[Callable[[Any], Any], ...]:
    return tuple(_build(call) for call in parse_pipeline(ops))


def _build(call: Call) -> Callable[[Any], Any]:
    if call.name in RANDOM_OPS or OPS.is_random(call.name):
        raise UserError(
            f"op {call.name!r} draws random numbers, so it has no place in evaluation "
            f"or prediction; use for example resize or central_crop (in {call.where})"
        )
    if call.name in LABEL_OPS:
        return lambda image: image
    return NUMPY_OPS.build(call)


RANDOM_OPS = (
    "autoaugment",
    "color_jitter",
    "flip_lr",
    "inception_crop",
    "randaug",
    "random_crop",
    "random_erasing",
)


@NUMPY_OPS.register()
def decode(exif: bool = True):
    """See `ops.image.decode`."""

    def run(image: Any) -> np.ndarray:
        if isinstance(image, bytes):
            return decode_image(image, exif=exif)
        return to_three_channels(np.asarray(image))

    return run


def to_three_channels(image: np.ndarray) -> UInt8[np.ndarray, "h w 3"]:
    """Makes RGB of a grey or RGB uint8 array.

    Raises:
      UserError: Another dtype or another number of channels.
    """
    if image.dtype != np.uint8 or image.ndim not in (2, 3):
        raise UserError(
            f"decode got an array {image.dtype}{list(image.shape)}; it takes encoded "
            "bytes or uint8 of shape (h, w, 1) or (h, w, 3)"
        )
    image = image if image.ndim == 3 else image[..., None]
    if image.shape[-1] not in (1, 3):
        raise UserError(
            f"decode got an array of {image.shape[-1]} channels; it takes 1 or 3"
        )
    return image if image.shape[-1] == 3 else np.repeat(image, 3, axis=2)

# SPDX-License-Identifier: Apache-2.0
"""Looks at one encoded image: whether it decodes, what is odd about it, its levels."""

import io
import struct
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image

from vit_jax.data.pixels import FORMATS, decode_image, to_three_channels
from vit_jax.errors import UserError

_ORIENTATION = 0x0112  # of EXIF
_BITS = 258  # BitsPerSample of TIFF
_GREY = ("1", "L", "LA", "La", "I", "F")
_BROKEN_HEADER = (OSError, SyntaxError, ValueError, struct.error, zlib.error)


class Look(NamedTuple):
    """What was seen of an image.

    Attributes:
      kinds: What it is, of `scan.KINDS`: "broken", "empty", "grey", "cmyk", ...
      reason: Why it is broken, "" if it is not.
      pixels: Number of pixels of the decoded image.
      total: Sum of each channel's levels, from 0 to 1.
      squares: Sum of their squares.
    """

    kinds: tuple[str, ...]
    reason: str
    pixels: int
    total: np.ndarray
    squares: np.ndarray


def look(image: bytes | np.ndarray, tiny: int) -> Look:
    """Looks at an image.

    Args:
      image: Encoded, or pixels as uint8 (h, w, 1 or 3).
      tiny: Images with a side shorter than this many pixels are "tiny".
    """
    kinds: list[str] = []
    none = np.zeros(3)
    try:
        if isinstance(image, bytes):
            kinds = odd_kinds(image)
            levels = decode_image(image)
        else:
            levels = to_three_channels(image)
    except UserError as err:
        kind = "empty" if len(image) == 0 else "broken"
        return Look((kind, *kinds), str(err), 0, none, none)
    if min(levels.shape[:2]) < tiny:
        kinds.append("tiny")
    counts = np.arange(256) / 255
    # How often each level occurs: cheaper than arithmetic on every pixel.
    often = np.stack(
        [np.bincount(levels[..., c].ravel(), minlength=256) for c in range(3)]
    )
    pixels = levels.shape[0] * levels.shape[1]
    return Look(tuple(kinds), "", pixels, often @ counts, often @ counts**2)


def odd_kinds(data: bytes) -> list[str]:
    """Says what an encoded image is by its header: grey, cmyk, 16bit, rotated."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            kinds = []
            if image.mode in _GREY or image.mode.startswith("I;16"):
                kinds.append("grey")
            if image.mode == "CMYK":
                kinds.append("cmyk")
            if _is_deep(image, data):
                kinds.append("16bit")
            if image.getexif().get(_ORIENTATION, 1) not in (0, 1):
                kinds.append("rotated")
            return kinds
    except (
        *_BROKEN_HEADER,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ):
        return []


def _is_deep(image: Image.Image, data: bytes) -> bool:
    """Whether a channel has more than 8 bits, also where Pillow reduces them."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        return True
    if image.format == "PNG":
        return data[24:25] == b"\x10"
    if image.format == "TIFF":
        bits = getattr(image, "tag_v2", {}).get(_BITS, (8,))
        return max(bits if isinstance(bits, tuple) else (bits,)) == 16
    return False

# SPDX-License-Identifier: Apache-2.0
"""Which encoded pictures TensorFlow decodes as Pillow does, told from their headers.

TensorFlow decodes plain JPEG and PNG without Python's lock and, with the accurate DCT,
bit for bit as Pillow does. It ignores EXIF, fails on BMP and TIFF, makes four
dimensions of a WebP, drops alpha, and differs on CMYK. A look at the header (3 µs)
tells which files it may have; the others, a few per cent of most data sets, are
Pillow's. When in doubt a file is `OTHER`, which costs time and nothing else.
"""

import re
import struct

OTHER, JPEG, TURNED_JPEG, PNG = range(4)
"""Kinds: for Pillow; plain JPEG; plain JPEG that EXIF or XMP turn; plain PNG."""

_TURNED = re.compile(
    # The tag 0x112 with another value than 1, little-endian and big-endian.
    rb"\x12\x01[\x01-\x0c]\x00\x01\x00\x00\x00[^\x01]"
    rb"|\x01\x12\x00[\x01-\x0c]\x00\x00\x00\x01(?:\x00[^\x01]|[^\x00])"
    rb"|tiff:Orientation(?:=\"|>)[02-9]",  # XMP
    re.DOTALL,
)
_APP1, _SCAN = 0xE1, 0xDA
_FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended and progressive Huffman
_SEGMENTS = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}  # others are not plain
_PNG_CHUNKS = (
    b"IDAT PLTE bKGD cHRM gAMA iCCP sRGB pHYs sBIT tIME hIST sPLT tEXt cICP mDCV cLLI"
).split()


def picture_kind(data: bytes) -> int:
    """Says what may decode a file.

    A plain JPEG has its end marker as its last two bytes (so it is not cut off), 8
    bits, and one or three components; a plain PNG has 8 bits, grey or RGB, its end
    chunk last, and no chunk that changes the picture (transparency, EXIF, animation).

    Args:
      data: The file.

    Returns:
      `OTHER`, `JPEG`, `TURNED_JPEG` or `PNG`.
    """
    try:
        if data.startswith(b"\xff\xd8\xff") and data.endswith(b"\xff\xd9"):
            return _jpeg_kind(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"):
            return PNG if _is_plain_png(data) else OTHER
    except (struct.error, IndexError):  # a header that is cut off
        pass
    return OTHER


def _jpeg_kind(data: bytes) -> int:
    """Walks the segments up to the first scan."""
    place, kind, frames = 2, JPEG, 0
    while True:
        start, marker, length = struct.unpack_from(">BBH", data, place)
        if start != 0xFF:
            return OTHER
        if marker == _SCAN:
            return kind if frames == 1 else OTHER
        if marker in _FRAMES:
            frames += 1
            if data[place + 4] != 8 or data[place + 9] not in (1, 3):
                return OTHER
        elif marker not in _SEGMENTS:
            return OTHER
        end = place + 2 + length
        if marker == _APP1 and _TURNED.search(data, place, end):
            kind = TURNED_JPEG
        place = end


def _is_plain_png(data: bytes) -> bool:
    if data[24] != 8 or data[25] not in (0, 2):
        return False
    place = 33
    while True:
        length, name = struct.unpack_from(">I4s", data, place)
        start, place = place, place + 12 + length
        if name == b"IEND":
            return place == len(data)
        # ImageMagick writes EXIF as a text, "Raw profile type exif".
        raw = name == b"tEXt" and data.find(b"Raw profile", start, place) >= 0
        if raw or name not in _PNG_CHUNKS:
            return False

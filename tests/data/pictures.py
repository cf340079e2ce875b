# SPDX-License-Identifier: Apache-2.0
"""Small pictures of every kind, drawn with Pillow."""

import io
import struct
import zlib

import numpy as np
from PIL import Image

SIZE = (48, 40)  # width, height


def photo(width: int = SIZE[0], height: int = SIZE[1], seed: int = 0) -> Image.Image:
    """A smooth picture without symmetry, with some noise."""
    y, x = np.mgrid[0:height, 0:width] / (height + width)
    noise = np.random.default_rng(seed).normal(0, 6, (height, width, 3))
    levels = np.stack([300 * x, 250 * y + 60 * x, 200 - 180 * x * y], axis=-1)
    return Image.fromarray(np.clip(levels + noise, 0, 255).astype(np.uint8))


def encode(image: Image.Image, file_format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def jpeg(image: Image.Image | None = None, orientation: int = 0, **options) -> bytes:
    image = image or photo()
    if orientation:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    return encode(image, "JPEG", quality=90, **options)


def grey16() -> np.ndarray:
    """A ramp over all 16-bit levels."""
    return np.linspace(0, 65535, SIZE[0] * SIZE[1]).astype(np.uint16).reshape(40, 48)


def with_png_chunk(png: bytes, kind: bytes, body: bytes) -> bytes:
    """Inserts a chunk after the header chunk (8 + 25 bytes)."""
    checksum = struct.pack(">I", zlib.crc32(kind + body))
    chunk = struct.pack(">I", len(body)) + kind + body + checksum
    return png[:33] + chunk + png[33:]


def rgba() -> Image.Image:
    """Opaque on the left half, clear (over black) on the right."""
    image = photo().convert("RGBA")
    image.paste((0, 0, 0, 0), (24, 0, 48, 40))
    return image


def good() -> dict[str, bytes]:
    """Files that decode to 40 x 48 pixels, by what they are."""
    image = photo()
    palette = image.quantize(16)
    movie = [photo(seed=seed) for seed in (1, 2)]
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><d tiff:Orientation="3"/></x:xmpmeta>'
    upright = Image.Exif()
    upright[0x0112] = 1
    return {
        "jpeg": jpeg(),
        "jpeg with full chroma": jpeg(subsampling=0),
        "jpeg progressive": jpeg(progressive=True),
        "jpeg grey": jpeg(image.convert("L")),
        "jpeg cmyk": jpeg(image.convert("CMYK")),
        "jpeg upright": jpeg(orientation=1),
        "jpeg turned by 180": jpeg(orientation=3),
        "jpeg turned by xmp": jpeg(xmp=xmp),
        "jpeg with a long profile": jpeg(icc_profile=b"\0" * 150_000),
        "jpeg with bytes after its end": jpeg() + b"\0\0\0",
        "png": encode(image, "PNG"),
        "png grey": encode(image.convert("L"), "PNG"),
        "png upright": encode(image, "PNG", exif=upright),
        "png turned by 180": encode(image.rotate(180), "PNG", exif=_turned()),
        "png grey 16 bit": encode(Image.fromarray(grey16()), "PNG"),
        "png rgba": encode(rgba(), "PNG"),
        "png la": encode(rgba().convert("LA"), "PNG"),
        "png 1 bit": encode(image.convert("1"), "PNG"),
        "png palette": encode(palette, "PNG"),
        "png palette with a clear colour": encode(palette, "PNG", transparency=3),
        "png rgb with a clear colour": encode(image, "PNG", transparency=(0, 59, 200)),
        "png with text": with_png_chunk(encode(image, "PNG"), b"tEXt", b"a\0b"),
        "gif": encode(palette, "GIF"),
        "gif moving": encode(movie[0], "GIF", save_all=True, append_images=movie[1:]),
        "webp": encode(image, "WEBP"),
        "webp with alpha": encode(rgba(), "WEBP", lossless=True),
        "bmp": encode(image, "BMP"),
        "tiff": encode(image, "TIFF"),
    }


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 3
    return exif


def broken() -> dict[str, tuple[bytes, str]]:
    """Files that do not decode, with words of the error."""
    whole = encode(photo(), "PNG")
    return {
        "empty": (b"", "the file is empty"),
        "html": (b"<!DOCTYPE html><html>404</html>", "HTML or XML page"),
        "jpeg cut": (jpeg()[:-300], "a JPEG file of .* truncated or damaged"),
        "jpeg stub": (jpeg()[:20], "a JPEG file of 20 bytes .* truncated or damaged"),
        "png cut": (whole[: len(whole) // 2], "a PNG file of .* truncated or damaged"),
        "gif cut": (encode(photo(), "GIF")[:100], "a GIF file of 100 bytes"),
        "text": (b"hello, world, hello", r"19 bytes of no known format.*b'hello, w'"),
        "one byte": (b"\xff", "1 bytes of no known format"),
    }

# SPDX-License-Identifier: Apache-2.0
"""A picture of the pictures that a model is trained on, to look at before training."""

import math
from collections.abc import Sequence

import numpy as np
from etils import epath
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

_CAPTION = 14  # Height of the line under an image, in pixels.


def contact_sheet(
    images: Float[np.ndarray, "n h w 3"] | UInt8[np.ndarray, "n h w 3"],
    captions: Sequence[str],
    *,
    columns: int = 8,
    side: int = 96,
) -> UInt8[np.ndarray, "rows columns 3"]:
    """Lays images out in a grid, each with its caption below.

    Args:
      images: As the model gets them. Whatever their range, the darkest value of each
        colour channel over all images becomes black and the brightest white.
      captions: One for each image; cut to what fits.
      columns: Images in a row.
      side: An image is enlarged by a whole number until its longer side has at least
        so many pixels; larger ones are shrunk to it.

    Returns:
      The sheet.
    """
    pixels = _stretch(images)
    height, width = _shown_size(pixels.shape[1], pixels.shape[2], side)
    rows = math.ceil(len(pixels) / columns)
    cell = (width + 4, height + _CAPTION + 4)
    sheet = Image.new("RGB", (columns * cell[0], rows * cell[1]), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (image, caption) in enumerate(zip(pixels, captions, strict=True)):
        left, top = cell[0] * (number % columns), cell[1] * (number // columns)
        resample = Image.Resampling.NEAREST
        if height < image.shape[0]:
            resample = Image.Resampling.BOX
        shown = Image.fromarray(image).resize((width, height), resample)
        sheet.paste(shown, (left + 2, top + 2))
        draw.text((left + 3, top + height + 2), caption[: width // 6], fill="black")
    return np.asarray(sheet)


def save(path: str, sheet: UInt8[np.ndarray, "rows columns 3"]) -> None:
    """Writes a sheet as a PNG file, local or remote."""
    with epath.Path(path).open("wb") as file:
        Image.fromarray(sheet).save(file, format="PNG")


def _stretch(images: np.ndarray) -> UInt8[np.ndarray, "n h w 3"]:
    if images.dtype == np.uint8:
        return images
    low = images.min(axis=(0, 1, 2), keepdims=True)
    high = images.max(axis=(0, 1, 2), keepdims=True)
    scaled = (images - low) / np.maximum(high - low, 1e-9)
    return np.round(255 * scaled).astype(np.uint8)


def _shown_size(height: int, width: int, side: int) -> tuple[int, int]:
    longer = max(height, width)
    factor = math.ceil(side / longer) if longer <= side else side / longer
    return max(round(height * factor), 1), max(round(width * factor), 1)

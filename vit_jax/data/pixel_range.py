# SPDX-License-Identifier: Apache-2.0
"""What the ops make of black and of white, so that inputs can be read as levels."""

import numpy as np
from jaxtyping import Float, UInt8

from vit_jax.data.ops.reference import NUMPY_OPS
from vit_jax.errors import UserError
from vit_jax.registry import parse_pipeline

_RANGES = ("normalize", "value_range")


def pixel_range(
    ops: str, channels: int = 3
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
    """Returns what levels 0 and 255 of each channel become, in float64.

    Args:
      ops: The preprocessing; `normalize` and `value_range` are what counts.
      channels: Of an image.
    """
    black, white, _ = _scaled(ops, channels)
    return black, white


def exact_pixel_range(
    ops: str,
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Returns the same for three channels, where it tells the level of every value.

    Args:
      ops: The preprocessing.

    Raises:
      UserError: Levels that cannot be told: nothing scales the pixels, something
        multiplies them after that, or values are clipped within 0...255.
    """
    names = [call.name for call in parse_pipeline(ops)]
    scaled = [place for place, name in enumerate(names) if name in _RANGES]
    if not scaled:
        raise UserError(
            f"the ops {ops!r} do not say which range the pixels have; end them with "
            "value_range(-1, 1) or normalize(...)"
        )
    if "multiply" in names[scaled[0] :]:
        raise UserError(
            f"the ops {ops!r} multiply pixels after they were scaled, which leaves "
            "open what is white; put multiply before value_range or normalize"
        )
    black, white, middle = _scaled(ops, 3)
    # 51 is a fifth of 255. Linear in float32, or cut somewhere.
    if np.any(white <= black) or not np.allclose(
        (middle - black) / (white - black), 0.2, rtol=0, atol=1e-5
    ):
        raise UserError(
            f"the ops {ops!r} clip levels within 0...255, so colours cannot be told "
            "from what the model sees; leave out clip=True or give value_range the "
            "whole range"
        )
    r, g, b = (float(value) for value in black)
    black_rgb = (r, g, b)
    r, g, b = (float(value) for value in white)
    return black_rgb, (r, g, b)


def _scaled(ops: str, channels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what becomes of levels 0, 255 and 51."""
    levels: UInt8[np.ndarray, "3 c"] = np.repeat(
        np.array([[0], [255], [51]], np.uint8), channels, axis=1
    )
    image = levels[:, None]
    for call in parse_pipeline(ops):
        if call.name in _RANGES:
            # Each acts on every pixel alike, so three pixels tell all.
            image = NUMPY_OPS.build(call)(image)
    black, white, middle = image[:, 0].astype(np.float64)
    return black, white, middle

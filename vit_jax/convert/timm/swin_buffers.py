# SPDX-License-Identifier: Apache-2.0
"""Arrays in Swin files that are no parameters: computed, ignored, rebuilt.

Before they are put aside, they tell what parameters of V2 do not: windows, the size of
the images, and the windows of the pre-training.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_NAMES = re.compile(
    r"layers\.\d+\.blocks\.\d+\."
    r"(attn\.relative_position_index|attn\.relative_coords_table|attn\.k_bias|attn_mask)"
)


def without_buffers(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the parameters alone."""
    return {name: x for name, x in tensors.items() if not _NAMES.fullmatch(name)}


def told_by_buffers(tensors: Mapping[str, np.ndarray], patch: int) -> dict[str, Any]:
    """Returns the fields of a model that the buffers tell, as far as they are there.

    Args:
      tensors: Arrays in the names of the authors or of timm, which agree in these.
      patch: Side of a patch.

    Returns:
      Of `window_size`, `resolution`, `pretrained_window_size` those that are told.
    """
    windows, pretrained = [], []
    while (attention := f"layers.{len(windows)}.blocks.0.attn") and (
        index := tensors.get(f"{attention}.relative_position_index")
    ) is not None:
        windows.append(math.isqrt(index.shape[0]))
        coordinates = tensors.get(f"{attention}.relative_coords_table")
        if coordinates is not None:
            pretrained.append(_pretrained_window(windows[-1], coordinates))
    if not windows:
        return {}
    fields: dict[str, Any] = {"window_size": windows[0]}
    for stage, window in enumerate(windows):
        mask = tensors.get(f"layers.{stage}.blocks.1.attn_mask")
        # Without a mask the window is the whole map, if it is not the usual one.
        count = 1 if mask is None else math.isqrt(mask.shape[0])
        if mask is not None or window < windows[0]:
            fields["resolution"] = patch * 2**stage * window * count
            break
    if pretrained and pretrained != windows:
        fields["pretrained_window_size"] = tuple(pretrained)
    return fields


def _pretrained_window(window: int, coordinates: np.ndarray) -> int:
    """Inverts the coordinate of the largest offset.

    The authors' code has log2(8 (M - 1) / (P - 1) + 1) / log2(8) for a window of side
    M and a window of side P in the pre-training (Eq. 4 of arXiv:2111.09883).
    """
    largest = float(np.max(coordinates))
    if window == 1 or largest <= 0:
        return window
    return round(1 + 8 * (window - 1) / (8**largest - 1))

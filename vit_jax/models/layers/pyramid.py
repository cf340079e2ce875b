# SPDX-License-Identifier: Apache-2.0
"""Sizes of the maps and windows of a hierarchical Transformer, and which images fit."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from vit_jax.errors import UserError
from vit_jax.models.layers.windows import Pair


@dataclasses.dataclass(frozen=True)
class Axis:
    """Sides of patches, maps and windows along one axis of the image.

    Attributes:
      resolution: Side of the images that the windows are fitted to.
      patch: Side of a patch.
      window: Side of a window.
      stages: Number of stages.
      tiled: Whether maps are tiled with windows and so must be multiples of them.
    """

    resolution: int
    patch: int
    window: int
    stages: int
    tiled: bool = True

    @property
    def windows(self) -> list[int]:
        """Side of the windows of each stage."""
        return self.fit(self.resolution)

    def fit(self, side: int) -> list[int]:
        """Returns the windows for images of `side`: no larger than the map."""
        return [min(self.window, ceil_divide(side, unit)) for unit in self._units()]

    def divides(self, side: int, windows: Sequence[int]) -> bool:
        """Says whether a side divides into patches, merged patches and windows."""
        units = self._units()
        if self.tiled:
            units = [unit * window for unit, window in zip(units, windows, strict=True)]
        return side > 0 and all(side % unit == 0 for unit in units)

    def check(self, name: str, side: int) -> None:
        """Checks that the resolution and the side of an image need no padding.

        Raises:
          UserError: One does not divide, with the nearest that do.
        """
        if not self.divides(self.resolution, self.windows):
            sides = self._nearest(self.resolution, self.fit)
            raise UserError(
                f"resolution {self.resolution} ({name}) does not divide into "
                f"{self._parts()}; use {sides}{self._other_window()}, or pad=True"
            )
        if not self.divides(side, self.windows):
            sides = self._nearest(side, lambda _: self.windows)
            raise UserError(
                f"an image of {name} {side} does not divide into {self._parts()} of a "
                f"model for resolution {self.resolution}; resize it to {sides}, or "
                "give the model its resolution and a window_size for it, or pad=True"
            )

    def _units(self) -> list[int]:
        """Returns the pixels of a token of each stage."""
        return [self.patch * 2**stage for stage in range(self.stages)]

    def _parts(self) -> str:
        parts = f"patches of {self.patch}, merged {self.stages - 1} times"
        windows = ", ".join(map(str, self.windows))
        return f"{parts}, and windows of {windows}" if self.tiled else parts

    def _nearest(self, side: int, windows_of: Callable[[int], list[int]]) -> str:
        """Names the nearest sides that divide, below and above."""
        last = self._units()[-1]
        start = side // last * last
        below, above = range(start, 0, -last), itertools.count(start + last, last)
        near = [
            next((s for s in sides if self.divides(s, windows_of(s))), None)
            for sides in (below, above)
        ]
        return " or ".join(str(s) for s in near if s is not None)

    def _other_window(self) -> str:
        """Names the nearest window that the resolution divides into, if any."""
        for window in sorted(range(2, 33), key=lambda w: abs(w - self.window)):
            other = dataclasses.replace(self, window=window)
            if other.divides(self.resolution, other.windows):
                return f", or window_size={window}"
        return ""


@dataclasses.dataclass(frozen=True)
class Pyramid:
    """Sizes of a model's maps and windows; each stage halves the map.

    The windows of a stage are those of `resolution`, and no larger than its map there.
    Images of another size get the same windows: with others the model would be another
    function, and weights that have no table would follow in silence.

    Attributes:
      resolution: Height and width of the images that the windows are fitted to.
      patch: Height and width of a patch.
      window: Rows and columns of a window.
      stages: Number of stages.
      tiled: Whether maps are tiled with windows and so must be multiples of them.
    """

    resolution: Pair
    patch: Pair
    window: Pair
    stages: int
    tiled: bool = True

    @property
    def axes(self) -> list[Axis]:
        """The vertical and the horizontal axis."""
        sides = zip(self.resolution, self.patch, self.window, strict=True)
        return [Axis(*side, self.stages, self.tiled) for side in sides]

    @property
    def grid(self) -> Pair:
        """Rows and columns of the patches of an image of `resolution`."""
        rows, columns = map(ceil_divide, self.resolution, self.patch)
        return rows, columns

    @property
    def windows(self) -> list[Pair]:
        """Rows and columns of the windows of each stage."""
        rows, columns = (axis.windows for axis in self.axes)
        return list(zip(rows, columns, strict=True))

    def check(self, size: Pair) -> None:
        """Checks that neither an image of `size` nor `resolution` needs padding.

        Raises:
          UserError: A side does not divide into patches, merged patches and windows.
        """
        for axis, name, side in zip(self.axes, ("height", "width"), size, strict=True):
            axis.check(name, side)


def check_heads(width: int, depths: Sequence[int], num_heads: Sequence[int]) -> None:
    """Checks that there are heads for each stage, and that they divide its width.

    Args:
      width: Of the first stage.
      depths: Of each stage.
      num_heads: Of each stage.

    Raises:
      UserError: They do not.
    """
    if len(depths) != len(num_heads):
        raise UserError(
            f"depths has {len(depths)} stages, but num_heads has {len(num_heads)}; "
            "give one number for each stage to both"
        )
    for stage, heads in enumerate(num_heads):
        if (stage_width := width * 2**stage) % heads:
            raise UserError(
                f"the width of stage {stage}, {stage_width}, is no multiple of its "
                f"num_heads, {heads}; change num_heads, or width, which doubles from "
                "stage to stage"
            )


def ceil_divide(side: int, unit: int) -> int:
    """Returns how many units cover a side."""
    return -(-side // unit)

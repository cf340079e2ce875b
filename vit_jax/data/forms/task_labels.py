# SPDX-License-Identifier: Apache-2.0
"""Labels that no feature holds: `tfds:NAME@task=TASK` makes them of other features.

These are the tasks of VTAB (arXiv:1910.04867) whose label is a function of annotations,
as google-research/task_adaptation (data/clevr.py, data/dsprites.py, data/kitti.py)
defines them. TensorFlow Datasets stores a sequence of objects as one flat list a
feature, so that three coordinates an object are every third number.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vit_jax.data.shards.tfrecords import Example
from vit_jax.errors import UserError

CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
"""Ends of the bins of distances from the camera."""
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
"""The same in metres; the last bin is open and means that there is no vehicle."""
NO_VEHICLE = 1000.0
_VEHICLES = 3  # the types below are Car, Van and Truck

Numbers = Sequence[int] | Sequence[float]


def clevr_count(sizes: Numbers) -> int:
    """Returns the number of objects, from 3 on.

    Raises:
      ValueError: Not 3 to 10 objects.
    """
    if not 3 <= len(sizes) <= 10:
        raise ValueError(f"{len(sizes)} objects, not 3 to 10")
    return len(sizes) - 3


def clevr_dist(coordinates: Numbers) -> int:
    """Returns the bin of the distance of the nearest object.

    Args:
      coordinates: Column, row and distance of each object.

    Raises:
      ValueError: No object, or one outside all bins.
    """
    if not coordinates:
        raise ValueError("no object, so no nearest one")
    return _bin(min(coordinates[2::3]), CLEVR_DISTANCES[:-1], CLEVR_DISTANCES[-1])


def kitti_dist(types: Numbers, locations: Numbers) -> int:
    """Returns the bin of the distance of the nearest vehicle.

    Args:
      types: The type of each object.
      locations: x, y and z of each object, in metres.

    Raises:
      ValueError: Another number of locations than of types, or a place behind the
        camera that is outside all bins.
    """
    if 3 * len(types) != len(locations):
        raise ValueError(f"{len(types)} types and {len(locations)} coordinates")
    ahead = [
        z for kind, z in zip(types, locations[2::3], strict=True) if kind < _VEHICLES
    ]
    return _bin(min([*ahead, NO_VEHICLE]), KITTI_DISTANCES, math.inf)


def dspr_loc(position: Numbers) -> int:
    """Returns the half of the index (0...31) of the horizontal position.

    Raises:
      ValueError: Not one index.
    """
    return _index(position, 32) // 2


def dspr_ori(orientation: Numbers) -> int:
    """Returns the index (0...39) of the orientation over 2.5, cut off.

    Raises:
      ValueError: Not one index.
    """
    return math.floor(_index(orientation, 40) / 2.5)


def _bin(value: float, starts: Sequence[float], end: float) -> int:
    """Returns the last place whose start lies strictly below a value."""
    place = bisect.bisect_left(starts, value) - 1
    if place < 0 or value > end:
        raise ValueError(f"a distance of {value:g}, which is in no class")
    return place


def _index(values: Numbers, count: int) -> int:
    if len(values) != 1 or values[0] not in range(count):
        raise ValueError(f"{list(values)} where an index below {count} should be")
    return int(values[0])


class TaskLabel(NamedTuple):
    """How a task makes its label; can be sent to another process.

    Attributes:
      features: Names of the features, as they are stored.
      function: Makes a class id of the numbers in each of them.
      class_names: A name for each class id.
    """

    features: tuple[str, ...]
    function: Callable[..., int]
    class_names: tuple[str, ...]

    def __call__(self, example: Example) -> int:
        """Returns the class id of an example.

        Raises:
          UserError: Features that are not there or hold no numbers, or numbers that
            the task has no class for.
        """
        values = [example.numbers(feature) for feature in self.features]
        try:
            return self.function(*values)
        except ValueError as err:
            raise UserError(
                f"{example.name} has {err}; take a split that has annotations, or "
                "prepare the data set again"
            ) from err


def _names(prefix: str, groups: Sequence[Sequence[int]]) -> tuple[str, ...]:
    return tuple(f"{prefix} {group[0]} to {group[-1]}" for group in groups)


TASKS = {
    "clevr_count": TaskLabel(
        ("objects/size",),
        clevr_count,
        tuple(f"{count} objects" for count in range(3, 11)),
    ),
    "clevr_dist": TaskLabel(
        ("objects/pixel_coords",),
        clevr_dist,
        ("up to 8", "8 to 8.5", "8.5 to 9", "9 to 9.5", "9.5 to 10", "over 10"),
    ),
    "kitti_dist": TaskLabel(
        ("objects/type", "objects/location"),
        kitti_dist,
        ("up to 8 m", "8 to 20 m", "over 20 m", "no vehicle"),
    ),
    "dspr_loc": TaskLabel(
        ("label_x_position",),
        dspr_loc,
        _names("position", [(2 * k, 2 * k + 1) for k in range(16)]),
    ),
    "dspr_ori": TaskLabel(
        ("label_orientation",),
        dspr_ori,
        _names(
            "orientation",
            [[k for k in range(40) if dspr_ori([k]) == c] for c in range(16)],
        ),
    ),
}

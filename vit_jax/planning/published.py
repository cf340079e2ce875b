# SPDX-License-Identifier: Apache-2.0
"""Sizes of data sets that need not be here, and costs that the ViT paper reports."""

from collections.abc import Mapping
from typing import NamedTuple

from vit_jax.data.splits import split_ranges

SPLITS: Mapping[str, Mapping[str, int]] = {
    "imagenet2012": {"train": 1_281_167, "validation": 50_000},
    # All of it, of which big_vision sets 51,200 images aside.
    "imagenet21k": {"full": 14_197_122, "train": 14_197_122},
    # Section 4.1 of arXiv:2010.11929 says 303 million.
    "jft300m": {"train": 303_000_000},
    "cifar10": {"train": 50_000, "test": 10_000},
    "cifar100": {"train": 50_000, "test": 10_000},
    "oxford_iiit_pet": {"train": 3_680, "test": 3_669},
    "oxford_flowers102": {"train": 1_020, "validation": 1_020, "test": 6_149},
}
CLASSES: Mapping[str, int] = {
    "imagenet2012": 1000,
    "imagenet21k": 21_843,
    "jft300m": 18_291,
    "cifar10": 10,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "oxford_flowers102": 102,
}


class CoreDays(NamedTuple):
    """What a pre-training cost: Table 2 of arXiv:2010.11929, TPUv3 cores times days.

    Attributes:
      model: Name in the catalogue.
      dataset: Name at TensorFlow Datasets.
      days: Cores times days.
    """

    model: str
    dataset: str
    days: float


CORE_DAYS = (
    CoreDays("ViT-H/14", "jft300m", 2500),
    CoreDays("ViT-L/16", "jft300m", 680),
    CoreDays("ViT-L/16", "imagenet21k", 230),
)


def dataset_name(dataset: str | None) -> str:
    """Returns the name in `tfds:NAME:VERSION@...`, or an empty text."""
    form, _, rest = (dataset or "").partition(":")
    return rest.partition("@")[0].partition(":")[0] if form == "tfds" else ""


def count_examples(dataset: str | None, split: str | None) -> int | None:
    """Returns how many examples a split of a known data set has.

    Raises:
      UserError: A split that the data set does not have.
    """
    sizes = SPLITS.get(dataset_name(dataset))
    if sizes is None or split is None:
        return None
    return sum(stop - start for _, start, stop in split_ranges(split, sizes))


def paper_core_days(model: str, dataset: str | None) -> float | None:
    """Returns what the paper reports for a model and its pre-training data."""
    name = dataset_name(dataset)
    return next((c.days for c in CORE_DAYS if c[:2] == (model, name)), None)

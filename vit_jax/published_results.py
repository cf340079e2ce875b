# SPDX-License-Identifier: Apache-2.0
"""What the ViT paper (arXiv:2010.11929) reports after fine-tuning, and on which data.

Tables 2, 5, 6 and 9, in per cent; quoted, not measured with this package (its ablations
are in `run_tables/ablations.py`). What Table 2 quotes from other papers is left out.
Each number keeps its table, as the tables differ in rows that seem to be the same.
`find_benchmark` tells which column a run belongs to.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

IMAGENET, IMAGENET21K, JFT = "ImageNet", "ImageNet-21k", "JFT-300M"

NATURAL = ("caltech101", "cifar100", "dtd", "flowers", "pets", "sun397", "svhn")
SPECIALISED = ("camelyon", "eurosat", "resisc45", "retinopathy")
STRUCTURED = (
    *("clevr_count", "clevr_dist", "dmlab", "dspr_loc", "dspr_ori", "kitti_dist"),
    *("snorb_azim", "snorb_elev"),
)
VTAB_GROUPS = {
    "natural": NATURAL,
    "specialised": SPECIALISED,
    "structured": STRUCTURED,
}
VTAB_TASKS = (*NATURAL, *SPECIALISED, *STRUCTURED)
VTAB = "VTAB"
"""Stands for the mean of the 19 tasks; they are called vtab/TASK."""
FEWSHOT = "ImageNet, 5-shot"
"""Features of a pre-trained model, see `find_fewshot`."""
FIGURE = math.nan
"""Stands for a number that a figure alone shows."""


class Benchmark(NamedTuple):
    """What a column of the tables is trained and evaluated on.

    Attributes:
      train: Data set and split of the training, without a version.
      test: The same of the evaluation.
    """

    train: tuple[str, str]
    test: tuple[str, str]


class Published(NamedTuple):
    """A row of a table.

    Attributes:
      table: Number of the table, or the name of what else shows the result.
      model: Name in the catalogue.
      pretraining: The data set of the pre-training, "none" for models trained on the
        benchmark alone.
      epochs: Passes over it (of "none", over the benchmark's), where the table tells.
      values: Accuracy in per cent by the name of the benchmark, or `FIGURE`.
      resolutions: Side of the images where it is not 384 pixels.
      averaged: The benchmarks that were evaluated with averaged weights.
      changes: Fields of the model that are not those of the catalogue.
      varies: Fields that may have any value.
      optimizer: Of the pre-training: "adam" or "sgd".
    """

    table: int | str
    model: str
    pretraining: str
    epochs: int | None
    values: Mapping[str, float]
    resolutions: Mapping[str, int] = {}
    averaged: tuple[str, ...] = ()
    changes: Mapping[str, Any] = {}
    varies: tuple[str, ...] = ()
    optimizer: str = "adam"

    @property
    def title(self) -> str:
        """What shows the result, and after how many epochs."""
        table = f"Table {self.table}" if isinstance(self.table, int) else self.table
        return table if self.epochs is None else f"{table}, {self.epochs} epochs"

    def resolution(self, benchmark: str) -> int:
        """Returns the side of the images in fine-tuning."""
        return self.resolutions.get(benchmark, 384)


def vtab_name(task: str) -> str:
    """Returns the name of the benchmark of a task of VTAB."""
    return f"vtab/{task}"


def _same(dataset: str, train: str, test: str) -> Benchmark:
    return Benchmark((dataset, train), (dataset, test))


def _vtab(dataset: str, val200: str, test: str) -> Benchmark:
    return _same(dataset, f"train[:800]+{val200}", test)


BENCHMARKS: Mapping[str, Benchmark] = {
    "ImageNet": _same("imagenet2012", "train", "validation"),
    "ReaL": Benchmark(
        ("imagenet2012", "train"), ("imagenet2012_real@label=real_label", "validation")
    ),
    "CIFAR-10": _same("cifar10", "train", "test"),
    "CIFAR-100": _same("cifar100", "train", "test"),
    "Pets": _same("oxford_iiit_pet", "train", "test"),
    "Flowers": _same("oxford_flowers102", "train+validation", "test"),
    "vtab/caltech101": _vtab("caltech101", "train[2754:2954]", "test"),
    "vtab/cifar100": _vtab("cifar100", "train[45000:45200]", "test"),
    "vtab/dtd": _vtab("dtd", "validation[:200]", "test"),
    "vtab/flowers": _vtab("oxford_flowers102", "validation[:200]", "test"),
    "vtab/pets": _vtab("oxford_iiit_pet", "train[2944:3144]", "test"),
    "vtab/sun397": _vtab("sun397/tfds", "validation[:200]", "test"),
    "vtab/svhn": _vtab("svhn_cropped", "train[65931:66131]", "test"),
    "vtab/camelyon": _vtab("patch_camelyon", "validation[:200]", "test"),
    "vtab/eurosat": _vtab("eurosat/rgb", "train[16200:16400]", "train[21600:]"),
    "vtab/resisc45": _vtab("resisc45", "train[18900:19100]", "train[25200:]"),
    "vtab/retinopathy": _vtab(
        "diabetic_retinopathy_detection/btgraham-300", "validation[:200]", "test"
    ),
    "vtab/clevr_count": _vtab(
        "clevr@task=clevr_count", "train[63000:63200]", "validation"
    ),
    "vtab/clevr_dist": _vtab(
        "clevr@task=clevr_dist", "train[63000:63200]", "validation"
    ),
    "vtab/dmlab": _vtab("dmlab", "validation[:200]", "test"),
    "vtab/dspr_loc": _vtab(
        "dsprites@task=dspr_loc", "train[589824:590024]", "train[663552:]"
    ),
    "vtab/dspr_ori": _vtab(
        "dsprites@task=dspr_ori", "train[589824:590024]", "train[663552:]"
    ),
    "vtab/kitti_dist": _vtab("kitti@task=kitti_dist", "validation[:200]", "test"),
    "vtab/snorb_azim": _vtab(
        "smallnorb@label=label_azimuth", "test[:200]", "test[50%:]"
    ),
    "vtab/snorb_elev": _vtab(
        "smallnorb@label=label_elevation", "test[:200]", "test[50%:]"
    ),
}

_TRANSFER = ("ImageNet", "ReaL", "CIFAR-10", "CIFAR-100", "Pets", "Flowers")


def _table_2(model: str, pretraining: str, size: int, values: str) -> Published:
    # Only ImageNet was trained with larger images and averaged, and so ReaL as well,
    # which evaluates the same weights.
    row = _row(2, model, pretraining, None, (*_TRANSFER, VTAB), values)
    large = ("ImageNet", "ReaL")
    return row._replace(resolutions=dict.fromkeys(large, size), averaged=large)


def _row(
    table: int,
    model: str,
    pretraining: str,
    epochs: int | None,
    benchmarks: tuple[str, ...],
    values: str,
) -> Published:
    numbers = map(float, values.split())
    return Published(
        table, model, pretraining, epochs, dict(zip(benchmarks, numbers, strict=True))
    )


def _table_5() -> tuple[Published, ...]:
    models = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14")
    order = ("CIFAR-10", "CIFAR-100", "ImageNet", "ReaL", "Flowers", "Pets")
    blocks = {
        IMAGENET: """
            98.13 97.77 97.86 97.94
            87.13 86.31 86.35 87.07
            77.91 73.38 76.53 71.16
            83.57 79.56 82.19 77.83
            89.49 85.43 89.66 86.36
            93.81 92.04 93.64 91.35""",
        IMAGENET21K: """
            98.95 98.79 99.16 99.13 99.27
            91.67 91.97 93.44 93.04 93.82
            83.97 81.28 85.15 80.99 85.13
            88.35 86.63 88.40 85.65 88.70
            99.38 99.11 99.61 99.19 99.51
            94.43 93.02 94.73 93.09 94.82""",
        JFT: """
            99.00 98.61 99.38 99.19 99.50
            91.87 90.49 94.04 92.52 94.55
            84.15 80.73 87.12 84.37 88.04
            88.85 86.27 89.99 88.28 90.33
            99.56 99.27 99.56 99.45 99.68
            95.80 93.40 97.11 95.83 97.56""",
    }
    rows = []
    for pretraining, text in blocks.items():
        columns = zip(*(line.split() for line in text.split("\n")[1:]), strict=True)
        for model, column in zip(models, columns, strict=False):  # no H/14 of ImageNet
            values = " ".join(column)
            rows.append(_row(5, model, pretraining, None, order, values))
    return tuple(rows)


def _table_6() -> tuple[Published, ...]:
    order = ("ImageNet", "ReaL", "CIFAR-10", "CIFAR-100", "Pets", "Flowers")
    text = """
        ViT-B/32      7 80.73 86.27 98.61 90.49 93.40 99.27
        ViT-B/16      7 84.15 88.85 99.00 91.87 95.80 99.56
        ViT-L/32      7 84.37 88.28 99.19 92.52 95.83 99.45
        ViT-L/16      7 86.30 89.43 99.38 93.46 96.81 99.66
        ViT-L/16     14 87.12 89.99 99.38 94.04 97.11 99.56
        ViT-H/14     14 88.08 90.36 99.50 94.71 97.11 99.71
        BiT-R50x1     7 77.54 84.56 97.67 86.07 91.11 94.26
        BiT-R50x2     7 82.12 87.94 98.29 89.20 93.43 97.02
        BiT-R101x1    7 80.67 87.07 98.48 89.17 94.08 95.95
        BiT-R152x1    7 81.88 87.96 98.82 90.22 94.17 96.94
        BiT-R152x2    7 84.97 89.69 99.06 92.05 95.37 98.62
        BiT-R152x2   14 85.56 89.89 99.24 91.92 95.75 98.75
        BiT-R200x3   14 87.22 90.15 99.34 93.53 96.32 99.04
        R50+ViT-B/32  7 84.90 89.15 99.01 92.24 95.75 99.46
        R50+ViT-B/16  7 85.58 89.65 99.14 92.63 96.65 99.40
        R50+ViT-L/32  7 85.68 89.04 99.24 92.93 96.97 99.43
        R50+ViT-L/16  7 86.60 89.72 99.18 93.64 97.03 99.40
        R50+ViT-L/16 14 87.12 89.76 99.31 93.89 97.36 99.11"""
    rows = []
    for line in text.split("\n")[1:]:
        model, epochs, values = line.split(maxsplit=2)
        rows.append(_row(6, model, JFT, int(epochs), order, values))
    return tuple(rows)


def _table_9(model: str, pretraining: str, values: str) -> Published:
    tasks = tuple(map(vtab_name, VTAB_TASKS))
    return _row(9, model, pretraining, None, tasks, values)


TABLE_9 = (
    _table_9(
        "ViT-H/14",
        JFT,
        "95.3 85.5 75.2 99.7 97.2 65.0 88.9 83.3 96.7 91.4 76.6 "
        "91.7 63.8 53.1 79.4 63.3 84.5 33.2 51.2",
    ),
    _table_9(
        "ViT-L/16",
        JFT,
        "95.4 81.9 74.3 99.7 96.7 63.5 87.4 83.6 96.5 89.7 77.1 "
        "86.4 63.1 49.7 74.5 60.5 82.2 36.2 51.1",
    ),
    _table_9(
        "ViT-L/16",
        IMAGENET21K,
        "90.8 84.1 74.1 99.3 92.7 61.0 80.9 82.5 95.6 85.2 75.3 "
        "70.3 56.1 41.9 74.7 64.9 79.9 30.5 41.7",
    ),
)

PUBLISHED: tuple[Published, ...] = (
    _table_2("ViT-H/14", JFT, 518, "88.55 90.72 99.50 94.55 97.56 99.68 77.63"),
    _table_2("ViT-L/16", JFT, 512, "87.76 90.54 99.42 93.90 97.32 99.74 76.28"),
    _table_2("ViT-L/16", IMAGENET21K, 512, "85.30 88.62 99.15 93.25 94.67 99.61 72.72"),
    *_table_5(),
    *_table_6(),
    *TABLE_9,
)

_TFDS = re.compile(r"tfds:(?P<name>[^:@]+)(?::[^@]+)?(?P<options>@.*)?")


def find_benchmark(train: tuple[str, str], test: tuple[str, str]) -> str | None:
    """Returns the benchmark of a run, None where it is none of the paper's.

    Args:
      train: DATASET and split of the training.
      test: The same of the evaluation.
    """
    asked = Benchmark(_without_version(train), _without_version(test))
    return next((name for name, each in BENCHMARKS.items() if each == asked), None)


def find_fewshot(dataset: str, split: str, shots: int) -> str | None:
    """Returns `FEWSHOT` if an evaluation of features is that, None if not.

    Args:
      dataset: DATASET that examples and tests are from.
      split: What is tested on.
      shots: Examples a class.
    """
    asked = (*_without_version((dataset, split)), shots)
    return FEWSHOT if asked == ("imagenet2012", "validation", 5) else None


def _without_version(data: tuple[str, str]) -> tuple[str, str]:
    match = _TFDS.fullmatch(data[0])
    if match is None:
        return data
    return match["name"] + (match["options"] or ""), data[1]

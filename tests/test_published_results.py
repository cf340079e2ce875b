# SPDX-License-Identifier: Apache-2.0
"""The paper's numbers, checked against sums that the tables themselves allow."""

import pathlib
import statistics

import pytest

from vit_jax import config as config_lib
from vit_jax.models import catalog
from vit_jax.models.published import ACCURACIES
from vit_jax.published_results import (
    BENCHMARKS,
    IMAGENET,
    IMAGENET21K,
    JFT,
    PUBLISHED,
    TABLE_9,
    VTAB,
    VTAB_GROUPS,
    VTAB_TASKS,
    find_benchmark,
    vtab_name,
)

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"


def rows(table: int) -> list:
    return [row for row in PUBLISHED if row.table == table]


def test_the_tables_have_the_papers_rows():
    # Table 5: five models from three data sets, H/14 not from ImageNet. Table 6: 7
    # ResNets, 6 ViTs, 5 hybrids.
    counts = [
        (table, len(rows(table)), sum(len(row.values) for row in rows(table)))
        for table in (2, 5, 6, 9)
    ]
    assert counts == [
        (2, 3, 3 * 7),
        (5, 14, 14 * 6),
        (6, 18, 18 * 6),
        (9, 3, 3 * 19),
    ]
    for row in PUBLISHED:
        assert catalog.find(row.model).name == row.model
        assert {*row.values} <= {*BENCHMARKS, VTAB}
        assert all(30 < value < 100 for value in row.values.values())


def test_table_9_has_the_means_of_table_2():
    means = {
        (r.model, r.pretraining): statistics.mean(r.values.values()) for r in TABLE_9
    }
    for row in rows(2):
        # The tasks are rounded to 0.1 and so is their mean, to 0.01.
        assert means[row.model, row.pretraining] == pytest.approx(
            row.values[VTAB], abs=0.02
        )
    groups = [
        [
            statistics.mean(row.values[vtab_name(task)] for task in tasks)
            for tasks in VTAB_GROUPS.values()
        ]
        for row in TABLE_9
    ]
    assert [[round(mean, 2) for mean in each] for each in groups] == [
        [86.69, 87.00, 65.03],
        [85.56, 86.72, 62.96],
        [83.27, 84.65, 57.50],
    ]


def test_tables_5_and_6_agree_where_the_paper_says_so():
    by_key = {(r.model, r.epochs): r.values for r in rows(6)}
    epochs = {"ViT-B/16": 7, "ViT-B/32": 7, "ViT-L/32": 7, "ViT-L/16": 14}
    five = {row.model: row.values for row in rows(5) if row.pretraining == JFT}
    for model, count in epochs.items():
        assert five[model] == by_key[model, count]
    differing = {
        name: (value, by_key["ViT-H/14", 14][name])
        for name, value in five["ViT-H/14"].items()
        if name in ("ImageNet", "CIFAR-100", "Pets")
    }
    assert differing == {
        "ImageNet": (88.04, 88.08),
        "CIFAR-100": (94.55, 94.71),
        "Pets": (97.56, 97.11),
    }


def test_table_7_repeats_table_6():
    # Its columns of Adam, with their averages over ImageNet, CIFAR, Pets and Flowers.
    for model, average in (("BiT-R50x1", 89.33), ("BiT-R152x2", 94.01)):
        (row,) = [r for r in rows(6) if (r.model, r.epochs) == (model, 7)]
        values = [value for name, value in row.values.items() if name != "ReaL"]
        assert statistics.mean(values) == pytest.approx(average, abs=0.005)


def test_the_zoo_quotes_the_same_numbers():
    imagenet21k = {
        row.model: row.values["ImageNet"]
        for row in rows(5)
        if row.pretraining == IMAGENET21K
    }
    assert imagenet21k == {name: ACCURACIES[name].top1 for name in imagenet21k}


def test_only_table_2_has_large_images_and_averaged_weights():
    sizes = {
        (row.model, row.pretraining): row.resolution("ImageNet") for row in rows(2)
    }
    assert sizes == {
        ("ViT-H/14", JFT): 518,
        ("ViT-L/16", JFT): 512,
        ("ViT-L/16", IMAGENET21K): 512,
    }
    assert all(row.resolution("CIFAR-10") == 384 for row in PUBLISHED)
    assert {row.table for row in PUBLISHED if row.averaged} == {2}
    assert {row.pretraining for row in rows(5)} == {IMAGENET, IMAGENET21K, JFT}


FINETUNE = {
    "imagenet": "ImageNet",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "pets": "Pets",
    "flowers": "Flowers",
}


@pytest.mark.parametrize(
    ("spec", "benchmark"),
    [
        *((f"finetune.py:dataset={key}", name) for key, name in FINETUNE.items()),
        *((f"vtab.py:task={task}", f"vtab/{task}") for task in VTAB_TASKS),
        ("vtab.py:task=pets,dev", None),
        ("finetune.py:dataset=folder:/data/pets", None),
        ("finetune.py:dataset=cifar10,smoke", None),
    ],
)
def test_the_recipes_are_the_benchmarks(spec: str, benchmark: str | None):
    config = config_lib.load(f"{CONFIGS}/{spec}")
    val = config.evaluators.val
    found = find_benchmark(
        (config.data.dataset, config.data.split), (val.dataset, val.split)
    )
    assert found == benchmark


def test_real_is_evaluated_beside_imagenet():
    real = ("tfds:imagenet2012_real:1.0.0@label=real_label", "validation")
    train = ("tfds:imagenet2012:5.1.0", "train")
    assert find_benchmark(train, real) == "ReaL"
    # Nor is a part of the training data the benchmark, nor is it a test split.
    assert find_benchmark((train[0], "train[:99%]"), real) is None
    assert find_benchmark(train, (train[0], "train[99%:]")) is None

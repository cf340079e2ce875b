# SPDX-License-Identifier: Apache-2.0
"""The section `data` of a config: one data set or a mixture, skipping or not."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encode, photo
from vit_jax import sharding
from vit_jax.data.feed import open_train
from vit_jax.errors import UserError

PART = {"dataset": "synthetic:3@size=4;train=20", "split": "train"}


def feed(**section):
    fields = {"batch_size": 8, "ops": "decode", "seed": 0, "num_classes": 3, **section}
    return open_train(mesh=sharding.make_mesh(), **fields)


def first_labels(train) -> list[int]:
    with contextlib.closing(train.batches(0)) as batches:
        return np.asarray(next(batches)["label"]).tolist()


def test_a_mixture_takes_the_place_of_a_data_set():
    other = {**PART, "dataset": "synthetic:3@size=4;train=7;seed=1", "weight": 1}
    train = feed(mixture={"a": {**PART, "weight": 3}, "b": other})
    assert len(train.source) == 27
    assert len(first_labels(train)) == 8
    assert train.source.mixture.slots == (3, 1)
    alone = feed(mixture={"a": {**PART, "weight": 5}})
    assert first_labels(alone) == first_labels(feed(**PART))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, r"config\.data\.dataset is missing"),
        ({"dataset": "synthetic:3"}, r"config\.data\.split is missing; set it"),
        ({"split": "train", "mixture": {}}, r"a mixture and split='train'; set one"),
        ({"mixture": {}}, r"config\.data\.mixture has no part"),
    ],
)
def test_a_section_names_one_or_the_other(section, words):
    with pytest.raises(UserError, match=words):
        feed(**section)


def test_skipping_begins_with_the_first_image(tmp_path: Path):
    (tmp_path / "c").mkdir()
    for number in range(9):
        data = encode(photo(4, 4), "PNG") if number else b"<html>"
        (tmp_path / "c" / f"{number}.png").write_bytes(data)
    section = {"dataset": f"folder:{tmp_path}", "split": "train", "num_classes": 1}
    with pytest.raises(UserError, match=r"/c/0\.png: not a picture"):
        feed(**section)
    train = feed(**section, skip_errors=True)
    assert train.image_shape() == (4, 4, 3)
    with contextlib.closing(train.batches(0)) as batches:
        for _ in range(3):
            next(batches)
    assert list(train.source.broken) == [0]

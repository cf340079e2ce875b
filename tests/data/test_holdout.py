# SPDX-License-Identifier: Apache-2.0
"""A validation split that is made of training images, class by class."""

import pathlib

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.sources import open_source
from vit_jax.errors import UserError


def write(folder: pathlib.Path, counts: dict[str, int]) -> None:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (4, 4)).save(folder / name / f"{i:03}.png")


def names(dataset: str, split: str) -> list[str]:
    source = open_source(dataset, split)
    return ["/".join(n.split("/")[-2:]) for n in source.names(np.arange(len(source)))]


def counts(dataset: str, split: str) -> list[int]:
    return np.bincount(open_source(dataset, split).labels, minlength=3).tolist()


def test_a_share_of_each_class_is_held_out(tmp_path: pathlib.Path):
    write(tmp_path, {"ant": 20, "bee": 3, "cow": 1})
    dataset = f"folder:{tmp_path}@holdout=10%"
    # Rounded, but one at least of a class with two images, and never the only one.
    assert counts(dataset, "validation") == [2, 1, 0]
    assert counts(dataset, "train") == [18, 2, 1]
    held, kept = names(dataset, "validation"), names(dataset, "train")
    assert sorted(held + kept) == sorted(names(f"folder:{tmp_path}", "train"))
    # Other names of the split, and slices of it, mean the same images.
    assert names(dataset, "val") == held
    assert names(dataset, "train[:5]") == kept[:5]


def test_the_labels_go_with_the_images(tmp_path: pathlib.Path):
    write(tmp_path, {"ant": 6, "bee": 6})
    for split in ("train", "validation"):
        source = open_source(f"folder:{tmp_path}@holdout=34%", split)
        for name, label in zip(
            source.names(np.arange(len(source))), source.labels, strict=True
        ):
            assert source.class_names[label] == pathlib.Path(name).parent.name


def test_the_split_is_the_same_elsewhere_and_when_images_are_added(
    tmp_path: pathlib.Path,
):
    write(tmp_path / "here", {"ant": 30, "bee": 30})
    write(tmp_path / "there", {"ant": 30, "bee": 40})
    here = names(f"folder:{tmp_path / 'here'}@holdout=20%", "validation")
    there = names(f"folder:{tmp_path / 'there'}@holdout=20%", "validation")
    assert [n for n in here if n.startswith("ant")] == [
        n for n in there if n.startswith("ant")
    ]
    bees = [n for n in here if n.startswith("bee")]
    assert len(set(bees) & set(there)) >= len(bees) - 2


def test_a_validation_split_that_is_there_is_used(tmp_path: pathlib.Path):
    write(tmp_path / "train", {"ant": 10})
    write(tmp_path / "val", {"ant": 2})
    dataset = f"folder:{tmp_path}@holdout=50%"
    assert len(open_source(dataset, "train")) == 10
    assert len(open_source(dataset, "validation")) == 2


def test_a_test_split_is_left_alone(tmp_path: pathlib.Path):
    write(tmp_path / "train", {"ant": 10})
    write(tmp_path / "test", {"ant": 4})
    dataset = f"folder:{tmp_path}@holdout=50%"
    assert len(open_source(dataset, "train")) == 5
    assert all("test/" in n for n in open_source(dataset, "test").names(np.arange(4)))


def test_targets_are_held_out_without_classes(tmp_path: pathlib.Path):
    lines = ["image,target"]
    for i in range(10):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{i}.png")
        lines.append(f"{i}.png,{i}.5")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    dataset = f"csv:{tmp_path / 'list.csv'}@holdout=20%"
    held = open_source(dataset, "validation")
    assert len(held) == 2
    for name, target in zip(held.names(np.arange(2)), held.labels, strict=True):
        assert target == int(pathlib.Path(name.split(":")[0]).stem) + 0.5


@pytest.mark.parametrize("share", ["10", "0%", "100%", "ten%"])
def test_a_share_that_is_none_is_refused(tmp_path: pathlib.Path, share: str):
    write(tmp_path, {"ant": 3})
    with pytest.raises(UserError, match=f"holdout={share} is no share"):
        open_source(f"folder:{tmp_path}@holdout={share}", "train")


def test_without_a_training_split_there_is_nothing_to_hold_out(tmp_path: pathlib.Path):
    Image.new("RGB", (4, 4)).save(tmp_path / "0.png")
    (tmp_path / "list.csv").write_text("image,target,split\n0.png,1.5,test\n")
    with pytest.raises(UserError, match="takes images from the split 'train'"):
        open_source(f"csv:{tmp_path / 'list.csv'}@holdout=10%", "test")

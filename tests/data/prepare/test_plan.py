# SPDX-License-Identifier: Apache-2.0
"""Keys, order, subsets and chunks."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.labels import MultiHot
from vit_jax.data.prepare.plan import (
    Chunk,
    choose_rows,
    example_keys,
    hash_order,
    make_chunk,
)
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

KEYS = [f"{number}" for number in range(2000)]


def add_image(path: Path, side: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (side, side)).save(path, format="PNG")


def test_the_order_depends_on_keys_and_seed_alone():
    first = [KEYS[row] for row in hash_order(KEYS, 0)]
    turned = KEYS[::-1]
    assert [turned[row] for row in hash_order(turned, 0)] == first
    assert sorted(first) == sorted(KEYS)
    assert [KEYS[row] for row in hash_order(KEYS, 1)] != first


def test_the_order_is_as_random_as_a_shuffle():
    """The correlation of 2,000 places has a standard error of 1/sqrt(2000) = 0.022."""
    for other in (np.arange(2000), hash_order(KEYS, 1)):
        assert abs(np.corrcoef(hash_order(KEYS, 0), other)[0, 1]) < 4 * 0.022


def test_subsets_are_nested():
    chosen = {
        take: choose_rows(KEYS, seed=3, removed=set(), take=take).tolist()
        for take in (9, 30, 90, None)
    }
    assert [len(rows) for rows in chosen.values()] == [9, 30, 90, 2000]
    assert chosen[9] == chosen[30][:9]
    assert chosen[30] == chosen[90][:30]
    assert chosen[90] == chosen[None][:90]


def test_removed_examples_leave_the_order_of_the_others():
    every = choose_rows(KEYS, seed=0, removed=set(), take=None).tolist()
    rows = choose_rows(KEYS, seed=0, removed={"7", "1999"}, take=None).tolist()
    assert rows == [row for row in every if row not in (7, 1999)]


def test_removed_ids_must_name_examples():
    with pytest.raises(UserError, match=r"1 of 2 removed ids name no example.*'nine'"):
        choose_rows(KEYS, seed=0, removed={"7", "nine"}, take=None)


@pytest.mark.parametrize("take", [0, -1, 2000])
def test_a_subset_must_be_smaller_than_what_is_left(take):
    with pytest.raises(UserError, match=r"cannot take .* take 1 to 1999"):
        choose_rows(KEYS, seed=0, removed={"7"}, take=take)


def test_keys_do_not_depend_on_where_the_data_lies(tmp_path):
    for place in ("here", "there/and/further"):
        for name in ("a/1.png", "a/1.b.png", "a/x y.png", "b/1.png", "b/1.jpg"):
            add_image(tmp_path / place / name)
        source = open_source(f"folder:{tmp_path / place}", "train")
        # By bytes: "1.b.png" < "1.png"; a dot would end a key; two are b/1.
        assert example_keys(source) == ["a/1_b", "a/1", "a/x_y", "b/1_jpg", "b/1_png"]


def test_two_examples_of_one_key_are_refused(tmp_path):
    for name in ("a/x y.png", "a/x_y.png"):
        add_image(tmp_path / name)
    source = open_source(f"folder:{tmp_path}", "train")
    with pytest.raises(UserError, match="two examples of the key 'a/x_y_png'; rename"):
        example_keys(source)


def test_pixels_cannot_be_prepared():
    source = open_source("synthetic:2@train=4", "train")
    with pytest.raises(UserError, match="does not lie in files of encoded images"):
        example_keys(source)


def restored(chunk: Chunk, path: Path) -> Chunk:
    chunk.save(str(path))
    return Chunk.load(str(path))


@pytest.mark.parametrize("form", ["folder", "stored", "deflated"])
def test_a_chunk_alone_reads_what_the_source_reads(tmp_path, form):
    for number in range(5):
        add_image(tmp_path / "set" / "ab"[number % 2] / f"{number}.png", number + 1)
    dataset = f"folder:{tmp_path}/set"
    if form != "folder":
        method = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}[form]
        with zipfile.ZipFile(tmp_path / "set.zip", "w", method) as archive:
            for file in (tmp_path / "set").rglob("*.png"):
                archive.write(file, file.relative_to(tmp_path / "set"))
        dataset = f"zip:{tmp_path}/set.zip"
    source = open_source(dataset, "train[1:]")
    rows = np.array([3, 0, 2])
    keys = example_keys(source)
    chunk = restored(make_chunk(source, keys, rows), tmp_path / "chunk")
    assert chunk.table.read(np.arange(3)) == source.read(rows)
    assert [chunk.keys[n] for n in range(3)] == ["b/3", "a/2", "b/1"]
    assert isinstance(chunk.labels, np.ndarray)
    assert chunk.labels.tolist() == [1, 0, 1]


def test_a_chunk_keeps_several_labels(tmp_path):
    rows = ["a", "a|b", "", "c|a"]
    for number, text in enumerate(rows):
        add_image(tmp_path / f"{number}.png")
        rows[number] = f"{number}.png,{text}"
    (tmp_path / "list.csv").write_text("\n".join(["image,labels", *rows]))
    source = open_source(f"csv:{tmp_path}/list.csv", "train")
    rows = np.array([3, 2, 1])
    chunk = make_chunk(source, example_keys(source), rows)
    labels = restored(chunk, tmp_path / "chunk").labels
    assert isinstance(labels, MultiHot)
    assert labels[np.arange(3)].tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]

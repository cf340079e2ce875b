# SPDX-License-Identifier: Apache-2.0
"""Folders and zip files: layouts, splits, class ids, order, and what is passed over."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.sources import check_source, count_classes, open_source
from vit_jax.errors import UserError

COLOURS = {"a": "red", "b": "green", "c": "blue", "d": "white"}


def add_image(path: Path, colour: str = "black") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {".jpg": "JPEG", ".gif": "GIF"}.get(path.suffix.lower(), "PNG")
    Image.new("RGB", (3, 2), colour).save(path, format=kind)


@pytest.fixture
def four_classes(tmp_path: Path) -> Path:
    """train has a, b, c, d; val lacks images of b."""
    root = tmp_path / "set"
    for name, colour in COLOURS.items():
        for number in range(4):
            add_image(root / "train" / name / f"{number}.png", colour)
            if name != "b":
                add_image(root / "val" / name / f"{number}.png", colour)
    (root / "val" / "b").mkdir()
    return root


def pack(folder: Path, method: int) -> Path:
    path = folder.with_suffix(f".{method}.zip")
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return path


def dataset(folder: Path, form: str) -> str:
    if form == "folder":
        return f"folder:{folder}"
    method = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}[form]
    return f"zip:{pack(folder, method)}"


FORMS = pytest.mark.parametrize("form", ["folder", "stored", "deflated"])


def relative_names(source, folder: Path) -> list[str]:
    names = source.names(np.arange(len(source)))
    return [name.split(".zip:")[-1].removeprefix(f"{folder}/") for name in names]


@FORMS
def test_an_empty_validation_class_does_not_shift_ids(four_classes: Path, form: str):
    name = dataset(four_classes, form)
    train, val = open_source(name, "train"), open_source(name, "val")
    assert train.class_names == val.class_names == ("a", "b", "c", "d")
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert val.labels.tolist() == [0] * 4 + [2] * 4 + [3] * 4
    colours = {0: (255, 0, 0), 2: (0, 0, 255), 3: (255, 255, 255)}
    for data, label in zip(val.read(np.arange(12)), val.labels, strict=True):
        assert decode(data) == colours[label]


def decode(data: bytes) -> tuple[int, ...]:
    import io

    return Image.open(io.BytesIO(data)).convert("RGB").getpixel((0, 0))


@FORMS
def test_a_missing_validation_class_is_fine(four_classes: Path, form: str):
    (four_classes / "val" / "b").rmdir()
    val = open_source(dataset(four_classes, form), "validation")
    assert np.unique(val.labels).tolist() == [0, 2, 3]


@FORMS
def test_an_empty_training_class_is_refused_by_name(four_classes: Path, form: str):
    (four_classes / "train" / "empty").mkdir()
    (four_classes / "train" / "empty" / "notes.txt").write_text("none yet")
    for split in ("train", "val"):
        with pytest.raises(UserError, match=r"'train/empty' .* holds no image"):
            open_source(dataset(four_classes, form), split)


@FORMS
def test_a_class_that_training_lacks_is_refused_by_name(four_classes: Path, form: str):
    add_image(four_classes / "val" / "dd" / "0.png")
    with pytest.raises(
        UserError, match=r"'val' of .* has the class 'dd', .* did you mean 'd'"
    ):
        open_source(dataset(four_classes, form), "val")


@FORMS
def test_other_folders_and_files_are_passed_over(four_classes: Path, form: str):
    add_image(four_classes / "test" / "zebra" / "0.png")
    add_image(four_classes / ".cache" / "a" / "0.png")
    add_image(four_classes / "train" / ".cache" / "0.png")
    add_image(four_classes / "train" / "a" / ".thumb.png")
    add_image(four_classes / "__MACOSX" / "a" / "0.png")
    (four_classes / "train" / "a" / "Thumbs.db").write_bytes(b"x")
    (four_classes / "train" / "README").write_bytes(b"x")
    name = dataset(four_classes, form)
    assert open_source(name, "train").class_names == ("a", "b", "c", "d")
    assert len(open_source(name, "train")) == 16
    assert len(open_source(name, "val")) == 12


@FORMS
def test_without_split_folders_all_is_train(tmp_path: Path, form: str):
    # "train" is a class here: it holds images itself.
    for name in ("bus", "train"):
        add_image(tmp_path / "set" / name / "0.png")
    add_image(tmp_path / "set" / "bus" / "more" / "0.png")
    source = open_source(dataset(tmp_path / "set", form), "train")
    assert source.class_names == ("bus", "train")
    assert relative_names(source, tmp_path / "set") == [
        "bus/0.png",
        "bus/more/0.png",
        "train/0.png",
    ]
    with pytest.raises(UserError, match="has no split 'val'; it has train"):
        open_source(dataset(tmp_path / "set", form), "val")


@FORMS
@pytest.mark.parametrize("folder", ["val", "valid", "validation", "dev"])
def test_all_names_of_the_validation_folder_are_found(
    tmp_path: Path, form: str, folder: str
):
    add_image(tmp_path / "set" / "train" / "a" / "0.png")
    add_image(tmp_path / "set" / folder / "a" / "0.png")
    add_image(tmp_path / "set" / folder / "a" / "1.png")
    for split in ("val", "valid", "validation", "dev"):
        assert len(open_source(dataset(tmp_path / "set", form), split)) == 2
    joined = open_source(dataset(tmp_path / "set", form), "validation[:1]+train")
    assert relative_names(joined, tmp_path / "set") == [
        f"{folder}/a/0.png",
        "train/a/0.png",
    ]


@FORMS
def test_order_is_that_of_bytes_and_not_of_creation(tmp_path: Path, form: str):
    files = ["Z/b.JPG", "a/B.png", "a/a-1.png", "a/a.png", "a/a/x.gif", "a/é.webp"]
    orders = []
    for number, order in enumerate((files, files[::-1], files[3:] + files[:3])):
        folder = tmp_path / f"set{number}"
        for file in order:
            add_image(folder / file)
        orders.append(
            relative_names(open_source(dataset(folder, form), "train"), folder)
        )
    assert orders[0] == files
    assert orders[1] == files
    assert orders[2] == files


@FORMS
def test_given_class_names_fix_the_ids(four_classes: Path, form: str):
    name = dataset(four_classes, form)
    val = open_source(name, "val", class_names=["d", "x", "c", "a"])
    assert val.labels.tolist() == [3] * 4 + [2] * 4 + [0] * 4
    assert val.class_names == ("d", "x", "c", "a")
    with pytest.raises(UserError, match="has the class 'b'"):
        open_source(name, "train", class_names=["d", "x", "c", "a"])


@FORMS
def test_a_names_file_serves_where_there_is_no_training_split(
    tmp_path: Path, form: str
):
    folder = tmp_path / "set"
    add_image(folder / "val" / "b" / "0.png")
    add_image(folder / "val" / "a" / "0.png")
    name = dataset(folder, form)
    with pytest.raises(UserError, match="no training split to take class names from"):
        open_source(name, "val")
    for place in (folder, folder.parent):
        (place / "names.txt").write_text("b\nother\na\n")
    source = open_source(f"{name}@names=names.txt", "val")
    assert source.class_names == ("b", "other", "a")
    assert source.labels.tolist() == [2, 0]
    with pytest.raises(UserError, match=r"cannot read the class names in .*none\.txt"):
        open_source(f"{name}@names=none.txt", "val")


@FORMS
def test_places_without_images_are_refused(tmp_path: Path, form: str):
    folder = tmp_path / "set"
    folder.mkdir()
    with pytest.raises(UserError, match="holds no image in a class folder"):
        open_source(dataset(folder, form), "train")
    add_image(folder / "loose.png")
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match=r"class folder 'empty' .* holds no image"):
        open_source(f"folder:{folder}", "train")


@FORMS
def test_images_in_no_class_folder_are_all_train_without_labels(
    tmp_path: Path, form: str
):
    folder = tmp_path / "set"
    for name in ("b.png", "a.jpg", "c.gif"):
        add_image(folder / name)
    (folder / "notes.txt").write_text("passed over")
    source = open_source(dataset(folder, form), "train[:2]")
    assert relative_names(source, folder) == ["a.jpg", "b.png"]
    assert source.labels.tolist() == [-1, -1]
    assert source.class_names is None
    with pytest.raises(UserError, match=r"has no split 'test'; it has train"):
        open_source(dataset(folder, form), "test")
    for check in (count_classes, lambda s: check_source(s, num_classes=3)):
        with pytest.raises(UserError, match="has no labels; sort its pictures"):
            check(source)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"none does not exist; write folder:DIR"):
        open_source(f"folder:{tmp_path}/none", "train")


def test_links_to_folders_are_followed(four_classes: Path, tmp_path: Path):
    (tmp_path / "linked").mkdir()
    os.symlink(four_classes / "train", tmp_path / "linked" / "train")
    os.symlink(four_classes / "val", tmp_path / "linked" / "val")
    assert len(open_source(f"folder:{tmp_path}/linked", "train")) == 16


def test_an_image_that_vanished_is_named(four_classes: Path):
    source = open_source(f"folder:{four_classes}", "train")
    (four_classes / "train" / "c" / "1.png").unlink()
    with pytest.raises(UserError, match=r"cannot read .*/c/1\.png: No such file"):
        source.read(np.arange(16))


def test_one_folder_around_everything_in_a_zip_is_looked_through(four_classes: Path):
    path = four_classes.parent / "around.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in four_classes.rglob("*.png"):
            archive.write(file, Path("set-1.0") / file.relative_to(four_classes))
    source = open_source(f"zip:{path}", "val")
    assert source.class_names == ("a", "b", "c", "d")
    assert source.names(np.array([0])) == [f"{path}:val/a/0.png"]
    assert decode(source.read(np.array([0]))[0]) == (255, 0, 0)


def test_stored_members_are_byte_ranges_behind_any_extra_field(tmp_path: Path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(3):
            info = zipfile.ZipInfo(f"a/{number}.png")
            info.extra = b"\xfe\xca\x04\x00abcd" * number
            archive.writestr(info, f"image {number}".encode())
    source = open_source(f"zip:{path}", "train")
    assert source.read(np.array([2, 0])) == [b"image 2", b"image 0"]


def test_zip_files_that_cannot_be_read_are_refused(four_classes: Path):
    path = pack(four_classes, zipfile.ZIP_BZIP2)
    with pytest.raises(UserError, match=r"packed otherwise .* 'zip -0 -r'"):
        open_source(f"zip:{path}", "train")
    with pytest.raises(UserError, match=r"cannot read .*none\.zip: No such file"):
        open_source(f"zip:{four_classes}/none.zip", "train")
    (four_classes / "cut.zip").write_bytes(path.read_bytes()[:500])
    with pytest.raises(UserError, match="is no whole zip file"):
        open_source(f"zip:{four_classes}/cut.zip", "train")


def test_a_damaged_deflated_member_is_named(tmp_path: Path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/0.png", b"0123456789" * 100)
    source = open_source(f"zip:{path}", "train")
    data = bytearray(path.read_bytes())
    data[37:45] = b"\xff" * 8  # 30 bytes of header, 7 of name
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"x\.zip:a/0\.png is damaged"):
        source.read(np.array([0]))

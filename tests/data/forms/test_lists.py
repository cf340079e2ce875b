# SPDX-License-Identifier: Apache-2.0
"""CSV and JSON Lines files that list images: labels, splits, and errors with lines."""

import json
from pathlib import Path

import numpy as np
import pytest

from vit_jax.data.labels import MultiHot
from vit_jax.data.mixtures import open_mixture
from vit_jax.data.sources import check_source, open_source
from vit_jax.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose file img/N.jpg holds the byte N."""
    (tmp_path / "img").mkdir()
    for number in range(8):
        (tmp_path / "img" / f"{number}.jpg").write_bytes(bytes([number]))
    return tmp_path


def write(folder: Path, form: str, columns: list[str], *lines: tuple) -> str:
    """Writes a list with the given lines and returns the data set's name."""
    path = folder / f"list.{form}"
    if form == "csv":
        table = [columns, *lines]
        text = "\n".join(",".join(map(str, fields)) for fields in table) + "\n"
    else:
        rows = [dict(zip(columns, fields, strict=True)) for fields in lines]
        text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return f"{form}:{path}"


def read_all(source) -> list[int]:
    return [data[0] for data in source.read(np.arange(len(source)))]


BOTH = pytest.mark.parametrize("form", ["csv", "jsonl"])
COLUMNS = ["image", "label", "split"]


@BOTH
def test_names_come_from_the_training_split_and_serve_the_others(folder, form):
    name = write(
        folder, form, COLUMNS,
        ("img/3.jpg", "dog", "val"),
        ("img/0.jpg", "dog", "train"),
        ("img/1.jpg", "ant", "train"),
        ("img/2.jpg", "cat", "train"),
    )  # fmt: skip
    train, val = open_source(name, "train"), open_source(name, "validation")
    assert train.class_names == val.class_names == ("ant", "cat", "dog")
    assert train.labels.dtype == np.int32
    assert train.labels.tolist() == [2, 0, 1]
    assert val.labels.tolist() == [2]
    assert read_all(train) == [0, 1, 2]
    assert read_all(val) == [3]
    assert train.names(np.array([1])) == [str(folder / "img/1.jpg")]
    joined = open_source(name, "val+train[:50%]")  # round(1.5) is 2
    assert read_all(joined) == [3, 0, 1]
    assert joined.labels.tolist() == [2, 2, 0]


@BOTH
def test_whole_numbers_are_ids(folder, form):
    name = write(
        folder, form, COLUMNS[:2], ("img/0.jpg", 7), ("img/1.jpg", 0), ("img/2.jpg", 10)
    )
    source = open_source(name, "train")
    assert source.class_names is None
    assert source.labels.tolist() == [7, 0, 10]
    names = [f"class {number}" for number in range(11)]
    named = open_source(name, "train", class_names=names)
    assert named.labels.tolist() == [7, 0, 10]
    assert named.class_names == tuple(names)
    with pytest.raises(UserError, match=r":\d has the label 10, .* 10 classes, 0 to 9"):
        open_source(name, "train", class_names=names[:10])


@BOTH
def test_a_label_is_first_of_all_a_name(folder, form):
    name = write(folder, form, COLUMNS[:2], ("img/0.jpg", 7), ("img/1.jpg", 1))
    source = open_source(name, "train", class_names=["9", "8", "7"])
    assert source.labels.tolist() == [2, 1]  # "7" is a name, 1 only an id


@BOTH
def test_targets_are_numbers(folder, form):
    columns = ["image", "target"]
    name = write(folder, form, columns, ("img/1.jpg", 0.5), ("img/0.jpg", -2))
    source = open_source(name, "train")
    assert source.labels.dtype == np.float32
    assert source.labels.tolist() == [0.5, -2.0]
    assert source.class_names is None


def test_several_labels_are_split_at_spaces_or_bars(folder):
    name = write(
        folder, "csv", ["image", "labels", "split"],
        ("img/0.jpg", "b a", "train"),
        ("img/1.jpg", "", "train"),
        ("img/2.jpg", "c d|a", "train"),
        ("img/3.jpg", "a", "test"),
    )  # fmt: skip
    source = open_source(name, "train")
    assert source.class_names == ("a", "b", "c d")
    assert isinstance(source.labels, MultiHot)
    expected = [[1, 1, 0], [0, 0, 0], [1, 0, 1]]
    assert source.labels[np.arange(3)].tolist() == expected
    test = open_source(name, "test")
    assert test.labels[np.arange(1)].tolist() == [[1, 0, 0]]


def test_several_labels_are_lists_in_json(folder):
    columns = ["image", "labels"]
    name = write(
        folder, "jsonl", columns, ("img/1.jpg", [4, 0]), ("img/0.jpg", []),
        ("img/2.jpg", [2]),
    )  # fmt: skip
    labels = open_source(name, "train[1:]+train[:1]").labels
    expected = [[0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 1]]
    assert labels[np.arange(3)].tolist() == expected
    check_labels = open_source(name, "train").labels.num_classes
    assert check_labels == 5


def test_a_names_file_fixes_the_ids(folder):
    name = write(folder, "csv", COLUMNS, ("img/0.jpg", "b", "test"))
    with pytest.raises(UserError, match="no training split to take class names from"):
        open_source(name, "test")
    (folder / "names.txt").write_text("a\nb\n")
    source = open_source(f"{name}@names=names.txt", "test")
    assert source.labels.tolist() == [1]
    assert source.class_names == ("a", "b")


def test_quotes_marks_and_absolute_paths_are_understood(folder):
    path = folder / "list.csv"
    text = f'\ufeffimage,label\n"img/0.jpg","a, b"\n\n{folder}/img/1.jpg,c\n'
    path.write_text(text, encoding="utf-8")
    source = open_source(f"csv:{path}", "train")
    assert source.class_names == ("a, b", "c")
    assert read_all(source) == [0, 1]


# Columns besides the image, and for each line the image's number and their values.
WRONG_LINES = [
    ("label", [(0, "a"), (9, "a")], 2, "img/9.jpg, which does not exist"),
    ("label", [(0, "a"), (1, "")], 2, "has no label; every line needs one"),
    ("label", [(0, 0), (1, -1)], 2, "has the label '-1' where .* whole numbers"),
    ("name", [(0, "a")], 1, "has no label; give the columns image, one of label"),
    ("label target", [(0, "a", 1)], 1, "has label and target; give the columns"),
    ("target", [(0, 1), (1, "x")], 2, "has the target 'x'; give a finite number"),
    ("target", [(0, "nan")], 1, "has the target 'nan'; give a finite number"),
    ("label split", [(0, "a", "")], 1, "has an empty split; name one"),
    (
        "label split",
        [(0, "a", "train"), (1, "aa", "val")],
        2,
        "has the class 'aa', .* did you mean 'a'",
    ),
    (
        "label split",
        [(0, 1, "train"), (1, "x", "val")],
        2,
        "has the label 'x' where the training split has whole numbers",
    ),
    (
        "label split",
        [(0, "a", "train"), (0, "a", "val")],
        2,
        "puts 'img/0.jpg' into a second split, after line",
    ),
]


@BOTH
@pytest.mark.parametrize(("columns", "lines", "wrong", "words"), WRONG_LINES)
def test_errors_name_file_and_line(folder, form, columns, lines, wrong, words):
    full = [(f"img/{number}.jpg", *values) for number, *values in lines]
    name = write(folder, form, ["image", *columns.split()], *full)
    line = wrong + (form == "csv")  # behind the header
    with pytest.raises(UserError, match=rf"list\.{form}:{line} .*{words}"):
        open_source(name, "train+val" if "split" in columns else "train")


@BOTH
def test_lines_without_an_image_and_splits_that_are_not_there_are_refused(folder, form):
    name = write(folder, form, ["path", "label"], ("img/0.jpg", "a"))
    with pytest.raises(UserError, match=r":\d has no image; give the columns"):
        open_source(name, "train")
    name = write(folder, form, ["image", "label"], ("", "a"))
    with pytest.raises(UserError, match=r":\d has no image; give the columns"):
        open_source(name, "train")
    name = write(folder, form, COLUMNS, ("img/0.jpg", "a", "train"))
    with pytest.raises(UserError, match="has no split 'val'; it has train"):
        open_source(name, "val")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("x.csv", "image,label\nimg/0.jpg,a,b\n", r"x\.csv:2 has 3 fields where"),
        ("x.csv", "image,label\n", r"x\.csv lists no image"),
        ("x.csv", "", r"x\.csv lists no image"),
        ("x.jsonl", '\n{"image": "img/0.jpg",\n', r"x\.jsonl:2 is no JSON \("),
        ("x.jsonl", "[1]\n", r"x\.jsonl:1 is no JSON object"),
        (
            "x.jsonl",
            '{"image": "img/0.jpg", "label": null}',
            r"x\.jsonl:1 has no label",
        ),
        (
            "x.jsonl",
            '{"image": "img/0.jpg", "label": 1.5}',
            r"x\.jsonl:1 has the label 1\.5",
        ),
        (
            "x.jsonl",
            '{"image": "img/0.jpg", "label": ["a"]}',
            r"has the label \['a'\]",
        ),
        ("x.jsonl", '{"image": "img/0.jpg", "labels": [true]}', r"has the labels"),
        ("x.jsonl", '{"image": 3, "label": 1}', r"x\.jsonl:1 has no image"),
    ],
)
def test_files_that_cannot_be_read_are_refused(folder, file, text, words):
    (folder / file).write_text(text)
    with pytest.raises(UserError, match=words):
        open_source(f"{file.split('.')[1]}:{folder / file}", "train")


def test_files_of_other_encodings_and_none_are_refused(folder):
    (folder / "x.csv").write_bytes("image,label\nä.jpg,1\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"is no UTF-8 text"):
        open_source(f"csv:{folder}/x.csv", "train")
    (folder / "y.csv").write_text('image,label\n"img/0.jpg"x,a\x00')
    with pytest.raises(UserError, match=r"cannot read .*none\.csv: No such file"):
        open_source(f"csv:{folder}/none.csv", "train")


def test_unreadable_pictures_are_named(folder):
    name = write(folder, "csv", COLUMNS[:2], ("img/0.jpg", 0), ("img/1.jpg", 1))
    with pytest.raises(UserError, match=r"img/0\.jpg: not a picture"):
        check_source(open_source(name, "train"))


@BOTH
def test_a_label_without_a_class_in_the_model_is_told_with_its_line(folder, form):
    name = write(
        folder, form, COLUMNS,
        ("img/0.jpg", 0, "train"),
        ("img/1.jpg", 4, "test"),
        ("img/2.jpg", 1, "train"),
        ("img/3.jpg", 5, "train"),
    )  # fmt: skip
    header = form == "csv"
    place = rf"first 5 of \S*list\.{form}:{4 + header}; set num_classes to at least 6"
    source = open_source(name, "train")
    with pytest.raises(UserError, match=place):
        check_source(source, num_classes=5, decode=False)
    with pytest.raises(UserError, match=place):
        check_source(source[1:], num_classes=5, decode=False)
    parts = {
        part: {"dataset": name, "split": split, "weight": 1}
        for part, split in (("a", "test"), ("b", "train"))
    }
    with pytest.raises(UserError, match=place):
        check_source(open_mixture(parts), num_classes=5, decode=False)


@BOTH
def test_several_labels_without_a_class_are_told_with_their_line(folder, form):
    name = write(
        folder, form, ["image", "labels"],
        ("img/0.jpg", "0 1"),
        ("img/1.jpg", ""),
        ("img/2.jpg", "1 7 0"),
        ("img/3.jpg", "9"),
    )  # fmt: skip
    line = 3 + (form == "csv")
    place = rf"has 10 classes, as 7 of \S*list\.{form}:{line}, the model num_classes=7"
    with pytest.raises(UserError, match=place):
        check_source(open_source(name, "train"), num_classes=7, decode=False)

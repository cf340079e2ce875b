# SPDX-License-Identifier: Apache-2.0
"""From raw data to shards, done without Beam; and that shards hold what they should."""

import functools
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import good, jpeg, photo
from tests.data.raw_imagenet import (
    picture,
    validation_classes,
    write_train,
    write_validation,
)
from vit_jax.data import imagenet
from vit_jax.data.prepare.counts import check_counts
from vit_jax.data.prepare.jobs import Job, run_guarded
from vit_jax.data.prepare.shards import extension
from vit_jax.data.prepare.task import Task, prepare
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

COUNTS = {"n01440764": 7, "n01443537": 11, "n15075141": 6}


def here(job: Job, numbers: Sequence[int]) -> None:
    for number in numbers:
        job(number)


def backwards(job: Job, numbers: Sequence[int]) -> None:
    here(job, numbers[::-1])


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """ImageNet's archives with 24 training and 9 validation images."""
    write_train(tmp_path / "raw" / "ILSVRC2012_img_train.tar", COUNTS)
    write_validation(tmp_path / "raw", 9)
    labels = tmp_path / "raw" / "imagenet_2012_validation_synset_labels.txt"
    labels.write_text("\n".join(validation_classes()))
    return tmp_path / "raw"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images of two classes."""
    for number in range(12):
        path = tmp_path / "set" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(photo(seed=number)))
    return tmp_path / "set"


def read_tar(path: Path) -> dict[str, tuple[str, bytes, bytes]]:
    """Returns extension, image and label text by key; the label follows its image."""
    examples = {}
    with tarfile.open(path, "r:") as archive:
        members = archive.getmembers()
        for image, label in zip(members[::2], members[1::2], strict=True):
            key, kind = image.name.rsplit(".", 1)
            assert label.name == f"{key}.cls"
            content = [archive.extractfile(member).read() for member in (image, label)]
            examples[key] = (kind, *content)
    return examples


def test_imagenets_archives_become_tar_shards(raw, tmp_path):
    task = Task(
        f"ilsvrc2012:{raw}",
        "train",
        str(tmp_path / "out"),
        num_shards=5,
        allow_incomplete=True,
    )
    report = prepare(task, here)
    files = [f"train-{number:05}-of-00005.tar" for number in range(5)]
    out = tmp_path / "out"
    assert sorted(os.listdir(out)) == ["classes.txt", *files, "train.json"]
    shards = [read_tar(out / file) for file in files]
    assert list(map(len, shards)) == [5, 5, 5, 5, 4]
    examples = {key: value for shard in shards for key, value in shard.items()}
    classes = (out / "classes.txt").read_text().splitlines()
    assert classes == list(imagenet.wnids("imagenet1k"))
    expected = {}
    for wnid, count in COUNTS.items():
        for number in range(count):
            seed = int(wnid[-2:]) + number
            kind = "png" if seed % 3 == 2 else "jpg"
            label = str(classes.index(wnid)).encode()
            expected[f"{wnid}_{number}"] = (kind, picture(seed), label)
    assert examples == expected
    assert json.loads((out / "train.json").read_text()) == report
    assert report["examples"] == 24
    assert {name: n for name, n in report["classes"].items() if n} == COUNTS


def test_validation_images_go_into_the_same_folder(raw, tmp_path):
    for split in ("train", "validation"):
        task = Task(
            f"ilsvrc2012:{raw}", split, str(tmp_path / "out"), allow_incomplete=True
        )
        prepare(task, here)
    examples = read_tar(tmp_path / "out" / "validation-00000-of-00001.tar")
    assert {key: int(label) for key, (_, _, label) in examples.items()} == {
        f"ILSVRC2012_val_{number:08}": 7 * number for number in range(1, 10)
    }


def test_incomplete_archives_are_refused(raw, tmp_path):
    task = Task(f"ilsvrc2012:{raw}", "train", str(tmp_path / "out"))
    with pytest.raises(
        UserError,
        match=r"24 images instead of 1281167 and 3 classes instead of 1000 \(without "
        r"n01484850\); .*--allow_incomplete",
    ):
        prepare(task, here)


def test_the_published_numbers_are_complete():
    train = dict.fromkeys(imagenet.wnids("imagenet1k"), 1281)
    check = functools.partial(check_counts, allow_incomplete=False)
    check("ilsvrc2012:/raw train", 1_281_167, train)
    check("ilsvrc2012:/raw validation", 50_000, train)
    with pytest.raises(UserError, match="49999 images instead of 50000"):
        check("ilsvrc2012:/raw validation", 49_999, train)
    # 21,841 classes are handed out; Google's list has two more.
    names = imagenet.wnids("imagenet21k")
    whole = {name: int(number > 1) for number, name in enumerate(names)}
    check("imagenet21k:/raw train", 14_197_122, whole)
    with pytest.raises(UserError, match="21840 classes instead of 21841 or 21843"):
        check("imagenet21k:/raw train", 14_197_122, {**whole, names[9]: 0})


def test_folders_of_imagenet_may_be_a_part_of_it(caplog):
    ten = dict.fromkeys(imagenet.wnids("imagenet1k"), 10)
    check_counts("folder:/ten train", 10_000, ten, allow_incomplete=False)
    assert "10000 images instead of 1281167" in caplog.text
    caplog.clear()
    check_counts("folder:/pets train", 10_000, {"cat": 1}, allow_incomplete=False)
    assert caplog.text == ""


@pytest.mark.parametrize("file_format", ["tar", "tfrecord"])
def test_shards_are_the_same_whoever_does_the_work(folder, tmp_path, file_format):
    contents = []
    for place, run_jobs in (("one", here), ("two", backwards)):
        task = Task(f"folder:{folder}", "train", str(tmp_path / place), file_format, 3)
        prepare(task, run_jobs)
        contents.append({p.name: p.read_bytes() for p in (tmp_path / place).iterdir()})
    assert len(contents[0]) == 5
    assert contents[0] == contents[1]


def test_tfrecord_shards_are_what_tensorflow_reads(folder, tmp_path):
    import tensorflow as tf

    prepare(Task(f"folder:{folder}", "train", str(tmp_path / "o"), "tfrecord", 2), here)
    files = sorted(str(path) for path in (tmp_path / "o").glob("*.tfrecord"))
    assert [path[-23:] for path in files] == [
        "00000-of-00002.tfrecord",
        "00001-of-00002.tfrecord",
    ]
    form = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "name": tf.io.FixedLenFeature([], tf.string),
    }
    found = {}
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        example = tf.io.parse_single_example(record, form)
        name = example["name"].numpy().decode()
        found[name] = (example["image"].numpy(), int(example["label"]))
    assert found == {
        f"{'ab'[n % 2]}/{n}": (jpeg(photo(seed=n)), n % 2) for n in range(12)
    }


def write_list(folder: Path, columns: str, values: Sequence[str]) -> str:
    lines = [f"{'ab'[n % 2]}/{n}.jpg,{value}" for n, value in enumerate(values)]
    (folder / "list.csv").write_text("\n".join([f"image,{columns}", *lines]))
    return f"csv:{folder}/list.csv"


@pytest.mark.parametrize(
    ("columns", "values", "in_json", "in_record"),
    [
        ("labels", ["7|1", "", "3"], [[7, 1], [], [3]], [[7, 1], [], [3]]),
        ("target", ["0.5", "2", "-1"], [0.5, 2.0, -1.0], [[0.5], [2.0], [-1.0]]),
    ],
)
def test_several_labels_and_numbers_are_kept(
    folder, tmp_path, columns, values, in_json, in_record
):
    import tensorflow as tf

    dataset = write_list(folder, columns, values)
    keys = ["a/0", "b/1", "a/2"]
    prepare(Task(dataset, "train", str(tmp_path / "o")), here)
    with tarfile.open(tmp_path / "o" / "train-00000-of-00001.tar") as archive:
        for key, value in zip(keys, in_json, strict=True):
            content = archive.extractfile(f"{key}.json")
            assert json.load(content) == {columns: value}
    prepare(Task(dataset, "train", str(tmp_path / "r"), "tfrecord"), here)
    path = str(tmp_path / "r" / "train-00000-of-00001.tfrecord")
    found = {}
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        kind = "float_list" if columns == "target" else "int64_list"
        name = features["name"].bytes_list.value[0].decode()
        found[name] = list(getattr(features["label"], kind).value)
    assert found == dict(zip(keys, in_record, strict=True))


@pytest.mark.parametrize(
    ("dataset", "file_format"),
    [
        ("tar:{}/train-*.tar@names=classes.txt", "tar"),
        ("tfrecord:{}/train-*.tfrecord@names=classes.txt", "tfrecord"),
    ],
)
def test_our_sources_read_the_shards(folder, tmp_path, dataset, file_format):
    task = Task(f"folder:{folder}", "train", str(tmp_path / "o"), file_format, 3)
    prepare(task, here)
    source = open_source(dataset.format(tmp_path / "o"), "train")
    assert source.class_names == ("a", "b")
    images = {jpeg(photo(seed=number)): number % 2 for number in range(12)}
    rows = np.arange(12)
    found = dict(zip(source.read(rows), source.labels.tolist(), strict=True))
    assert found == images
    # The first of them are the subset that --take writes.
    part = Task(f"folder:{folder}", "train", str(tmp_path / "p"), "tar", take=5)
    prepare(part, here)
    examples = read_tar(tmp_path / "p" / "train-00000-of-00001.tar")
    five = open_source(dataset.format(tmp_path / "o"), "train[:5]")
    assert five.read(np.arange(5)) == [image for _, image, _ in examples.values()]


def test_removed_examples_are_left_out(folder, tmp_path):
    ids = tmp_path / "removed_ids.txt"
    ids.write_text("a/2\nb/11\n")
    task = Task(f"folder:{folder}", "train", str(tmp_path / "o"), removed=[str(ids)])
    assert prepare(task, here)["removed"] == 2
    examples = read_tar(tmp_path / "o" / "train-00000-of-00001.tar")
    keys = {f"{'ab'[number % 2]}/{number}" for number in range(12)}
    assert examples.keys() == keys - {"a/2", "b/11"}
    with pytest.raises(UserError, match="cannot read the removed ids in /nowhere"):
        prepare(
            Task(
                f"folder:{folder}", "train", str(tmp_path / "q"), removed=["/nowhere"]
            ),
            here,
        )


def test_a_stopped_run_goes_on(folder, tmp_path):
    task = Task(f"folder:{folder}", "train", str(tmp_path / "o"), num_shards=4)
    prepare(task, here)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "o").iterdir()}

    def stop_after_two(job, numbers):
        here(job, numbers[:2])
        raise KeyboardInterrupt

    task = Task(f"folder:{folder}", "train", str(tmp_path / "p"), num_shards=4)
    with pytest.raises(KeyboardInterrupt):
        prepare(task, stop_after_two)
    done = []

    def note(job, numbers):
        done.extend(numbers)
        here(job, numbers)

    other = Task(f"folder:{folder}", "train", str(tmp_path / "p"), num_shards=4, seed=1)
    with pytest.raises(UserError, match="part of the shards of another task"):
        prepare(other, here)
    prepare(task, note)
    assert done == [2, 3]
    assert {p.name: p.read_bytes() for p in (tmp_path / "p").iterdir()} == whole
    with pytest.raises(UserError, match="finished shards of 'train' already"):
        prepare(task, here)


def test_classes_of_a_folder_do_not_change(folder, tmp_path):
    prepare(Task(f"folder:{folder}", "train", str(tmp_path / "o")), here)
    dataset = write_list(folder, "label,split", ["x,test"])
    (folder / "names").write_text("x\ny\n")
    with pytest.raises(UserError, match=r"classes.txt names other classes than csv:"):
        prepare(Task(f"{dataset}@names=names", "test", str(tmp_path / "o")), here)


def test_more_shards_than_examples_are_refused(folder, tmp_path):
    task = Task(f"folder:{folder}", "train", str(tmp_path / "o"), num_shards=13)
    with pytest.raises(UserError, match="13 shards of 12 examples; use fewer"):
        prepare(task, here)


def test_a_file_that_is_no_picture_is_named(folder, tmp_path):
    (folder / "a" / "page.jpg").write_bytes(b"<html>gone</html>")
    task = Task(f"folder:{folder}", "train", str(tmp_path / "o"), num_shards=2)
    with pytest.raises(UserError, match=r"a/page is no picture .* b'<html>go'"):
        prepare(task, here)
    assert not list((tmp_path / "o").glob("*.part*"))
    (folder / "a" / "page.jpg").write_bytes(jpeg())
    # The other shard is there; the plan is the same, as keys are.
    assert prepare(task, here)["examples"] == 13


@pytest.mark.parametrize("name", good())
def test_extensions_are_found_by_content(name):
    kind = {"jpeg": "jpg", "tiff": "tif"}.get(name.split()[0], name.split()[0])
    assert extension(good()[name], name) == kind


def test_the_first_mistake_of_all_jobs_is_raised(tmp_path):
    def job(number: int) -> None:
        if number > 2:
            raise UserError(f"file {number} is broken")

    with pytest.raises(UserError, match=r"^file 3 is broken \(and 1 more\)$"):
        run_guarded(backwards, job, range(5), str(tmp_path))
    run_guarded(here, job, range(3), str(tmp_path))


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        ("prepare", ["--input=folder:/a", "--output=/b"]),
        (
            "prepare.duplicates",
            ["--dataset=bundled:mnist", "--against=bundled:mnist test"],
        ),
    ],
)
def test_without_beam_a_line_says_what_to_install(module, flags, tmp_path):
    (tmp_path / "apache_beam.py").write_text("raise ImportError('hidden')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", f"vit_jax.data.{module}", *flags, "--output=/b"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot prepare data: it needs Apache Beam")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["prepare", "prepare.duplicates"])
def test_help_describes_the_command(module):
    done = subprocess.run(
        [sys.executable, "-m", f"vit_jax.data.{module}", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert f"python -m vit_jax.data.{module} --" in done.stdout
    assert "--output" in done.stdout

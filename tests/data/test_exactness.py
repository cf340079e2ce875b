# SPDX-License-Identifier: Apache-2.0
"""Every form of data set gives the batches that its order says, wherever it is read."""

import itertools
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encode
from tests.data.written_shards import example, write_records, write_tar
from vit_jax.data.examples import Source
from vit_jax.data.mixtures import open_mixture
from vit_jax.data.order import Plan
from vit_jax.data.pipeline import train_batches
from vit_jax.data.sources import open_source

NUM = 10
STEPS = 6


def picture(row: int) -> bytes:
    from PIL import Image

    return encode(Image.new("RGB", (2, 2), (row, 0, 0)), "PNG")


def lists(folder: Path) -> list[str]:
    names = [f"{row:02d}.png" for row in range(NUM)]
    for row, name in enumerate(names):
        (folder / name).write_bytes(picture(row))
    return names


def folder_set(folder: Path) -> str:
    (folder / "only").mkdir()
    lists(folder / "only")
    return f"folder:{folder}"


def csv_set(folder: Path) -> str:
    lines = ["image,label", *(f"{name},0" for name in lists(folder))]
    (folder / "x.csv").write_text("\n".join(lines))
    return f"csv:{folder}/x.csv"


def jsonl_set(folder: Path) -> str:
    lines = [json.dumps({"image": name, "label": 0}) for name in lists(folder)]
    (folder / "x.jsonl").write_text("\n".join(lines))
    return f"jsonl:{folder}/x.jsonl"


def tar_set(folder: Path) -> str:
    for shard, rows in enumerate((range(7), range(7, NUM))):
        members = []
        for row in rows:
            members += [(f"{row}.png", picture(row)), (f"{row}.cls", b"0")]
        write_tar(folder / f"{shard}.tar", members)
    return f"tar:{folder}/*.tar"


def tfrecord_set(folder: Path) -> str:
    for shard, rows in enumerate((range(3), range(3, NUM))):
        records = [example(image=[picture(row)], label=[0]) for row in rows]
        write_records(folder / f"{shard}.tfrecord", records)
    return f"tfrecord:{folder}/*.tfrecord"


def zip_set(folder: Path, packing: int) -> str:
    with zipfile.ZipFile(folder / "x.zip", "w", packing) as archive:
        for row in range(NUM):
            archive.writestr(f"only/{row:02d}.png", picture(row))
    return f"zip:{folder}/x.zip"


FORMS: dict[str, Callable[[Path], str]] = {
    "folder": folder_set,
    "csv": csv_set,
    "jsonl": jsonl_set,
    "tar": tar_set,
    "tfrecord": tfrecord_set,
    "zip stored": lambda folder: zip_set(folder, zipfile.ZIP_STORED),
    "zip deflated": lambda folder: zip_set(folder, zipfile.ZIP_DEFLATED),
}


def levels(source: Source, count: int = STEPS, **options) -> list[list[int]]:
    """The rows in the batches of training, by the levels of their pictures."""
    options = {"batch_size": 4, "ops": "decode", "seed": 7, **options}
    with train_batches(source, **options) as batches:
        taken = list(itertools.islice(batches, count))
    return [batch["image"][:, 0, 0, 0].tolist() for batch in taken]


def planned(plan: Plan) -> list[list[int]]:
    return [plan.rows(step).tolist() for step in range(STEPS)]


def check_exactness(source: Source, expected: list[list[int]]) -> None:
    assert levels(source) == expected
    for process_count in (2, 4):
        shares = [
            levels(source, process_index=index, process_count=process_count)
            for index in range(process_count)
        ]
        joined = [[*itertools.chain(*parts)] for parts in zip(*shares, strict=True)]
        assert joined == expected
    for start in (1, 3, STEPS - 1):
        assert levels(source, STEPS - start, start_step=start) == expected[start:]


@pytest.mark.parametrize("form", FORMS)
def test_batches_are_those_of_the_order(form, tmp_path):
    source = open_source(FORMS[form](tmp_path), "train")
    expected = planned(Plan(NUM, 4, 0, 1, 7))
    check_exactness(source, expected)
    stream = [*itertools.chain(*expected)]  # 24 = two epochs of 10 and 4 more
    assert sorted(stream[:NUM]) == sorted(stream[NUM : 2 * NUM]) == list(range(NUM))


def test_batches_of_a_mixture_are_those_of_its_order(tmp_path):
    for name in ("tar", "csv"):
        (tmp_path / name).mkdir()
    part = {"split": "train", "weight": 1}
    source = open_mixture(
        {
            "a": {**part, "dataset": tar_set(tmp_path / "tar"), "weight": 3},
            "b": {**part, "dataset": csv_set(tmp_path / "csv"), "split": "train[:4]"},
        }
    )
    rows = planned(Plan(NUM + 4, 4, 0, 1, 7, source.mixture))
    assert all(sum(row < NUM for row in batch) == 3 for batch in rows)
    own_levels = [[row if row < NUM else row - NUM for row in batch] for batch in rows]
    check_exactness(source, own_levels)


def test_all_forms_hold_the_same_rows(tmp_path):
    for form, write in FORMS.items():
        (tmp_path / form).mkdir()
        source = open_source(write(tmp_path / form), "train[2:8]")
        assert source.read(np.array([0, 5])) == [picture(2), picture(7)], form

# SPDX-License-Identifier: Apache-2.0
"""Tables of byte ranges read what they name, in any order, from any number of files."""

import concurrent.futures
import os

import numpy as np
import pytest

from vit_jax.data.tables import OPEN_FILES, Table, Texts, join
from vit_jax.errors import UserError


def test_texts_come_back_as_they_were():
    names = ["", "a/b.jpg", "é", os.fsdecode(b"\xff.png"), "x" * 1000]
    texts = Texts(names)
    assert len(texts) == 5
    assert [texts[row] for row in range(5)] == names
    texts.extend(["more"])
    assert texts[5] == "more"


def test_texts_cost_no_object_each():
    texts = Texts(f"n01440764/n01440764_{row}.JPEG" for row in range(1000))
    assert len(texts.block) + 8 * len(texts) < 50 * 1000


@pytest.fixture
def shards(tmp_path) -> Table:
    """Twice as many files as stay open; row r is the three bytes of r."""
    count = 2 * OPEN_FILES
    numbers = np.arange(10 * count)
    for file in range(count):
        own = range(file * 10, file * 10 + 10)
        data = b"".join(number.to_bytes(3, "big") for number in own)
        (tmp_path / f"{file}").write_bytes(b"head" + data)
    return Table(
        root=str(tmp_path),
        paths=Texts(str(file) for file in range(count)),
        file_index=(numbers // 10).astype(np.int32),
        offset=4 + 3 * (numbers % 10),
        length=np.full(len(numbers), 3),
    )


def test_byte_ranges_are_read_by_many_threads_at_once(shards):
    rows = np.random.default_rng(0).integers(0, len(shards), (16, 500))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        results = list(threads.map(shards.read, rows))
    for chosen, read in zip(rows, results, strict=True):
        assert [int.from_bytes(data, "big") for data in read] == chosen.tolist()


def test_files_do_not_pile_up(shards):
    before = len(os.listdir("/proc/self/fd"))
    shards.read(np.arange(len(shards)))
    assert len(os.listdir("/proc/self/fd")) <= before + OPEN_FILES


def test_a_file_that_became_shorter_is_named(shards, tmp_path):
    (tmp_path / "3").write_bytes(b"head123")
    with pytest.raises(UserError, match=r"/3 ends inside the image .*/3@7"):
        shards.read(np.array([31]))


def test_absolute_and_remote_paths_stay():
    assert join("/a", "b/c") == "/a/b/c"
    assert join("/a", "/b/c") == "/b/c"
    assert join("", "b/c") == "b/c"
    assert join("/a", "gs://b/c") == "gs://b/c"
    assert join("gs://a/b", "c") == "gs://a/b/c"

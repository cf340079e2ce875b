# SPDX-License-Identifier: Apache-2.0
"""Shards are gone through once; what was found is kept, and checked before use."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.data.written_shards import pairs, write_tar
from vit_jax.data.shards import store as shard_store
from vit_jax.data.shards.index_file import Found
from vit_jax.data.shards.store import VARIABLE, index_shards
from vit_jax.data.shards.tars import TarReader
from vit_jax.errors import UserError


class Numbers(NamedTuple):
    """Reads files of lines; each is an example with that label. Notes what it read."""

    log: list[str]
    name: str = "numbers"

    def __call__(self, path: str) -> Iterator[Found]:
        self.log.append(os.path.basename(path))
        for number, line in enumerate(Path(path).read_text().split()):
            if line == "bad":
                raise UserError(f"{path}@{number} is bad")
            yield Found(number, 1, int(line))


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Five files, of 1, 2, ... examples, whose labels are the number of the file."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}").write_text(f"{number} " * (number + 1))
    return [str(folder / f"{number}") for number in range(5)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)


def read(paths: list[str]) -> tuple[list[str], list[int]]:
    """Returns which files had to be read, and the labels."""
    log: list[str] = []
    index = index_shards(paths, Numbers(log))
    assert [shard.path for shard in index.shards] == paths
    return log, index.label.tolist()


LABELS = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]


def test_files_are_read_once(paths):
    assert read(paths) == (["0", "1", "2", "3", "4"], LABELS)
    assert os.listdir(Path(paths[0]).parent / ".vit_jax_index") == ["numbers.index"]
    assert read(paths) == ([], LABELS)
    assert read([paths[3], paths[1]]) == ([], [3, 3, 3, 3, 1, 1])


def test_new_and_changed_files_alone_are_read(paths):
    read(paths[:2])
    assert read(paths) == (["2", "3", "4"], LABELS)
    Path(paths[1]).write_text("7 7 7")
    assert read(paths) == (["1"], [0, 7, 7, 7, *LABELS[3:]])
    # The same size, but a later time.
    Path(paths[1]).write_text("8 8 8")
    os.utime(paths[1], ns=(0, os.stat(paths[1]).st_mtime_ns + 1_000_000))
    assert read(paths) == (["1"], [0, 8, 8, 8, *LABELS[3:]])
    assert read(paths)[0] == []


def test_a_folder_that_moved_keeps_its_index(paths, tmp_path):
    read(paths)
    Path(paths[0]).parent.rename(tmp_path / "moved")
    moved = [path.replace("/data/", "/moved/") for path in paths]
    assert read(moved) == ([], LABELS)


def test_an_error_keeps_what_was_found_before_it(paths):
    Path(paths[3]).write_text("3 bad")
    with pytest.raises(UserError, match=r"/3@1 is bad"):
        read(paths)
    Path(paths[3]).write_text("3 3 3 3")
    assert read(paths) == (["3", "4"], LABELS)


def test_a_file_that_is_gone_is_named(paths):
    read(paths)
    Path(paths[2]).unlink()
    with pytest.raises(UserError, match=r"cannot read .*/data/2: No such file"):
        read(paths)


def test_a_damaged_index_is_made_anew(paths):
    read(paths)
    index = Path(paths[0]).parent / ".vit_jax_index" / "numbers.index"
    index.write_bytes(index.read_bytes()[:-3])
    assert read(paths) == (["0", "1", "2", "3", "4"], LABELS)
    assert read(paths) == ([], LABELS)


def test_where_the_folder_cannot_be_written_the_cache_is_used(
    paths, tmp_path, monkeypatch
):
    # A file where the folder would be: it cannot be made, by nobody.
    (Path(paths[0]).parent / ".vit_jax_index").touch()
    assert read(paths)[0] == ["0", "1", "2", "3", "4"]
    assert read(paths) == ([], LABELS)
    (kept,) = (tmp_path / "cache" / "vit_jax" / "index").glob("*/numbers.index")
    assert kept.parent.name.startswith("data-")
    (tmp_path / "blocked").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    assert read(paths)[0] == ["0", "1", "2", "3", "4"]
    assert read(paths) == (["0", "1", "2", "3", "4"], LABELS)


def test_the_variable_names_another_folder(paths, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "indexes"))
    read(paths)
    assert read(paths) == ([], LABELS)
    assert not (Path(paths[0]).parent / ".vit_jax_index").exists()
    assert len(list((tmp_path / "indexes").glob("data-*/numbers.index"))) == 1


def test_files_of_several_folders_keep_their_order(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        for number in "12":
            (tmp_path / folder / number).write_text(number)
    paths = [str(tmp_path / name) for name in ("a/1", "b/1", "a/2", "b/2")]
    for _ in range(2):
        assert read(paths)[1] == [1, 1, 2, 2]
    for folder in "ab":
        assert (tmp_path / folder / ".vit_jax_index").is_dir()


def test_processes_find_the_same_as_one(tmp_path):
    labels = np.random.default_rng(0).integers(0, 5, (6, 4))
    paths = []
    for number, own in enumerate(labels):
        texts = {f"{number}{place}": f"c{label}" for place, label in enumerate(own)}
        paths.append(str(write_tar(tmp_path / f"{number}.tar", pairs(texts))))
    done: list[int] = []
    index = index_shards(
        paths, TarReader(), workers=2, report=lambda n, total: done.append(n)
    )
    assert done == [1, 2, 3, 4, 5, 6]
    found = [index.texts[code] for code in index.label]
    assert found == [f"c{label}" for label in labels.ravel()]


def test_an_error_of_a_process_reaches_the_caller(tmp_path):
    paths = [str(write_tar(tmp_path / f"{n}.tar", [("a.jpg", b".")])) for n in range(2)]
    with pytest.raises(UserError, match=r"\.tar@512: 'a\.jpg' has no \.cls"):
        index_shards(paths, TarReader(), workers=2)


KILLED = """
import sys, time
from pathlib import Path
from vit_jax.data.shards import store as shard_store
from vit_jax.data.shards.index_file import Found

class Slow:
    name = "numbers"
    def __call__(self, path):
        if path.endswith("3"):
            Path(sys.argv[1], "waiting").touch()
            time.sleep(100)
        for number, line in enumerate(Path(path).read_text().split()):
            yield Found(number, 1, int(line))

shard_store.SAVE_SECONDS = 0.0
shard_store.index_shards(sys.argv[2:], Slow())
"""


def test_an_indexing_that_was_killed_goes_on(paths, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), *paths])
    for _ in range(600):
        if (tmp_path / "waiting").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert read(paths) == (["3", "4"], LABELS)


def test_saving_waits_between_shards(paths, monkeypatch):
    saved = []
    real = shard_store.save
    monkeypatch.setattr(shard_store, "save", lambda *a: saved.append(1) or real(*a))
    read(paths)
    assert len(saved) == 1

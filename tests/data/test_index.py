# SPDX-License-Identifier: Apache-2.0
"""The command that indexes shards beforehand."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.data.written_shards import example, pairs, write_records, write_tar
from vit_jax.data.index import find_dataset_shards, make_report
from vit_jax.data.shards import store as shard_store
from vit_jax.data.shards.store import VARIABLE
from vit_jax.data.shards.synthetic import write_synthetic_shards
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for number in range(3):
        write_tar(tmp_path / f"train-{number}.tar", pairs({f"{number}": str(number)}))
    return tmp_path


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "vit_jax.data.index", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": "/nonexistent", **environment},
    )


def test_training_finds_what_the_command_made(shards, monkeypatch):
    dataset = f"tar:{shards}/train-{{0..2}}.tar"
    done = run(dataset, "--workers=2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 shards, 3 examples, ")
    assert done.stdout.endswith(f"index: {shards}/.vit_jax_index\n")
    assert "3 of 3 shards" in done.stderr
    monkeypatch.setattr(shard_store, "read_shard", None)  # nothing is read again
    assert open_source(dataset, "train").labels.tolist() == [0, 1, 2]


def test_another_folder_is_found_by_the_variable(shards, monkeypatch):
    done = run(f"tar:{shards}/*.tar", f"--index_dir={shards}/indexes", "--workers=1")
    assert done.returncode == 0, done.stderr
    assert f"{VARIABLE}={shards}/indexes" in done.stderr
    assert not (shards / ".vit_jax_index").exists()
    monkeypatch.setenv(VARIABLE, f"{shards}/indexes")
    monkeypatch.setattr(shard_store, "read_shard", None)
    assert len(open_source(f"tar:{shards}/*.tar", "train")) == 3


def test_a_broken_shard_ends_the_command(shards):
    write_tar(shards / "train-1.tar", [("a.jpg", b".")])
    done = run(f"tar:{shards}/*.tar", "--workers=1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"error: {shards}/train-1.tar@512: 'a.jpg' has no .cls or .json"
    )


def test_the_shards_of_each_form_are_found(shards):
    paths, reader = find_dataset_shards(f"tar:{shards}/*.tar", None)
    assert (len(paths), reader.name) == (3, "tar")
    write_records(shards / "x", [example(a=[b"x"], b=[1])])
    paths, reader = find_dataset_shards(f"tfrecord:{shards}/x@image=a;label=b", None)
    assert paths == [f"{shards}/x"]
    assert [found.label for found in reader(paths[0])] == [1]
    with pytest.raises(UserError, match="folder: needs no index; give a data set"):
        find_dataset_shards(f"folder:{shards}", None)


def test_the_bar_grows_to_its_end(capsys):
    report = make_report(terminal=True)
    for done in (1, 2, 3):
        report(done, 3)
    lines = capsys.readouterr().err.split("\r")[1:]
    assert [line.count("#") for line in lines] == [10, 20, 30]
    assert lines[-1].endswith("\n")


def test_an_index_of_many_rows_opens_without_reading_it(tmp_path):
    dataset = write_synthetic_shards(
        str(tmp_path), 1_000_003, shards=7, images=5, side=16
    )
    source = open_source(dataset, "train")
    assert len(source) == 1_000_003
    assert np.bincount(source.labels).tolist() == pytest.approx([200_000] * 5, abs=7)
    rows = np.array([0, 5, 6, 1_000_002])
    first, second, third, _ = source.read(rows)
    assert first == second != third
    assert first[:3] == b"\xff\xd8\xff"
    assert len(set(source.names(np.arange(5)))) == 5

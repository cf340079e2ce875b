# SPDX-License-Identifier: Apache-2.0
"""A broken image ends the batches with its name; closing ends them at any time."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.data.test_pipeline import numbered
from vit_jax.data.pipeline import eval_batches, train_batches
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

THREADS = Path("/proc/self/task")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(6):
        folder = tmp_path / "abc"[number % 3]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
    return tmp_path


def test_a_broken_image_is_named_in_its_batch(pictures):
    (pictures / "b" / "4.png").write_bytes(b"<html>gone</html>")
    source = open_source(f"folder:{pictures}", "train")
    batches = eval_batches(source, batch_size=2, ops="decode")
    # Sorted: a/0 a/3 | b/1 b/4 | ...
    assert next(batches)["label"].tolist() == [0, 0]
    with pytest.raises(UserError, match=r"/b/4\.png: not a picture .* HTML"):
        next(batches)
    assert list(batches) == []


def test_a_vanished_image_is_named(pictures):
    source = open_source(f"folder:{pictures}", "train")
    (pictures / "c" / "2.png").unlink()
    with (
        eval_batches(source, batch_size=2, ops="decode") as batches,
        pytest.raises(UserError, match=r"cannot read .*/c/2\.png"),
    ):
        list(batches)


def test_an_image_that_the_ops_cannot_take_is_named(pictures):
    Image.new("RGB", (3, 8)).save(pictures / "b" / "4.png")
    source = open_source(f"folder:{pictures}", "train")
    with (
        eval_batches(source, batch_size=6, ops="decode|central_crop(5)") as batches,
        pytest.raises(UserError, match=r"/b/4\.png: .*central_crop"),
    ):
        list(batches)


def test_streams_close_at_any_time():
    for count in range(4):
        batches = train_batches(numbered(10), batch_size=2, ops="decode", seed=0)
        list(itertools.islice(batches, count))
        batches.close()
        assert list(batches) == []


def test_a_program_ends_though_a_stream_is_open():
    program = (
        "from vit_jax.data.pipeline import train_batches\n"
        "from vit_jax.data.sources import open_source\n"
        "source = open_source('synthetic:2@size=4', 'train')\n"
        "batches = train_batches(source, batch_size=2, ops='decode', seed=0)\n"
        "print(next(batches)['image'].shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "(2, 4, 4, 3)\n"), done.stderr


@pytest.mark.skipif(not THREADS.exists(), reason="counts threads as Linux tells them")
def test_passes_that_have_ended_keep_no_threads():
    def go_through() -> Iterator[dict]:
        batches = eval_batches(numbered(10), batch_size=2, ops="decode")
        assert sum(1 for _ in batches) == 5
        return batches

    kept = [go_through() for _ in range(3)]
    before = len(list(THREADS.iterdir()))
    kept += [go_through() for _ in range(10)]
    assert len(list(THREADS.iterdir())) < before + 10

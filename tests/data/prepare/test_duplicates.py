# SPDX-License-Identifier: Apache-2.0
"""Near-duplicates of one data set in another: search, report, and ids to remove."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from vit_jax.data.prepare import duplicate_search
from vit_jax.data.prepare.duplicates import split_against
from vit_jax.data.prepare.jobs import Job
from vit_jax.data.prepare.task import Task, prepare
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError


def here(job: Job, numbers: Sequence[int]) -> None:
    for number in numbers:
        job(number)


def drawing(seed: int) -> Image.Image:
    """Ten ellipses in random places and colours."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (160, 120), tuple(rng.integers(0, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(10):
        x, y, width, height = rng.integers(0, (140, 100, 60, 60)).tolist()
        colour = tuple(rng.integers(0, 256, 3).tolist())
        draw.ellipse((x, y, x + width, y + height), fill=colour)
    return image


def save(path: Path, image: Image.Image, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, str]:
    """30 training and 20 test images, of which the first 5 are copies in some form."""
    web, pets = tmp_path / "web", tmp_path / "pets"
    for number in range(30):
        save(web / "train" / "a" / f"{number}.png", drawing(number))
    copies = [
        drawing(0),
        drawing(1).resize((80, 60)),
        drawing(2).convert("L"),
        drawing(3).resize((300, 300), Image.Resampling.BICUBIC),
        drawing(4),
    ]
    for number, copy in enumerate(copies):
        save(pets / "test" / "b" / f"copy{number}.jpg", copy, quality=60)
    for number in range(100, 115):
        save(pets / "test" / "b" / f"{number}.jpg", drawing(number))
    (pets / "names").write_text("b\n")
    (web / "train" / "a" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    return {"train": f"folder:{web}", "test": f"folder:{pets}@names=names"}


def search(sets: dict[str, str], tmp_path: Path, run_jobs=here, **options) -> dict:
    train = open_source(sets["train"], "train")
    test = open_source(sets["test"], "test")
    output = str(tmp_path / "out")
    return duplicate_search.search(
        train, [test], output=output, run_jobs=run_jobs, **options
    )


def block_hash(image: np.ndarray) -> int:
    """A plain stand-in for the library: which of 64 blocks are above the median."""
    grey = Image.fromarray(image).convert("L").resize((8, 8), Image.Resampling.BOX)
    levels = np.asarray(grey)
    bits = np.packbits(levels > np.median(levels))
    return int.from_bytes(bits.tobytes(), "big")


@pytest.fixture
def plain_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicate_search, "perceptual_hash", block_hash)


@pytest.mark.usefixtures("plain_hash")
def test_copies_are_found_and_the_report_says_of_what(sets, tmp_path):
    report = search(sets, tmp_path)
    found = {
        (match["id"], Path(match["matched_file"]).name) for match in report["removed"]
    }
    assert found == {(f"train/a/{n}", f"copy{n}.jpg") for n in range(5)}
    assert report["not_decoded"] == ["train/a/broken"]
    assert (report["examples"], report["radius"]) == (31, 8)
    for match in report["removed"]:
        assert Path(match["file"]).is_file()
        assert match["matched_set"] == f"{sets['test']} test"
        assert 0 <= match["hash_distance"] <= 8
        assert 0 <= match["pixel_distance"] <= 0.4
    out = tmp_path / "out"
    assert json.loads((out / "duplicates.json").read_text()) == report
    ids = (out / "removed_ids.txt").read_text()
    assert ids == "".join(f"train/a/{n}\n" for n in range(5))


@pytest.mark.usefixtures("plain_hash")
def test_what_is_removed_is_not_written(sets, tmp_path):
    search(sets, tmp_path)
    (tmp_path / "web" / "train" / "a" / "broken.png").unlink()
    ids = (str(tmp_path / "out" / "removed_ids.txt"),)
    task = Task(sets["train"], "train", str(tmp_path / "shards"), removed=ids)
    report = prepare(task, here)
    assert (report["examples"], report["removed"]) == (25, 5)


@pytest.mark.usefixtures("plain_hash")
def test_pixels_refuse_what_only_the_hash_takes_for_equal(sets, tmp_path):
    strict = search(sets, tmp_path, threshold=0.0)
    assert strict["candidates"] >= 5
    assert strict["removed"] == []  # JPEG changes a little of each


@pytest.mark.usefixtures("plain_hash")
def test_hashes_are_computed_once(sets, tmp_path, monkeypatch):
    monkeypatch.setattr(duplicate_search, "CHUNK_SIZE", 8)
    done = []

    def note(job, numbers):
        done.append(list(numbers))
        here(job, numbers)

    first = search(sets, tmp_path, note)
    assert done == [[0, 1, 2, 3], [0, 1, 2]]  # of 31 and of 20 images
    assert search(sets, tmp_path, note) == first
    assert len(done) == 2


def test_the_hash_is_that_of_the_library():
    imagehash = pytest.importorskip("imagehash", reason="needs the extra 'prepare'")
    for seed in range(5):
        image = drawing(seed)
        found = duplicate_search.perceptual_hash(np.asarray(image))
        assert f"{found:016x}" == str(imagehash.phash(image))


def test_copies_are_found_by_the_library_through_beam(sets, tmp_path):
    pytest.importorskip("imagehash", reason="needs the extra 'prepare'")
    pytest.importorskip("apache_beam", reason="needs the extra 'prepare'")
    from vit_jax.data.prepare.jobs import beam_runner

    report = search(sets, tmp_path, beam_runner([]))
    assert [match["id"] for match in report["removed"]] == [
        f"train/a/{n}" for n in range(5)
    ]


def test_without_the_library_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "imagehash", None)
    with pytest.raises(UserError, match="needs the library imagehash; install"):
        duplicate_search.perceptual_hash(np.zeros((8, 8, 3), np.uint8))


@pytest.mark.parametrize("text", ["folder:/data/pets", "pets test", ""])
def test_a_test_set_needs_a_split(text):
    with pytest.raises(UserError, match="names no split; write 'DATASET SPLIT'"):
        split_against(text)

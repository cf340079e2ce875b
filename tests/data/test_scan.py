# SPDX-License-Identifier: Apache-2.0
"""A scan lists what is wrong or odd in a data set, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data import pictures
from tests.data.pictures import encode, jpeg, photo
from vit_jax.data.scan import KINDS, scan_source
from vit_jax.data.scan_image import look, odd_kinds
from vit_jax.data.sources import open_source


def names(found: list) -> list[str]:
    paths = [entry if isinstance(entry, str) else entry["path"] for entry in found]
    return [Path(path).name for path in paths]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of every kind in the class `a`, whole ones in `b`."""
    files = {
        "good.jpg": jpeg(),
        "truncated.jpg": jpeg()[:-300],
        "empty.png": b"",
        "page.jpg": b"<html>404</html>",
        "png.jpg": encode(photo(), "PNG"),
        "grey.png": encode(photo().convert("L"), "PNG"),
        "deep.png": encode(Image.fromarray(pictures.grey16()), "PNG"),
        "cmyk.jpg": jpeg(photo().convert("CMYK")),
        "turned.jpg": jpeg(orientation=6),
        "small.png": encode(photo(20, 40), "PNG"),
    }
    (tmp_path / "train" / "a").mkdir(parents=True)
    for name, data in files.items():
        (tmp_path / "train" / "a" / name).write_bytes(data)
    for split, name in (("train", "b"), ("val", "b"), ("val", "unknown")):
        (tmp_path / split / name).mkdir(parents=True)
        (tmp_path / split / name / f"{split}.jpg").write_bytes(jpeg())
    return tmp_path


EXPECTED = {
    "broken": ["page.jpg", "truncated.jpg"],
    "empty": ["empty.png"],
    "mislabelled": ["val.jpg"],
    "tiny": ["small.png"],
    "grey": ["deep.png", "grey.png"],
    "cmyk": ["cmyk.jpg"],
    "16bit": ["deep.png"],
    "rotated": ["turned.jpg"],
}


@pytest.mark.parametrize("workers", [1, 3])
def test_each_kind_is_listed_and_nothing_else(folder, workers):
    source = open_source(f"folder:{folder}", "all", lenient=True)
    result = scan_source(source, workers=workers)
    assert {kind: names(result[kind]) for kind in KINDS} == EXPECTED
    assert result["examples"] == 13
    assert result["classes"] == {"a": 10, "b": 2}
    assert "truncated or damaged" in result["broken"][1]["reason"]
    assert result["mislabelled"][0]["reason"] == "unknown class"


def test_mean_and_deviation_are_those_of_all_pixels(tmp_path, rng):
    (tmp_path / "c").mkdir()
    images = [rng.integers(0, 256, (h, 40, 3), np.uint8) for h in (35, 50)]
    for number, image in enumerate(images):
        (tmp_path / "c" / f"{number}.png").write_bytes(
            encode(Image.fromarray(image), "PNG")
        )
    result = scan_source(open_source(f"folder:{tmp_path}", "train"))
    pixels = np.concatenate([image.reshape(-1, 3) for image in images]) / 255
    np.testing.assert_allclose(result["mean"], pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(result["std"], pixels.std(axis=0), rtol=1e-9)


def test_pixels_are_scanned_as_files_are():
    seen = look(np.full((4, 8, 1), 51, np.uint8), tiny=5)
    assert (seen.kinds, seen.pixels) == (("tiny",), 32)
    np.testing.assert_allclose(seen.total / 32, [0.2] * 3)


def test_labels_out_of_range_are_listed(tmp_path):
    lines = ["image,label"]
    for number, label in enumerate((0, 5, 2, 9)):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg())
        lines.append(f"{number}.jpg,{label}")
    lines.append("gone.jpg,1")
    (tmp_path / "x.csv").write_text("\n".join(lines))
    source = open_source(f"csv:{tmp_path}/x.csv", "train", lenient=True)
    result = scan_source(source, num_classes=5)
    assert names(result["mislabelled"]) == ["1.jpg", "3.jpg"]
    assert result["mislabelled"][1]["reason"] == "label 9 of 5 classes"
    assert names(result["broken"]) == ["gone.jpg"]
    assert result["classes"] == {"0": 1, "1": 1, "2": 1, "5": 1, "9": 1}


def test_several_labels_are_checked_and_counted(tmp_path):
    (tmp_path / "a.jpg").write_bytes(jpeg())
    (tmp_path / "x.csv").write_text("image,labels\na.jpg,0 7\na.jpg,7\na.jpg,\n")
    source = open_source(f"csv:{tmp_path}/x.csv", "train", lenient=True)
    result = scan_source(source, num_classes=7)
    assert len(result["mislabelled"]) == 2
    assert result["classes"] == {"0": 1, "7": 2}


@pytest.mark.parametrize(
    ("image", "kinds"),
    [
        (encode(photo(), "TIFF"), []),
        (encode(Image.fromarray(pictures.grey16()), "TIFF"), ["grey", "16bit"]),
        (encode(photo().convert("1"), "PNG"), ["grey"]),
        (encode(photo().convert("P"), "GIF"), []),
        (jpeg(orientation=1), []),
        (b"nothing", []),
    ],
)
def test_odd_kinds_are_seen_in_the_header(image, kinds):
    assert odd_kinds(image) == kinds


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "vit_jax.data.scan", *arguments],
        capture_output=True,
        text=True,
    )


def test_the_command_says_what_is_wrong_and_fails(folder):
    done = run(f"folder:{folder}", f"--output={folder}/scan.json")
    assert done.returncode == 1
    (line,) = [text for text in done.stderr.splitlines() if text.startswith("error:")]
    assert "2 broken, 1 empty, 1 mislabelled of 13 examples, first " in line
    assert "page.jpg: not a picture" in line
    for kind, found in EXPECTED.items():
        assert f"{kind}: {len(found)}\n" in done.stdout
    result = json.loads((folder / "scan.json").read_text())
    assert {kind: names(result[kind]) for kind in KINDS} == EXPECTED
    assert result["split"] == "all"


def test_the_command_succeeds_where_nothing_is_wrong(folder):
    done = run(f"folder:{folder}", "--split=train[-1:]", "--tiny=100")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 examples" in done.stdout
    assert "tiny: 1\n" in done.stdout

# SPDX-License-Identifier: Apache-2.0
"""A folder with a picture of each kind, some of them broken."""

import itertools
import pathlib

import numpy as np
import pytest
from PIL import Image

from tests.data import pictures
from vit_jax.data.pipeline import train_batches
from vit_jax.data.scan import scan_source
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

GOOD = pictures.good()
WHOLE = {
    "photo.jpg": GOOD["jpeg"],
    "really_a_png.jpg": GOOD["png"],
    "movie.gif": GOOD["gif moving"],
    "picture.webp": GOOD["webp"],
    "picture.bmp": GOOD["bmp"],
    "picture.tiff": GOOD["tiff"],
    "rgba.png": GOOD["png rgba"],
    "la.png": GOOD["png la"],
    "palette.png": GOOD["png palette"],
    "cmyk.jpg": GOOD["jpeg cmyk"],
    "grey.png": GOOD["png grey"],
    "deep.png": GOOD["png grey 16 bit"],
}
BROKEN = {
    "cut.jpg": GOOD["jpeg"][:-300],
    "empty.jpg": b"",
    "page.jpg": b"<!DOCTYPE html><html>404</html>",
}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Each picture in a class of its own, so that its label says which it is."""
    for name, data in {**WHOLE, **BROKEN}.items():
        (tmp_path / name.replace(".", "_")).mkdir()
        (tmp_path / name.replace(".", "_") / name).write_bytes(data)
    return tmp_path


def names(paths: list[str]) -> set[str]:
    return {pathlib.Path(path).name for path in paths}


def test_a_scan_lists_the_three_broken_ones_and_no_other(folder: pathlib.Path):
    result = scan_source(open_source(f"folder:{folder}", "train", lenient=True))
    wrong = [*result["broken"], *result["empty"], *result["mislabelled"]]
    assert names([entry["path"] for entry in wrong]) == set(BROKEN)
    assert result["examples"] == 15


def test_training_refuses_them_by_name(folder: pathlib.Path):
    source = open_source(f"folder:{folder}", "train")
    with (
        train_batches(source, batch_size=15, ops="decode", seed=0) as batches,
        pytest.raises(UserError, match=r"/(cut|empty|page)\.jpg: "),
    ):
        next(batches)


def test_told_to_skip_it_counts_them_and_sees_all_others_in_colour(
    folder: pathlib.Path,
):
    source = open_source(f"folder:{folder}", "train")
    with train_batches(
        source, batch_size=15, ops="decode", seed=0, skip_errors=True
    ) as batches:
        taken = list(itertools.islice(batches, 2))
    assert len(source.broken) == 3
    rows = np.fromiter(source.broken, int)
    assert names(source.names(rows)) == set(BROKEN)
    seen: dict[str, np.ndarray] = {}
    for batch in taken:
        assert batch["image"].shape == (15, 40, 48, 3)
        for image, label in zip(batch["image"], batch["label"], strict=True):
            assert source.class_names is not None
            seen[source.class_names[label]] = np.asarray(image)
    assert set(seen) == {name.replace(".", "_") for name in WHOLE}
    # Clear pixels, here those on the right, lie over white.
    for name in ("rgba_png", "la_png"):
        assert (seen[name][:, 24:] == 255).all()
    # A ramp over all 65,536 levels keeps its high byte; clipped, it would be white.
    expected = pictures.grey16() >> 8
    np.testing.assert_array_equal(seen["deep_png"], np.stack([expected] * 3, -1))
    with Image.open(folder / "photo_jpg" / "photo.jpg") as photo:
        np.testing.assert_array_equal(seen["photo_jpg"], np.asarray(photo))

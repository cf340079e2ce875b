# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.data import pictures
from vit_jax.data import rivals, speed
from vit_jax.data.preprocess import build_preprocess
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("photos")
    for number in range(6):
        place = path / "train" / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        photo = pictures.photo(60, 50, seed=number)
        (place / f"{number}.jpg").write_bytes(pictures.jpeg(photo))
    return path


def test_upscaled_pictures_have_the_size_and_the_labels(folder, tmp_path):
    source = open_source(f"folder:{folder}", "train")
    speed.write_upscaled(source, str(tmp_path / "up.tar"), (100, 75))
    up = open_source(f"tar:{tmp_path}/up.tar", "train")
    rows = np.arange(6)
    assert np.array_equal(up.labels[rows], source.labels[rows])
    for data in up.read(rows):
        assert tf.io.extract_jpeg_shape(data).numpy().tolist() == [75, 100, 3]


def test_the_rivals_end_in_our_pixels():
    """All pipelines of the comparison do the same work, to one level."""
    data = pictures.jpeg(pictures.photo(200, 160))
    ours = build_preprocess(speed.TRAIN_OPS.format(32))
    shown = 0
    for number in range(8):
        seed = tf.constant([number, 5])
        image = ours({"image": tf.constant(data), "seed": seed})["image"].numpy()
        # The same box, found by cutting it out of a picture of coordinates.
        coordinates = np.zeros((160, 200, 3), np.uint8)
        coordinates[..., 0], coordinates[..., 1] = np.mgrid[:160, :200]
        box = build_preprocess("drop|inception_crop")
        corner = box({"image": tf.constant(coordinates), "seed": seed})["image"].numpy()
        window = [int(corner[0, 0, 0]), int(corner[0, 0, 1]), *corner.shape[:2]]
        levels = rivals.cut_and_resize(data, tf.constant(window), (32, 32))
        best = min(
            np.abs(rivals.as_big_vision(levels, tf.constant(flip)) - image).max()
            for flip in (False, True)
        )
        assert best <= 1.001 / 127.5
        shown += 1
    assert shown == 8


def test_turns_take_each_pipeline_as_often_and_time_it():
    made = {"a": 0, "b": 0}

    def count(name):
        while True:
            made[name] += 1
            yield name

    turns = speed.take_turns({name: count(name) for name in made}, 4, 2, 3)
    assert made == {"a": 42, "b": 42}  # 3 rounds of 12 that lie ready and 2 timed
    assert all(len(t) == 3 and min(min(t)) >= 0 for t in turns.values())


@pytest.mark.parametrize("text", ["500", "500x", "x375", "0x3", "500x375x3", "a x b"])
def test_a_size_is_two_numbers(text: str):
    assert speed.parse_size("500x375") == (500, 375)
    with pytest.raises(UserError, match="write WIDTHxHEIGHT"):
        speed.parse_size(text)


def test_arrays_cannot_be_compared():
    source = open_source("synthetic:2@size=6;train=8", "train")
    with pytest.raises(UserError, match="has no JPEG files to compare"):
        speed.compare(source, resolution=4, batch_size=2, batches=1, rounds=1)


@pytest.mark.slow
def test_the_command_prints_a_line_a_pipeline(folder):
    command = [sys.executable, "-m", "vit_jax.benchmark", "input"]
    flags = ["--steps=1", "--rounds=1", "--batch_size=2", "--resolution=16"]
    given = [f"--dataset=folder:{folder}", "--upscale=80x60"]
    done = subprocess.run(
        [*command, *flags, *given, "--rivals"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["pipeline"] for line in lines] == [
        "ours",
        "bare",
        "bare_fused",
        "big_vision",
        "ours_randaug",
    ]
    assert lines[0]["ratio"] == 1.0
    assert all(line["benchmark"] == "input" for line in lines)
    ops = "--ops=decode|inception_crop(16)|value_range"
    done = subprocess.run(
        [*command, *flags, *given, "--ops_ms", ops], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    costs = json.loads(done.stdout)["ops_ms"]
    assert list(costs) == ["decode", "inception_crop(16)", "value_range"]

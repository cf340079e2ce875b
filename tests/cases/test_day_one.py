# SPDX-License-Identifier: Apache-2.0
"""The first day: a folder of pictures, weights on the disk, no network, no GPU."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.cases import tiny
from tests.data.pictures import encode
from vit_jax.convert import load_checkpoint

ROOT = pathlib.Path(__file__).parents[2]
SIDE = 16
# Imported by each Python at its start, since it lies on its path.
NO_NETWORK = """
import socket

def refuse(self, address):
    raise OSError(f"a test without network: {address}")

socket.socket.connect = refuse
"""
NO_TENSORFLOW = 'raise ImportError("a test without TensorFlow")\n'


class Machine:
    """A user's folder, and the commands that are typed in it."""

    def __init__(self, home: pathlib.Path):
        self.home = home
        for name, file, text in [
            ("offline", "sitecustomize.py", NO_NETWORK),
            ("light", "tensorflow.py", NO_TENSORFLOW),
        ]:
            (home / name).mkdir()
            (home / name / file).write_text(text)

    def run(self, name: str, *arguments: str, tensorflow: bool = False) -> str:
        path = [str(self.home / "offline"), str(ROOT)]
        if not tensorflow:
            path.insert(0, str(self.home / "light"))
        done = subprocess.run(
            [sys.executable, "-m", f"vit_jax.{name}", *arguments],
            cwd=self.home,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "PYTHONPATH": os.pathsep.join(path),
                "XLA_FLAGS": "",
                "JAX_DISABLE_MOST_OPTIMIZATIONS": "true",
                "XDG_CACHE_HOME": str(self.home / "cache"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


def drawing(animal: str, rng: np.random.Generator) -> np.ndarray:
    """Cats are red above, dogs are blue above; below, both are dark."""
    pixels = rng.integers(0, 60, (24, 32, 3))
    pixels[:10, :, 0 if animal == "cat" else 2] += 180
    pixels[:, :6] += 15  # so that no turn or mirror image is the picture itself
    return pixels.astype(np.uint8)


def as_stored(scene: np.ndarray, orientation: int) -> np.ndarray:
    """What a camera saves for an upright scene that it notes an orientation of."""
    transposed = np.swapaxes(scene, 0, 1)
    return {
        1: scene,
        2: scene[:, ::-1],
        3: scene[::-1, ::-1],
        4: scene[::-1],
        5: transposed,
        6: np.rot90(scene),
        7: transposed[::-1, ::-1],
        8: np.rot90(scene, -1),
    }[orientation]


def save(scene: np.ndarray, path: pathlib.Path, orientation: int = 1) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(as_stored(scene, orientation)))
    form = {".png": "PNG", ".jpg": "JPEG"}[path.suffix]
    quality = {"quality": 95, "subsampling": 0} if form == "JPEG" else {}
    path.write_bytes(encode(image, form, exif=exif, **quality))


@pytest.mark.slow
def test_a_folder_of_pictures_becomes_a_model_that_names_them(
    tmp_path: pathlib.Path, rng: np.random.Generator
):
    machine = Machine(tmp_path)
    for animal in ("cat", "dog"):
        (tmp_path / "pets" / animal).mkdir(parents=True)
        for number in range(20):
            save(drawing(animal, rng), tmp_path / "pets" / animal / f"{number}.jpg")
    model = {**tiny.MODEL, "num_classes": 7, "width": 32}
    made = tiny.checkpoint(
        model, side=SIDE, preprocessing=f"decode|resize({SIDE})|value_range(-1, 1)"
    )
    weights = tiny.write(tmp_path, made)

    machine.run(
        "finetune",
        f"--config={ROOT}/configs/finetune.py:dataset=folder:pets,resolution={SIDE}",
        f"--init={weights}",
        "--workdir=runs/pets",
        "--config.total_steps=20",
        "--config.optimizer.warmup_steps=5",
        "--config.optimizer.lr=0.03",
        "--config.data.batch_size=16",
        f"--config.data.ops=decode|resize({SIDE})|flip_lr|{{normalize}}",
        f"--config.evaluators.val.ops=decode|resize({SIDE})|{{normalize}}",
        tensorflow=True,
    )

    scene, pictures = drawing("dog", rng), []
    for orientation in range(1, 9):
        for form in ("png", "jpg"):
            pictures.append(f"turned{orientation}.{form}")
            save(scene, tmp_path / pictures[-1], orientation)
    printed = machine.run("predict", "--checkpoint=runs/pets", "--json", *pictures)
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["image"] for line in lines] == pictures
    answers = {line["image"]: line["predictions"] for line in lines}
    lossless = [answers[name] for name in pictures if name.endswith(".png")]
    assert lossless == lossless[:1] * 8
    for found in answers.values():
        chances = {row["class"]: row["probability"] for row in found}
        assert found[0]["class"] == "dog"
        assert set(chances) == {"cat", "dog"}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        # JPEG rounds a turned picture a little otherwise.
        assert found[0]["probability"] == pytest.approx(
            lossless[0][0]["probability"], abs=0.02
        )

    # What was trained here goes to others and comes back with its names.
    machine.run("convert", "--input=runs/pets", "--output=hf", "--to=huggingface")
    assert load_checkpoint(str(tmp_path / "hf")).class_names == ("cat", "dog")
    shown = machine.run("predict", "--checkpoint=hf", "turned6.jpg")
    assert shown.split()[:2] == ["turned6.jpg", "dog"]
    assert shown.count(" %") == 2

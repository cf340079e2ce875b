# SPDX-License-Identifier: Apache-2.0
"""A run that several files look at."""

import dataclasses
import pathlib

import pytest
from PIL import Image

from tests.cases import tiny


@dataclasses.dataclass(frozen=True)
class Trained:
    """A finished run and its data.

    Attributes:
      data: Folder of the data set.
      workdir: Directory of the run.
      lines: What it logged.
    """

    data: pathlib.Path
    workdir: pathlib.Path
    lines: list[dict]


COLOURS = {"a": "red", "b": "lime", "c": "blue", "d": "white"}


@pytest.fixture(scope="session")
def four_colours(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A tiny ViT that has learned the colour of each of four classes.

    The folder of `b` in val is empty, and there is what does not belong to the set.
    """
    import jax

    from vit_jax import build, metrics
    from vit_jax.train import loop

    folder = tmp_path_factory.mktemp("colours")
    for name, colour in COLOURS.items():
        for split in ("train", "val"):
            (folder / split / name).mkdir(parents=True)
            for number in range(4):
                if (split, name) != ("val", "b"):
                    picture = Image.new("RGB", (tiny.SIDE, tiny.SIDE), colour)
                    picture.save(folder / split / name / f"{number}.png")
    for extra in ("test/zebra", ".cache/a"):
        (folder / extra).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / extra / "0.png")
    (folder / "train" / "a" / "Thumbs.db").write_bytes(b"x")

    dataset = f"folder:{folder}"
    config = tiny.config(
        dataset,
        total_steps=60,
        optimizer={
            **{"name": "adamw", "lr": 0.01, "schedule": "cosine"},
            **{"ema_decay": 0.8},
        },
        evaluators={
            "val": {
                "type": "classification",
                "dataset": dataset,
                "split": "val",
                "ops": tiny.OPS,
            }
        },
    )
    workdir = tmp_path_factory.mktemp("runs") / "colours"
    made = build.make_blueprint(config, devices=jax.devices()[:1])
    with build.build_run(made, str(workdir)) as run:
        loop.train(run, lambda: False)
    return Trained(folder, workdir, metrics.read_metrics(str(workdir)))

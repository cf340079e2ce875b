# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on numbers and on several labels an image, by the recipes for them."""

import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax import build, config as config_lib, metrics
from vit_jax.checkpoints import native
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.models import build_model
from vit_jax.train import loop

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of a tiny ViT/8 for 16 px, as it is initialised."""
    fields: dict[str, Any] = {"name": "ViT-S/8", "num_classes": 3, "pool": "mean"}
    fields |= {"width": 32, "depth": 1, "num_heads": 2, "mlp_dim": 64}
    model = build_model(**fields)
    image = np.zeros((1, 16, 16, 3), np.float32)
    params = jax.jit(model.init)(jax.random.key(0), image)["params"]
    checkpoint = Checkpoint(
        params=jax.device_get(params),
        model=fields,
        image_shape=(16, 16, 3),
        preprocessing="decode|resize(16)|value_range(-1, 1)",
    )
    path = str(tmp_path_factory.mktemp("weights") / "tiny.safetensors")
    native.write(checkpoint, path)
    return path


def train(spec: str, weights: str, workdir: pathlib.Path, *changes: tuple[str, str]):
    config = config_lib.load(spec)
    config.init.checkpoint = weights
    config_lib.override(config, [("model.dtype", "float32"), *changes])
    with build.build_run(build.make_blueprint(config), str(workdir)) as run:
        loop.train(run, lambda: False)
    return metrics.read_metrics(str(workdir))


def save(pixels: np.ndarray, path: pathlib.Path) -> None:
    Image.fromarray(pixels.astype(np.uint8)).save(path)


@pytest.mark.slow
def test_mean_brightness_is_predicted_ten_times_better_than_by_a_constant(
    tmp_path: pathlib.Path, weights: str
):
    rng = np.random.default_rng(0)
    lines, targets = ["image,target"], []
    for i in range(320):
        level = rng.uniform(30, 220)
        pixels = np.clip(rng.normal(level, 20, (16, 16, 3)), 0, 255).round()
        save(pixels, tmp_path / f"{i}.png")
        targets.append(pixels.mean() / 255 * 100)
        lines.append(f"{i}.png,{targets[-1]:.4f}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    written = train(
        f"{CONFIGS / 'regression.py'}:dataset=csv:{tmp_path / 'list.csv'},"
        "resolution=16,mean=49,std=21",
        weights,
        tmp_path / "run",
        ("total_steps", "300"),
        ("data.batch_size", "32"),
        ("data.ops", "decode|flip_lr|{normalize}"),
        ("optimizer.lr", "1e-3"),
        ("optimizer.lr_rules", "((r'head/.*', 21.0), (r'.*', 1.0))"),
        ("evaluators.val.every_steps", "100"),
        ("checkpoint_steps", "300"),
    )
    final = {k: v for line in written for k, v in line.items() if k.startswith("val/")}
    held_out = final["val/examples"]
    assert held_out == 32
    # The best constant is the mean, and its error the standard deviation.
    assert final["val/rmse"] < np.std(targets) / 10
    # The best checkpoint stays, and is named.
    best = (tmp_path / "run" / "checkpoints" / "best").read_text().strip()
    assert (tmp_path / "run" / "checkpoints" / best).is_dir()


@pytest.mark.slow
def test_colours_of_a_picture_are_found_as_its_labels(
    tmp_path: pathlib.Path, weights: str
):
    rng = np.random.default_rng(0)
    colours = {"red": 0, "green": 1, "blue": 2}
    lines = []
    for i in range(160):
        pixels = rng.integers(0, 40, (16, 16, 3))
        labels = [name for name in colours if rng.random() < 0.5]
        for name in labels:
            row, column = 8 * rng.integers(0, 2, 2)
            pixels[row : row + 8, column : column + 8, colours[name]] += 200
        save(pixels, tmp_path / f"{i}.png")
        lines.append(json.dumps({"image": f"{i}.png", "labels": labels}))
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    written = train(
        f"{CONFIGS / 'multilabel.py'}:dataset=jsonl:{tmp_path / 'list.jsonl'},"
        "resolution=16",
        weights,
        tmp_path / "run",
        ("total_steps", "200"),
        ("data.batch_size", "32"),
        ("data.ops", "decode|flip_lr|{normalize}"),
        ("optimizer.lr", "0.1"),
        ("model.head_bias", "0.0"),
        ("evaluators.val.every_steps", "100"),
    )
    final = {k: v for line in written for k, v in line.items() if k.startswith("val/")}
    assert final["val/map"] > 0.98
    assert final["val/f1_macro"] > 0.9

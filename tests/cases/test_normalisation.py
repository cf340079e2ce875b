# SPDX-License-Identifier: Apache-2.0
"""What stands at the model's door when a white and a black picture are predicted."""

import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from tests.cases import tiny
from vit_jax import command, models, predict as predict_command
from vit_jax.checkpoints import files
from vit_jax.convert import swin, writing

GOOGLE = ((1, 1, 1), (-1, -1, -1))
IMAGENET = ((2.249, 2.429, 2.640), (-2.118, -2.036, -1.804))
VIT = {"name": "ViT-S/8", "width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64}
SWIN = {"name": "Swin-T", "width": 32, "depths": [1, 1], "num_heads": [1, 2]}
SWIN |= {"window_size": 2, "resolution": 16}
OURS = "decode|resize(16)|value_range(-1, 1)"
STATISTICS = "decode|resize(16, 'bicubic', antialias=True)|normalize('imagenet')"


def predict(monkeypatch: pytest.MonkeyPatch, checkpoint: str, *arguments: str) -> None:
    """Runs the command in this process."""
    monkeypatch.setattr(command, "start_jax", lambda: None)
    for name in predict_command.FLAGS:
        predict_command.FLAGS[name].unparse()
    given = ["predict", f"--checkpoint={checkpoint}", *arguments]
    predict_command.main(predict_command.FLAGS(given)[1:])


class Door:
    """Stands in for a model and keeps what it is given."""

    def __init__(self, num_classes: int):
        self.num_classes = num_classes
        self.seen: list[np.ndarray] = []

    def apply(self, variables: Any, image: jax.Array, *, train: bool) -> Any:
        del variables
        assert not train
        jax.debug.callback(lambda pixels: self.seen.append(np.array(pixels)), image)
        return jax.numpy.zeros((len(image), self.num_classes)), {}


@pytest.mark.parametrize(
    ("form", "model", "preprocessing", "values"),
    [
        ("google", VIT, OURS, GOOGLE),
        ("native", VIT, OURS, GOOGLE),
        ("timm", VIT, OURS, GOOGLE),
        ("huggingface", VIT, OURS, GOOGLE),
        # DeiT is a ViT of timm with the statistics of ImageNet.
        ("timm", {**VIT, "preset": "timm-vit"}, STATISTICS, IMAGENET),
        ("huggingface", {**VIT, "preset": "hf-vit"}, STATISTICS, IMAGENET),
        # As the authors write it, without a word about pictures.
        ("bare swin", SWIN, STATISTICS, IMAGENET),
        ("timm", SWIN, STATISTICS, IMAGENET),
        ("huggingface", SWIN, STATISTICS, IMAGENET),
    ],
)
def test_white_and_black_arrive_as_the_weights_expect(
    form: str,
    model: dict[str, Any],
    preprocessing: str,
    values: tuple,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    made = tiny.checkpoint(model, side=16, preprocessing=preprocessing)
    path = str(tmp_path / "weights.safetensors")
    if form == "bare swin":
        files.write_safetensors(path, swin.tensors(made), {})
    else:
        writing.write_checkpoint(made, path, form)
    pictures = []
    for colour in ("white", "black"):
        pictures.append(str(tmp_path / f"{colour}.png"))
        Image.new("RGB", (20, 18), colour).save(pictures[-1])

    door = Door(3)
    monkeypatch.setattr(models, "build_model", lambda **fields: door)
    predict(monkeypatch, path, *pictures)
    jax.effects_barrier()
    (seen,) = door.seen
    assert (len(seen), seen.shape[-1]) == (2, 3)
    for picture, expected in zip(seen, values, strict=True):
        wanted = np.broadcast_to(np.float32(expected), picture.shape)
        np.testing.assert_allclose(picture, wanted, atol=5e-4)

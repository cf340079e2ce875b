# SPDX-License-Identifier: Apache-2.0
"""The command plots: every kind draws a file, and mistakes are told."""

import json
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax import command, convert
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.plots import __main__ as plots

MODEL = {
    **{"name": "ViT-Ti/8", "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 16},
    "num_classes": 3,
}


@pytest.fixture(scope="module")
def checkpoint():
    image = np.zeros((1, 16, 24, 3), np.float32)
    params = jax.jit(build_model(**MODEL).init)(jax.random.key(0), image)["params"]
    ops = "decode|resize((16, 24))|value_range(-1, 1)"
    return Checkpoint(jax.device_get(params), MODEL, (16, 24, 3), ops)


@pytest.fixture
def draw(monkeypatch, tmp_path, checkpoint, rng):
    monkeypatch.setattr(command, "start_jax", lambda: None)
    monkeypatch.setattr(convert, "load_checkpoint", lambda spec, preset: checkpoint)
    pixels = rng.integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cat.png")

    def draw(*arguments: str, output="out.png"):
        for name in plots.FLAGS:
            plots.FLAGS[name].unparse()
        path = tmp_path / output
        rest = plots.FLAGS(["plots", *arguments, f"--output={path}"])
        plots.main(rest[1:])
        return path

    return draw


def write_files(tmp_path):
    (tmp_path / "run").mkdir()
    lines = [
        {"step": 1, "train/loss": 2.0, "train/images_per_second": 5.0},
        {"step": 2, "train/loss": 1.0, "train/images_per_second": 6.0, "val/top1": 1},
    ]
    text = "\n".join(map(json.dumps, lines))
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    summary = [{"shots": 1, "top1_mean": 0.5, "top1_ci95": 0.1}]
    (tmp_path / "shots.json").write_text(json.dumps({"summary": summary}))


@pytest.mark.parametrize(
    ("kind", "argument", "flags"),
    [
        ("attention", "cat.png", ["--layer=0", "--query=1,2"]),
        ("attention", "cat.png", ["--head=1"]),
        ("rollout", "c*.png", ["--noresidual"]),
        ("distances", "cat.png", []),
        ("positions", None, []),
        ("filters", None, ["--components=5"]),
        ("curves", "run", ["--metrics=loss,val/top1"]),
        ("fewshot", "shots.json", []),
        ("throughput", "run", []),
    ],
)
def test_every_kind_draws_a_picture(draw, tmp_path, kind, argument, flags):
    write_files(tmp_path)
    named = [] if argument is None else [str(tmp_path / argument)]
    path = draw(kind, *named, "--checkpoint=tiny", *flags, output=f"{kind}.png")
    with Image.open(path) as image:
        # Readable: 200 dots an inch, hardly wider than a phone; and not empty.
        assert image.size[0] == 840
        assert len(np.unique(np.asarray(image.convert("L")))) > 10


def test_numbers_are_printed(draw, tmp_path, capsys):
    draw("filters", "--checkpoint=tiny", "--components=16")
    # 16 filters differ from their mean in 15 directions, which explain all.
    expected = "16 components explain 100.0 % of the variance of 16 filters"
    assert expected in capsys.readouterr().out
    draw("distances", str(tmp_path / "cat.png"), "--checkpoint=tiny")
    printed = capsys.readouterr().out
    assert "mean attention distance in pixels over 1 picture(s)" in printed
    assert "block01" in printed


def test_equal_figures_are_equal_files(draw, tmp_path):
    write_files(tmp_path)
    first = draw("curves", str(tmp_path / "run"), output="a.svg")
    second = draw("curves", str(tmp_path / "run"), output="b.svg")
    assert first.read_bytes() == second.read_bytes()
    words = "".join(ElementTree.parse(first).getroot().itertext())
    assert "step" in words
    assert "top-1 accuracy (%)" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to draw first: attention, rollout"),
        (["rollouts"], "unknown kind of plot 'rollouts'; did you mean 'rollout'"),
        (["rollout", "x.png"], "with --checkpoint=CHECKPOINT"),
        (["rollout", "--checkpoint=t"], "no picture given"),
        (["rollout", "--checkpoint=t", "none.png"], "no picture 'none.png'"),
        (["positions", "--checkpoint=t", "x.png"], "this kind takes no pictures"),
        (["curves"], "name at least one run"),
        (["attention", "--checkpoint=t", "CAT", "--head=2"], "no head 2: the layer"),
        (["attention", "--checkpoint=t", "CAT", "--query=2"], "is not ROW,COLUMN"),
    ],
)
def test_mistakes_are_told(draw, tmp_path, arguments, message):
    given = [str(tmp_path / "cat.png") if a == "CAT" else a for a in arguments]
    with pytest.raises(UserError, match=message):
        draw(*given)


def test_only_png_and_svg_are_written(draw):
    with pytest.raises(UserError, match=r"must end in \.png or \.svg"):
        draw("positions", "--checkpoint=t", output="out.pdf")


def test_a_file_that_cannot_be_written_is_told(draw):
    with pytest.raises(UserError, match="cannot write"):
        draw("positions", "--checkpoint=t", output="none/out.png")


def test_weights_without_preprocessing_are_told(monkeypatch, draw, tmp_path):
    bare = Checkpoint({}, MODEL, (16, 24, 3), None)
    monkeypatch.setattr(convert, "load_checkpoint", lambda spec, preset: bare)
    with pytest.raises(UserError, match="does not tell how pictures are prepared"):
        draw("rollout", str(tmp_path / "cat.png"), "--checkpoint=t")

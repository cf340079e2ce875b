# SPDX-License-Identifier: Apache-2.0
"""The page about a run: what it says is what the files and the weights say."""

import html.parser
import json
import re

import jax
import numpy as np
import pytest
from PIL import Image

from vit_jax import command, convert
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.report import __main__ as report, paper

CLASSES = ("<bee>", "ant", "cow")
OPS = "decode|resize(16)|value_range(-1, 1)"
MIXER = {
    **{"name": "Mixer-S/8", "resolution": 16, "width": 4, "depth": 1, "mlp_dim": 4},
    **{"token_mlp_dim": 4, "num_classes": 3},
}
VIT = {
    **{"name": "ViT-B/16", "width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 16},
    **{"patch_size": 8, "num_classes": 3},
}
VOID = {"br", "circle", "image", "img", "link", "meta", "path", "rect", "use"}


def weights(model):
    """Random weights whose head always says cow, then ant, then bee."""
    image = np.zeros((1, 16, 16, 3), np.float32)
    params = jax.jit(build_model(**model).init)(jax.random.key(0), image)["params"]
    params = jax.device_get(params)
    params["head"]["bias"] = np.arange(3, dtype=np.float32)
    return Checkpoint(params, model, (16, 16, 3), OPS, CLASSES, averaged=True)


def write_run(path, model, dataset):
    """The files of a run that saw 2 bees, 1 ant and 3 cows at its end."""
    path.mkdir()
    evaluator = {"type": "classification", "dataset": dataset, "split": "test"}
    config = {
        "seed": 0,
        "total_steps": 20,
        "data": {"dataset": dataset, "split": "train", "batch_size": 8, "ops": OPS},
        "model": model,
        "loss": {"name": "softmax"},
        "optimizer": {
            "name": "adamw",
            "lr": 0.002,
            "warmup_steps": 5,
            "ema_decay": 0.9,
        },
        "evaluators": {"val": {**evaluator, "ops": OPS, "every_steps": 10}},
    }
    run = {
        "command": ["/usr/bin/python", "-m", "vit_jax.main", "--config=a b.py"],
        "commit": "0123456789ab",
        "versions": {"jax": "0.10.2"},
        "devices": {"count": 4, "kind": "TPU v3"},
        "parameters": 12345,
    }
    lines = [
        {"step": 10, "train/loss": 2.0, "train/images_per_second": 4.0},
        {"step": 20, "train/loss": 1.0, "train/images_per_second": 4.0},
        {"step": 20, "val/top1": 0.5, "val_ema/top1": 0.625, "val/examples": 6.0},
    ]
    description = weights(model).description()
    contents = {"config": config, "run": run, "checkpoint": description}
    for name, content in contents.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    text = "\n".join(json.dumps({"time": 1.8e9, **line}) for line in lines)
    (path / "metrics.jsonl").write_text(text)
    return path


def write_pictures(path, rng):
    for split, counts in (("train", (4, 3, 3)), ("test", (2, 1, 3))):
        for name, count in zip(CLASSES, counts, strict=True):
            folder = path / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return f"folder:{path}"


class Page(html.parser.HTMLParser):
    """Balance, references and words of a page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.ids, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        for key in ("src", "href", "xlink:href", "action", "data"):
            self.links += [found[key]] if key in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(" ".join(data.split()))

    @property
    def text(self):
        return " ".join(filter(None, self.words))


@pytest.fixture
def write(monkeypatch, capsys):
    monkeypatch.setattr(command, "start_jax", lambda: None)

    def write(workdir, model, *flags):
        checkpoint = weights(model)
        monkeypatch.setattr(convert, "load_checkpoint", lambda spec: checkpoint)
        for name in report.FLAGS:
            report.FLAGS[name].unparse()
        rest = report.FLAGS(["report", str(workdir), *flags])
        report.main(rest[1:])
        return capsys.readouterr().out

    return write


@pytest.fixture
def run(tmp_path, rng):
    def run(model):
        dataset = write_pictures(tmp_path / "data", rng)
        return write_run(tmp_path / "run", model, dataset)

    return run


def test_the_page_says_what_the_run_measured(run, write):
    workdir = run(VIT)
    printed = write(workdir, VIT)
    assert "val/top1 62.50 %" in printed
    text = (workdir / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    # Nothing is fetched: all is in the page, and no two parts share a name.
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert not re.search(r"url\((?!#)|@import|<script", text)
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    words = page.text
    assert "val top1 50.00 % 62.50 % 20" in words  # both sets of weights
    # 20 steps of 8 images at 4 a second on 4 devices.
    assert "time in updates 40s" in words
    assert "device-days 0.00185" in words
    assert "4 x TPU v3" in words
    assert "12,345" in words
    assert "python -m vit_jax.main '--config=a b.py'" in words
    for title in ("Where the model looks", "How far heads look"):
        assert title in words
    for title in ("What it knows of places", "What its first filters look for"):
        assert title in words
    assert "Not on this page" not in words
    # The first batch of training, 3 wrong and 3 right answers.
    assert text.count("<img") == 8 + 6


def test_a_model_that_sees_nothing_is_shown_as_it_is(run, write):
    # It always says cow, with e^2 / (1 + e + e^2) = 66.5 %.
    workdir = run(MIXER)
    page_file = workdir.parent / "other.html"
    write(workdir, MIXER, f"--output={page_file}")
    assert not (workdir / "report.html").exists()
    text = page_file.read_text()
    words = Page(text).text
    assert "<bee>" in words
    assert "<bee>" not in text
    matrix = re.search(r'<table class="matrix">.*?</table>', text, re.DOTALL)
    cells = re.findall(r"<td[^>]*>(\d*)</td>", matrix[0])
    assert cells == ["", "", "2", "", "", "1", "", "", "3"]
    assert "<bee> cow 2 of 2" in words
    assert "ant cow 1 of 1" in words
    assert "ant cow 66.5 % ant 24.5 % <bee> 9.0 %" in words
    assert "a Mixer has no attention to draw" in words
    assert "What its first filters look for" in words


def test_data_that_is_gone_is_said_and_the_rest_is_there(tmp_path, write):
    workdir = write_run(tmp_path / "run", MIXER, f"folder:{tmp_path / 'gone'}")
    write(workdir, MIXER)
    words = Page((workdir / "report.html").read_text()).text
    assert "Not on this page Pictures:" in words
    assert "val top1 50.00 %" in words
    assert "What its first filters look for" in words


def test_some_of_the_examples_are_said_to_be_some(run, write):
    workdir = run(MIXER)
    write(workdir, MIXER, "--examples=2")
    words = Page((workdir / "report.html").read_text()).text
    assert "evenly spread over its 6" in words
    assert "Asked again for this page: 2 pictures" in words


@pytest.mark.parametrize(
    ("model", "dataset", "epochs", "lr"),
    [
        ("ViT-L/16", "tfds:imagenet21k", "30 or 90", 1e-3),
        ("ViT-L/16", "tfrecord:gs://B/jft-*", "7 or 14", 4e-4),
        ("ViT-S/16", "tfds:imagenet2012:5.1.0 train", "300", 3e-3),
        ("R50+ViT-L/32", "jft", "7", 2e-4),
    ],
)
def test_the_row_of_table_3_is_found(model, dataset, epochs, lr):
    row = paper.find(model, dataset)
    assert (row.epochs, row.lr) == (epochs, lr)


@pytest.mark.parametrize(
    ("model", "dataset"),
    [("ViT-Ti/7", "bundled:mnist"), ("ViT-H/14", "imagenet21k"), ("Swin-T", "jft")],
)
def test_other_runs_stand_beside_no_row(model, dataset):
    assert paper.find(model, dataset) is None


def test_mistakes_are_told(tmp_path, write):
    with pytest.raises(UserError, match=r"has no config\.json, so it is not"):
        write(tmp_path, MIXER)
    with pytest.raises(UserError, match="name one workdir of a run, not 2"):
        write(tmp_path, MIXER, "another")
    with pytest.raises(UserError, match=r"must end in \.html"):
        write(tmp_path, MIXER, "--output=report.pdf")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot read"):
        write(tmp_path, MIXER)

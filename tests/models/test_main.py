# SPDX-License-Identifier: Apache-2.0
"""The zoo as a user prints it."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from vit_jax.models import list_models, published

ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "vit_jax.models", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def rows(text):
    """Cells of each line, which two spaces or more separate."""
    return [re.split(r" {2,}", line) for line in text.splitlines()]


def test_every_model_is_printed_with_what_is_known_about_it():
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    head, *table = rows(done.stdout)
    assert head[:6] == ["model", "parameters", "GFLOPs", "pixels", "preset", "top-1 %"]
    assert [row[0] for row in table] == list_models()
    by_name = {row[0]: row[1:] for row in table}
    n, d = 197, 768
    count = 12 * (12 * n * d * d + 2 * n * n * d) + 196 * d * d + d * 1000
    assert by_name["ViT-B/16"] == [
        "86,567,656",
        f"{2 * count / 1e9:.1f}",
        "224",
        "google-vit",
        "83.97",
        "ViT paper, Table 5: ImageNet-21k, then 384 px",
        "google-research/vision_transformer, models_test.py",
    ]
    assert by_name["BiT-R50x3"][4:6] == ["-", "-"]


def test_words_choose_and_the_resolution_is_free():
    done = run("vit-b/1", "R26", "--resolution=384")
    _, *table = rows(done.stdout)
    assert [row[0] for row in table] == [
        "ViT-B/14",
        "ViT-B/16",
        "Axial-ViT-B/16",
        "R26+ViT-S/32",
        "R26+ViT-B/32",
        "R50+ViT-B/16",
    ]
    assert {row[3] for row in table} == {"384"}
    assert table[0][2] == "-"  # 14 does not divide 384
    # Twice the 55.4 G multiply-adds of DeiT-B at 384 pixels (arXiv:2012.12877 has the
    # model, timm the count).
    assert float(table[1][2]) == pytest.approx(2 * 55.4, rel=0.01)


def test_costs_are_those_of_the_paper_beside_ours():
    done = run("--exaflops")
    assert done.returncode == 0
    _, *table = rows(done.stdout)
    assert len(table) == 18
    by_run = {tuple(row[:2]): row[2:] for row in table}
    assert by_run["ViT-L/16", "14"] == ["1567", "1567.1", "+0.0 %"]
    assert by_run["BiT-R50x1", "7"] == ["50", "52.5", "+5.0 %", "49.5", "-0.9 %"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["ViTB/16"], 1, "error: unknown model 'ViTB/16'; did you mean 'ViT-B/16'"),
        (["Swin", "--exaflops"], 1, "error: Table 6 has none of these models"),
        (["--resoluton=384"], 2, "did you mean --resolution?"),
        (["--help"], 0, ""),
    ],
)
def test_exit_status_says_who_can_mend_it(arguments, status, message):
    done = run(*arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if status == 0:
        assert "python -m vit_jax.models" in done.stdout
        assert "--exaflops" in done.stdout


def test_published_figures_are_of_rows_of_the_catalogue():
    models = set(published.ACCURACIES) | {row.model for row in published.JFT_COSTS}
    assert models <= set(list_models())
    for name, accuracy in published.ACCURACIES.items():
        assert 70 < accuracy.top1 < 90, name

# SPDX-License-Identifier: Apache-2.0
"""The command fewshot on classes with many images, with one, and with none."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cases import tiny
from vit_jax import command, fewshot

NAMES = ["many", "more", "some", "single", "absent"]
TRAIN = dict(zip(NAMES, (12, 11, 10, 1, 0), strict=True))
L2 = (0.5, 64.0, 1024.0)


@pytest.fixture
def data(tmp_path: pathlib.Path, rng: np.random.Generator) -> str:
    """Noisy pictures of a colour a class; three of each are for testing."""
    lines = ["image,label,split"]
    for name in NAMES:
        colour = rng.uniform(60, 190, 3)
        for number in range(TRAIN[name] + 3):
            file = f"{name}{number}.png"
            noise = rng.normal(0, 30, (tiny.SIDE, tiny.SIDE, 3))
            pixels = np.clip(colour + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / file)
            split = "train" if number < TRAIN[name] else "test"
            lines.append(f"{file},{name},{split}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    return f"csv:{tmp_path / 'list.csv'}@names=names.txt"


@pytest.fixture
def run(
    data: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> Any:
    monkeypatch.setattr(command, "start_jax", lambda: None)

    def run(weights: str) -> tuple[dict, str]:
        for name in fewshot.FLAGS:
            fewshot.FLAGS[name].unparse()
        output = tmp_path / "result.json"
        given = [f"--checkpoint={weights}", f"--dataset={data}", f"--output={output}"]
        sweep = ["--shots=1,5,10", "--seeds=2", f"--l2={','.join(map(str, L2))}"]
        fewshot.FLAGS(["fewshot", *given, *sweep, "--batch_size=4"])
        fewshot.main([])
        return json.loads(output.read_text()), capsys.readouterr().out

    return run


def test_every_regulariser_is_printed_and_no_class_is_forgotten(
    run: Any, tmp_path: pathlib.Path
):
    # Dropout is a field of the weights' model; features are taken without it.
    dropped = tiny.checkpoint({**tiny.MODEL, "dropout_rate": 0.5})
    found, printed = run(tiny.write(tmp_path, dropped))
    (tmp_path / "plain").mkdir()
    plain, _ = run(tiny.write(tmp_path / "plain"))
    assert found["results"] == plain["results"]

    rows = [line.split() for line in printed.splitlines() if " %" not in line]
    shown = {(row[0], row[1]) for row in rows if row[0].isdigit()}
    assert shown >= {(shots, f"{l2:g}") for shots in ("1", "5", "10") for l2 in L2}
    assert printed.count(" *") == 3  # of each number of shots the chosen one
    assert "no example of absent to learn from" in printed
    assert found["absent_classes"] == ["absent"]
    assert found["short_classes"] == {"1": [], "5": ["single"], "10": ["single"]}
    # All 15 test images count, the 3 of the absent class as wrong.
    assert {row["examples"] for row in found["results"]} == {15}
    assert max(row["top1"] for row in found["results"]) <= 12 / 15

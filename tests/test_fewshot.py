# SPDX-License-Identifier: Apache-2.0
"""The command fewshot on a tiny checkpoint."""

import json
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from vit_jax import command, fewshot
from vit_jax.checkpoints import native
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import build_model

ROOT = pathlib.Path(__file__).parents[1]
MODEL = {
    **{"name": "ViT-Ti/8", "num_classes": 3, "preset": "google-vit"},
    **{"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8, "resolution": 16},
}
DATA = "synthetic:3@size=16;train=30;test=12"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    model = build_model(**MODEL)
    shapes = jax.eval_shape(
        model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 16, 16, 3), "float32")
    )
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(scale=0.1, size=leaf.shape).astype(np.float32),
        shapes["params"],
    )
    content = Checkpoint(
        params,
        MODEL,
        (16, 16, 3),
        preprocessing="decode|value_range(-1, 1)",
        class_names=("0", "1", "2"),
    )
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    native.write(content, path)
    return path


@pytest.fixture
def run(checkpoint, monkeypatch, tmp_path, capsys):
    """Runs the command within this process; returns its JSON and what it printed."""
    monkeypatch.setattr(command, "start_jax", lambda: None)

    def run(*flags: str) -> tuple[dict, str]:
        for name in fewshot.FLAGS:
            fewshot.FLAGS[name].unparse()
        output = tmp_path / "result.json"
        given = [f"--checkpoint={checkpoint}", f"--output={output}"]
        fewshot.FLAGS(["fewshot", *given, f"--dataset={DATA}", *flags])
        fewshot.main([])
        return json.loads(output.read_text()), capsys.readouterr().out

    return run


def test_results_have_the_form_that_scripts_rely_on(run):
    found, printed = run("--shots=1,5", "--l2=1024,1", "--seeds=2")
    assert found["dataset"] == DATA
    assert found["feature"] == "pre_logits"
    assert found["test_split"] == "test"
    assert len(found["results"]) == 8
    first = found["results"][0]
    assert (first["shots"], first["seed"], first["l2"]) == (1, 0, 1024)
    assert first["examples"] == 12
    assert 0 <= first["top1"] <= 1
    for row in found["summary"]:
        rates = [
            r["top1"]
            for r in found["results"]
            if (r["shots"], r["l2"]) == (row["shots"], row["l2"])
        ]
        assert row["top1_mean"] == pytest.approx(np.mean(rates))
        # t(0.975, 1) = 12.706
        half = 12.706 * np.std(rates, ddof=1) / np.sqrt(2)
        assert row["top1_ci95"] == pytest.approx(half, rel=1e-4)
    assert sum(row["chosen"] for row in found["summary"]) == 2
    assert printed.count(" *") == 2


def test_the_batch_size_changes_nothing(run):
    flags = ("--shots=5", "--seeds=1", "--feature=block00/output:mean")
    one, other = (run(*flags, f"--batch_size={size}")[0] for size in (3, 64))
    assert one["results"] == other["results"]


def test_neighbours_and_probe_take_the_whole_split(run):
    for method, parameter in [("knn", "k"), ("probe", "l2")]:
        found, _ = run(f"--method={method}")
        (row,) = found["results"]
        assert row["shots"] == "all"
        assert parameter in row
        assert found["summary"][0]["top1_ci95"] is None


def test_another_resolution_resizes_positions_and_preprocessing(run):
    found, _ = run("--shots=1", "--seeds=1", "--resolution=24")
    assert found["preprocessing"] == "decode|resize(24)|value_range(-1, 1)"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shots=five"], "'five' is no number"),
        (["--shots=0"], "shots are 0"),
        (["--feature=logit"], "did you mean 'logits'"),
        (["--test_split=tset"], "no split 'tset'"),
        (["--train_split=trian"], "no split 'trian'"),
        (["--l2=0"], "l2 is 0; give a number above 0"),
        (["--ops=decod"], "did you mean 'decode'"),
        (["--checkpoint=nowhere.npz"], "nowhere.npz"),
    ],
)
def test_a_mistake_is_named(run, flags, message):
    with pytest.raises(UserError, match=message):
        run(*flags)


def test_arguments_that_are_no_flags_are_refused():
    with pytest.raises(UserError, match="unexpected argument 'x'; fewshot takes flags"):
        fewshot.main(["x"])


@pytest.mark.parametrize("name", ["fewshot", "evaluate"])
def test_help_is_light_and_shows_an_example(name: str):
    code = (
        f"import sys, vit_jax.{name} as module\n"
        "heavy = {'jax', 'tensorflow', 'scipy'} & set(sys.modules)\n"
        "print(heavy or module.__doc__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert f"python -m vit_jax.{name} --checkpoint=" in done.stdout

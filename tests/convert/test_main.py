# SPDX-License-Identifier: Apache-2.0
"""The converter as a user runs it, and the comparison of what it wrote."""

import dataclasses
import importlib
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from vit_jax import command, trees
from vit_jax.checkpoints import native
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import load_checkpoint, verify, writing
from vit_jax.errors import UserError
from vit_jax.models import build_model

FAMILIES: dict[str, dict[str, Any]] = {
    "vit": {
        "name": "ViT-S/8",
        "width": 32,
        "depth": 2,
        "num_heads": 2,
        "mlp_dim": 64,
    },
    "swin": {
        "name": "Swin-T",
        "width": 32,
        "depths": [1, 1],
        "num_heads": [1, 2],
        "window_size": 2,
        "resolution": 16,
    },
}


def make(family: str = "vit", seed: int = 0) -> Checkpoint:
    fields = {**FAMILIES[family], "num_classes": 6}
    model = build_model(**fields)
    image = jax.ShapeDtypeStruct((1, 16, 16, 3), "float32")
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    rng = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(np.float32), shapes
    )
    return Checkpoint(
        params=params,
        model=fields,
        image_shape=(16, 16, 3),
        preprocessing="decode|resize(16)|value_range(-1, 1)",
        class_names=tuple("abcdef"),
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("native") / "tiny.safetensors")
    native.write(make(), path)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command in this process, without the start of JAX."""
    module = importlib.import_module("vit_jax.convert.__main__")
    monkeypatch.setattr(command, "start_jax", lambda: None)
    module.FLAGS.unparse_flags()
    for name in module.FLAGS:
        module.FLAGS[name].unparse()
    return module.main(module.FLAGS(["convert", *arguments])[1:])


@pytest.mark.parametrize("form", ["native", "google", "timm", "huggingface"])
def test_there_and_back_is_bit_equal_and_twice_changes_nothing(
    form: str, file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    there = str(tmp_path / "there.safetensors")
    assert run(monkeypatch, f"--input={file}", f"--output={there}", f"--to={form}") == 0
    back = load_checkpoint(there)
    expected, found = (trees.flatten(c.params) for c in (load_checkpoint(file), back))
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    again = str(tmp_path / "again.safetensors")
    arguments = (f"--input={there}", f"--output={again}", f"--to={form}")
    assert run(monkeypatch, *arguments) == 0
    one, two = (pathlib.Path(path) for path in (there, again))
    files = [one] if one.is_file() else sorted(one.iterdir())
    for each in files:
        other = two if one.is_file() else two / each.name
        assert each.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("form", ["timm", "swin", "huggingface", "native"])
def test_swin_goes_there_and_back_too(form: str, tmp_path: pathlib.Path):
    checkpoint = make("swin")
    path = str(tmp_path / "swin.safetensors")
    writing.write_checkpoint(checkpoint, path, form)
    expected = trees.flatten(checkpoint.params)
    found = trees.flatten(load_checkpoint(path).params)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_class_names_and_preprocessing_travel(tmp_path: pathlib.Path):
    for form in ("native", "timm", "huggingface"):
        path = str(tmp_path / f"{form}.safetensors")
        writing.write_checkpoint(make(), path, form)
        read = load_checkpoint(path)
        assert read.class_names == tuple("abcdef")
        assert "resize(16" in str(read.preprocessing)


def test_verify_prints_a_table_and_a_verdict(
    file: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    out = str(tmp_path / "x.npz")
    arguments = (f"--input={file}", f"--output={out}", "--to=google", "--verify")
    assert run(monkeypatch, *arguments) == 0
    printed = capsys.readouterr().out
    assert f"compared with our own reading of {out}" in printed
    for image in ("random", "constant", "real"):
        assert f"{image:<9}block01/output" in printed
    assert "same five best classes: 100 % of images" in printed
    assert "verdict: equal within 0.0001" in printed


def test_a_difference_is_found_where_it_begins_and_fails(tmp_path: pathlib.Path):
    checkpoint = make()
    changed = dict(trees.flatten(checkpoint.params))
    name = "Transformer/encoderblock_1/MlpBlock_0/Dense_0/kernel"
    changed[name] = changed[name] * 1.01
    path = str(tmp_path / "x.safetensors")
    native.write(dataclasses.replace(checkpoint, params=trees.unflatten(changed)), path)
    verdict = verify.verify(checkpoint, path, "native")
    assert not verdict.equal
    over = {d.name for d in verdict.differences if d.relative > 1e-4}
    assert "block00/output" not in over
    assert {"block01/mlp", "block01/output", "logits"} <= over
    assert "NOT equal" in verdict.table()


def test_a_soup_is_the_mean_of_its_weights(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    makes = [make(seed=seed) for seed in range(3)]
    paths = [str(tmp_path / f"{i}.safetensors") for i in range(3)]
    for checkpoint, path in zip(makes, paths, strict=True):
        native.write(checkpoint, path)
    out = str(tmp_path / "soup.safetensors")
    arguments = (f"--input={','.join(paths)}", f"--output={out}", "--to=native")
    assert run(monkeypatch, *arguments) == 0
    soup = trees.flatten(load_checkpoint(out).params)
    flat = [trees.flatten(checkpoint.params) for checkpoint in makes]
    for name, array in soup.items():
        mean = np.mean([each[name] for each in flat], axis=0, dtype=np.float64)
        np.testing.assert_allclose(array, mean, rtol=1e-6, atol=1e-7)


def test_a_soup_of_other_classes_is_refused():
    other = dataclasses.replace(make(), class_names=tuple("abcdeg"))
    with pytest.raises(UserError, match="checkpoint 2 has another class_names"):
        writing.average([make(), other])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to=tim"], "did you mean 'timm'"),
        (["--to=timm"], "must end in .safetensors"),
        (["--to=swin"], "is no Swin"),
        (["--to=native", "--preset=dinov3"], "did you mean 'dinov2'"),
        (["--to=native", "--image=none.png"], "no picture 'none.png'"),
        (["--to=native", "--input=none.npz"], "no checkpoint 'none.npz'"),
        (["--to=native", "more"], "unexpected argument 'more'"),
    ],
)
def test_a_mistake_is_told(
    arguments: list[str],
    message: str,
    file: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    out = f"--output={tmp_path / 'x'}"
    with pytest.raises(UserError, match=message):
        run(monkeypatch, f"--input={file}", out, *arguments)
    assert not (tmp_path / "x").exists()


def test_a_file_that_exists_is_not_written_over(
    file: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "x").write_text("mine")
    out = f"--output={tmp_path / 'x'}"
    with pytest.raises(UserError, match="exists"):
        run(monkeypatch, f"--input={file}", out, "--to=native")
    assert (tmp_path / "x").read_text() == "mine"


def test_an_unknown_layout_is_named(tmp_path: pathlib.Path):
    from vit_jax.checkpoints import files

    path = str(tmp_path / "x.safetensors")
    files.write_safetensors(path, {"language.wte": np.zeros((2, 2), np.float32)})
    with pytest.raises(UserError, match=r"no known layout, such as language\.wte"):
        load_checkpoint(path)

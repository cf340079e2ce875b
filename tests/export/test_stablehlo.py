# SPDX-License-Identifier: Apache-2.0
"""Exported StableHLO runs where nothing of this package can be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.export import made_up
from vit_jax.errors import UserError
from vit_jax.models import FAMILIES

BATCHES = (1, 5)
# Reads every NAME.stablehlo in the folder, and what to run it on from NAME.npz.
READER = """
import pathlib, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vit_jax", "flax", "ml_collections"):
            raise ImportError(name)

sys.meta_path.insert(0, Nothing())
import jax
import numpy as np
from jax import export

for path in sorted(pathlib.Path(".").glob("*.stablehlo")):
    function = export.deserialize(path.read_bytes())
    images = np.load(path.with_suffix(".npz"))
    logits = {name: function.call(image) for name, image in images.items()}
    np.savez(path.with_suffix(".out.npz"), **logits)
assert not {"vit_jax", "flax"} & set(sys.modules)
print(jax.default_backend())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export of each form, and what another process made of it."""
    from vit_jax.export import export_stablehlo

    folder = tmp_path_factory.mktemp("exported")
    for form in made_up.FORMS:
        checkpoint = made_up.make(form)
        export_stablehlo(checkpoint, str(folder / f"{form}.stablehlo"))
        images = {str(n): made_up.images(checkpoint, n) for n in BATCHES}
        np.savez(folder / f"{form}.npz", **images)
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "XLA_FLAGS")
    } | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiles in half the time
    done = subprocess.run(
        [sys.executable, "-I", "-c", READER],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "cpu\n", done.stderr
    return folder


def test_each_family_is_exported_here():
    assert set(FAMILIES) <= set(made_up.FORMS)


@pytest.mark.parametrize("form", made_up.FORMS)
def test_another_process_gets_the_same_logits(folder: Path, form: str):
    checkpoint = made_up.make(form)
    with np.load(folder / f"{form}.out.npz") as file:
        found = dict(file)
    for batch in BATCHES:
        expected = made_up.logits(checkpoint, made_up.images(checkpoint, batch))
        assert found[str(batch)].dtype == np.float32
        assert found[str(batch)].shape == (batch, 3)
        assert np.std(expected) > 1e-3
        np.testing.assert_allclose(found[str(batch)], expected, rtol=1e-5, atol=1e-5)


def test_a_file_holds_the_program_of_each_platform(folder: Path):
    from jax import export

    function = export.deserialize((folder / "vit.stablehlo").read_bytes())
    assert function.platforms == ("cpu", "cuda", "tpu")
    (image,), (logits,) = function.in_avals, function.out_avals
    assert str(image.shape[0]) == str(logits.shape[0]) == "b"
    assert image.shape[1:] == (8, 12, 3)
    assert logits.shape[1:] == (3,)


def test_the_description_says_what_the_numbers_mean(folder: Path):
    description = json.loads((folder / "vit.stablehlo.json").read_text())
    assert description["form"] == "stablehlo"
    assert description["image_shape"] == [8, 12, 3]
    assert description["input"] == "image: float32 (b, 8, 12, 3), preprocessed"
    assert description["output"] == "logits: float32 (b, 3)"
    assert description["preprocessing"] == "decode|resize(8)|value_range(-1, 1)"
    assert description["class_names"] == ["ant", "bee", "cat"]
    assert description["loss"] == "softmax"
    assert description["model"]["name"] == "ViT-Ti/4"
    assert description["platforms"] == ["cpu", "cuda", "tpu"]
    assert not list(folder.glob("*.part"))


def test_what_cannot_be_exported_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from vit_jax.export import export_stablehlo, forward

    path = str(tmp_path / "a.stablehlo")
    with pytest.raises(UserError, match="has no head"):
        export_stablehlo(made_up.make("vit", num_classes=0), path)
    monkeypatch.setattr(forward, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match=r"one stablehlo file holds at most 0\.0 GB"):
        export_stablehlo(made_up.make("vit"), path)
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/a\.stablehlo"):
        export_stablehlo(made_up.make("vit"), str(tmp_path / "file" / "a.stablehlo"))
    assert not list(tmp_path.glob("a.*"))

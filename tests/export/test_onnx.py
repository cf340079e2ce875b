# SPDX-License-Identifier: Apache-2.0
"""Exported ONNX, run by ONNX Runtime; `make test-onnx` installs what that needs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.export import made_up
from vit_jax.errors import UserError


def test_what_is_missing_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from vit_jax.export import export_onnx

    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    with pytest.raises(UserError, match=r"needs the extra onnx .*; run: pip install"):
        export_onnx(made_up.make("vit"), str(tmp_path / "a.onnx"))


@pytest.mark.filterwarnings("ignore")  # of jax2onnx and ONNX, about themselves
@pytest.mark.parametrize("form", made_up.FORMS)
def test_onnx_runtime_gets_the_same_logits(tmp_path: Path, form: str):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("jax2onnx")
    from vit_jax.export import export_onnx

    checkpoint = made_up.make(form)
    path = tmp_path / "folder" / "model.onnx"
    export_onnx(checkpoint, str(path))
    session = onnxruntime.InferenceSession(str(path))
    (image,), (output,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type) == ("image", "tensor(float)")
    assert image.shape[1:] == list(checkpoint.image_shape)
    assert isinstance(image.shape[0], str)  # a name: any batch size
    assert (output.name, output.type) == ("logits", "tensor(float)")
    for batch in (1, 5):
        inputs = made_up.images(checkpoint, batch)
        (found,) = session.run(["logits"], {"image": inputs})
        expected = made_up.logits(checkpoint, inputs, dtype="float32")
        assert found.shape == (batch, 3)
        assert np.std(expected) > 1e-3
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    description = json.loads(Path(f"{path}.json").read_text())
    assert description["form"] == "onnx"
    assert description["class_names"] == ["ant", "bee", "cat"]

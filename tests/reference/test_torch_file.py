# SPDX-License-Identifier: Apache-2.0
"""Files that torch itself wrote."""

import argparse
import pathlib
import shlex
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from vit_jax.checkpoints import files, torch_file
from vit_jax.errors import UserError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.reference

STATE = {
    "patch_embed.weight": torch.arange(6.0).reshape(2, 3).T,
    "head.bias": torch.tensor([1.0, -2.5], dtype=torch.bfloat16),
    "half": torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float16)),
    "count": torch.tensor(3),
}


def save(path: pathlib.Path, content: object, **kwargs: object) -> pathlib.Path:
    torch.save(content, path, **kwargs)
    return path


def assert_state(tensors: dict[str, np.ndarray]) -> None:
    assert list(tensors) == list(STATE)
    assert tensors["patch_embed.weight"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert tensors["head.bias"].dtype == ml_dtypes.bfloat16
    assert tensors["head.bias"].astype(np.float32).tolist() == [1.0, -2.5]
    assert tensors["half"].dtype == np.float16
    assert tensors["count"] == 3


@pytest.mark.parametrize("zipped", [True, False])
def test_both_forms_of_torch_are_read(tmp_path, zipped):
    path = save(tmp_path / "a", STATE, _use_new_zipfile_serialization=zipped)
    read = files.read_tensors(path)
    assert read.form == "torch"
    assert_state(read.tensors)


@pytest.mark.parametrize("key", torch_file.WRAPPERS)
def test_wrappers_are_taken_off_and_told(tmp_path, caplog, key):
    inner = {"module." + name: tensor for name, tensor in STATE.items()}
    path = save(tmp_path / "a", {"epoch": torch.tensor(3), "lr": 0.1, key: inner})
    with caplog.at_level("INFO", logger="absl"):
        assert_state(files.read_tensors(path).tensors)
    assert f"took the tensors in {key}" in caplog.text
    assert "took 'module.' off every name" in caplog.text


def test_averaged_weights_come_first(tmp_path):
    content = {"state_dict": {"a": torch.zeros(1)}, "state_dict_ema": STATE}
    assert_state(files.read_tensors(save(tmp_path / "a", content)).tensors)


def test_what_is_no_tensor_is_left_out_and_told(tmp_path, caplog):
    path = save(tmp_path / "a", {"model": STATE | {"version": 2}})
    with caplog.at_level("INFO", logger="absl"):
        assert_state(files.read_tensors(path).tensors)
    assert "left out what is no tensor: version" in caplog.text


def test_a_folder_is_read_from_its_file_of_torch(tmp_path):
    save(tmp_path / "pytorch_model.bin", STATE)
    assert_state(files.read_directory(tmp_path).tensors)


def test_other_objects_are_refused(tmp_path):
    path = save(tmp_path / "a", {"model": STATE, "args": argparse.Namespace(lr=1)})
    with pytest.raises(UserError, match="other Python objects than tensors"):
        files.read_tensors(path)


def test_a_file_without_tensors_is_told(tmp_path):
    with pytest.raises(UserError, match=r"no tensors at its top .* holds epoch, lr"):
        files.read_tensors(save(tmp_path / "a", {"epoch": 3, "lr": 0.1}))
    with pytest.raises(UserError, match=r"no tensors at its top .* holds a Tensor"):
        files.read_tensors(save(tmp_path / "a", torch.ones(2)))


def test_damage_is_told(tmp_path):
    path = save(tmp_path / "a", STATE, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"torch cannot read .*a "):
        files.read_tensors(path)


def test_a_tensor_that_numpy_does_not_have_is_told(tmp_path):
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(UserError, match=r"a in .* is a torch.sparse_coo tensor"):
        files.read_tensors(save(tmp_path / "a", {"a": sparse}))


def test_the_recipe_makes_a_file_that_can_be_read(tmp_path):
    path = save(tmp_path / "a.pth", {"model": STATE})
    _, *arguments = shlex.split(torch_file.recipe(str(path)))
    subprocess.run([sys.executable, *arguments], cwd=tmp_path, check=True)
    tensors = files.read_tensors(tmp_path / "model.safetensors").tensors
    assert_state({name: tensors[name] for name in STATE})

# SPDX-License-Identifier: Apache-2.0
import dataclasses

import ml_dtypes
import numpy as np
import pytest
import safetensors

from vit_jax.checkpoints import files, native
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError

CHECKPOINT = Checkpoint(
    params={
        "cls": np.ones((1, 1, 2), ml_dtypes.bfloat16),
        "head": {"kernel": np.eye(2, dtype=np.float32), "bias": np.zeros(2)},
    },
    model={"name": "ViT-B/16", "num_classes": 2, "preset": "google-vit"},
    image_shape=(224, 192, 3),
    preprocessing="decode|resize(224)|value_range(-1, 1)",
    class_names=("Katze", "Hündin"),
    loss="sigmoid",
    averaged=True,
)


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    native.write(CHECKPOINT, tmp_path / "a.safetensors")
    content = files.read_tensors(tmp_path / "a.safetensors")
    assert native.matches(content.metadata)
    read = native.read(content)
    for field in dataclasses.fields(Checkpoint):
        if field.name != "params":
            assert getattr(read, field.name) == getattr(CHECKPOINT, field.name)
    assert sorted(read.params) == ["cls", "head"]
    assert read.params["cls"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read.params["head"]["kernel"], np.eye(2))


def test_the_names_in_the_file_are_ours_and_slash_joined(tmp_path):
    native.write(CHECKPOINT, tmp_path / "a.safetensors")
    with safetensors.safe_open(tmp_path / "a.safetensors", framework="np") as file:
        assert sorted(file.keys()) == ["cls", "head/bias", "head/kernel"]
        assert list(file.metadata()) == ["vit_jax"]


def test_writing_twice_gives_equal_bytes(tmp_path):
    native.write(CHECKPOINT, tmp_path / "a")
    native.write(native.read(files.read_tensors(tmp_path / "a")), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_existing_file_is_kept_unless_told(tmp_path):
    native.write(CHECKPOINT, tmp_path / "a")
    with pytest.raises(UserError, match="a exists; give another --output"):
        native.write(CHECKPOINT, tmp_path / "a")
    native.write(CHECKPOINT, tmp_path / "a", overwrite=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the description in the file's metadata, 'vit_jax', is damaged"),
        ("[1]", "the description in the file's metadata, 'vit_jax', is damaged"),
        ('{"model": {"name": "ViT-B/16"}}', "metadata 'vit_jax' has no 'image_shape'"),
    ],
)
def test_a_damaged_description_is_told(text, message):
    file = files.TensorFile({"a": np.ones(1)}, {"vit_jax": text}, "safetensors")
    with pytest.raises(UserError, match=message):
        native.read(file)


def test_files_of_others_do_not_match():
    assert not native.matches({"format": "pt"})

# SPDX-License-Identifier: Apache-2.0
import json
import pathlib

import numpy as np
import pytest

from vit_jax.checkpoints import files
from vit_jax.errors import UserError

TENSORS = {
    "head/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "head/bias": np.array([1.5, -2.0], np.float16),
    "step": np.array(7, np.int64),
}


def assert_same(actual: dict, expected: dict) -> None:
    assert sorted(actual) == sorted(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        np.testing.assert_array_equal(actual[name], array)


def write_shards(folder: pathlib.Path) -> None:
    folder.mkdir()
    files.write_safetensors(folder / "model-1.safetensors", {"a": np.ones(2)})
    files.write_safetensors(folder / "model-2.safetensors", {"b": np.zeros(3)})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "dat"])
def test_the_suffix_does_not_matter(tmp_path, suffix):
    files.write_npz(tmp_path / f"a.{suffix}", TENSORS)
    read = files.read_tensors(tmp_path / f"a.{suffix}")
    assert read.form == "npz"
    assert read.metadata == {}
    assert_same(read.tensors, TENSORS)

    files.write_safetensors(tmp_path / f"b.{suffix}", TENSORS, {"made": "by hand"})
    read = files.read_tensors(str(tmp_path / f"b.{suffix}"))
    assert read.form == "safetensors"
    assert read.metadata == {"made": "by hand"}
    assert_same(read.tensors, TENSORS)


def test_arrays_can_be_written_to_without_changing_the_file(tmp_path):
    files.write_safetensors(tmp_path / "a", TENSORS)
    before = (tmp_path / "a").read_bytes()
    files.read_tensors(tmp_path / "a").tensors["head/kernel"][0] = 5
    assert (tmp_path / "a").read_bytes() == before


def test_arrays_outlive_the_file(tmp_path):
    files.write_safetensors(tmp_path / "a", TENSORS)
    tensors = files.read_tensors(tmp_path / "a").tensors
    files.write_safetensors(tmp_path / "a", {"b": np.ones(1)}, overwrite=True)
    assert_same(tensors, TENSORS)


def test_a_bucket_is_read_like_a_folder(tmp_path, monkeypatch):
    files.write_npz(tmp_path / "a", TENSORS)
    files.write_safetensors(tmp_path / "b", TENSORS)
    asked = []

    class Bucket(type(tmp_path)):
        def read_bytes(self) -> bytes:
            asked.append(str(self))
            return (tmp_path / self.name).read_bytes()

    monkeypatch.setattr(files.epath, "Path", Bucket)
    assert_same(files.read_tensors("gs://bucket/a").tensors, TENSORS)
    assert_same(files.read_tensors("gs://bucket/b").tensors, TENSORS)
    assert len(asked) == 2


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.module."])
def test_what_wrappers_put_before_each_name_is_taken_off(tmp_path, prefix):
    bare = {"blocks.0.weight": np.ones(2), "head.bias": np.zeros(1)}
    files.write_safetensors(tmp_path / "a", {prefix + k: v for k, v in bare.items()})
    assert_same(files.read_tensors(tmp_path / "a").tensors, bare)


def test_a_prefix_of_some_names_stays(tmp_path):
    tensors = {"model.weight": np.ones(2), "bias": np.zeros(1)}
    files.write_safetensors(tmp_path / "a", tensors)
    assert_same(files.read_tensors(tmp_path / "a").tensors, tensors)


def test_of_images_and_texts_the_image_tower_is_taken_and_told(tmp_path, caplog):
    tensors = {"visual.trunk.cls_token": np.ones(2), "text.weight": np.zeros(1)}
    files.write_safetensors(tmp_path / "a", tensors)
    with caplog.at_level("INFO", logger="absl"):
        read = files.read_tensors(tmp_path / "a")
    assert_same(read.tensors, {"cls_token": np.ones(2)})
    assert "1 of 2 arrays" in caplog.text


def test_a_folder_is_read_from_its_file(tmp_path):
    files.write_safetensors(tmp_path / "model.safetensors", TENSORS)
    assert_same(files.read_directory(tmp_path).tensors, TENSORS)


def test_a_folder_is_read_from_its_shards(tmp_path):
    write_shards(tmp_path / "a")
    read = files.read_directory(tmp_path / "a")
    assert read.form == "safetensors"
    assert_same(read.tensors, {"a": np.ones(2), "b": np.zeros(3)})


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is missing or damaged"),
        ('{"weight_map": ["a"]}', "is missing or damaged"),
        ('{"weight_map": {"a": "../a"}}', "'../a', which is not in its folder"),
        ('{"weight_map": {"a": "model-3.safetensors"}}', r"no file .*model-3"),
        (
            '{"weight_map": {"c": "model-1.safetensors"}}',
            "1 arrays are missing .* c in model-1",
        ),
    ],
)
def test_a_broken_index_is_told(tmp_path, index, message):
    write_shards(tmp_path / "a")
    (tmp_path / "a/model.safetensors.index.json").write_text(index)
    with pytest.raises(UserError, match=message):
        files.read_directory(tmp_path / "a")


def test_a_folder_without_weights_is_told(tmp_path):
    (tmp_path / "tf_model.h5").write_bytes(b"\x89HDF")
    with pytest.raises(UserError, match=r"has none of .* \(it has tf_model.h5\)"):
        files.read_directory(tmp_path)
    with pytest.raises(UserError, match="no folder"):
        files.read_directory(tmp_path / "none")


def test_what_cannot_be_opened_is_told(tmp_path):
    (tmp_path / "model.npz").touch()
    with pytest.raises(UserError, match=r"no file .*modle.npz; did you mean model.npz"):
        files.read_tensors(tmp_path / "modle.npz")
    with pytest.raises(UserError, match=r"there is no folder .*none either"):
        files.read_tensors(tmp_path / "none/a.npz")
    with pytest.raises(UserError, match="is a folder; name a file in it"):
        files.read_tensors(tmp_path)
    with pytest.raises(UserError, match=r"cannot read .*Not a directory"):
        files.read_tensors(tmp_path / "model.npz/a")


def test_a_file_without_arrays_is_told(tmp_path):
    files.write_safetensors(tmp_path / "a", {}, {"made": "by hand"})
    with pytest.raises(UserError, match="holds no arrays"):
        files.read_tensors(tmp_path / "a")

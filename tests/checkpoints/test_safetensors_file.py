# SPDX-License-Identifier: Apache-2.0
import io
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from vit_jax.checkpoints import safetensors_file
from vit_jax.errors import UserError

TENSORS = {
    "small": np.array([True, False, True]),
    "head.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bfloat": np.array([[1.0, -2.5]], ml_dtypes.bfloat16),
    "half": np.array([0.5], np.float16),
    "scalar": np.array(7, np.int64),
    "none": np.zeros((0, 4), np.float32),
    "double": np.array([np.pi]),
}


def written(tensors: dict, metadata: dict | None = None) -> bytes:
    """Makes a file by the format's own words, without the code under test."""
    header: dict = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, array) in tensors.items():
        places = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": places}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def read(content: bytes) -> tuple[dict, dict]:
    return safetensors_file.read(io.BytesIO(content), "a.safetensors")


def test_the_library_reads_what_is_written(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors_file.write_safetensors(path, TENSORS, {"b": "2", "a": "é"})
    with safetensors.safe_open(path, framework="np") as file:
        assert file.metadata() == {"a": "é", "b": "2"}
        assert sorted(file.keys()) == sorted(TENSORS)
        for name, array in TENSORS.items():
            assert file.get_tensor(name).dtype == array.dtype
            np.testing.assert_array_equal(file.get_tensor(name), array)


def test_what_the_library_writes_is_read(tmp_path):
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(TENSORS, path, {"made": "there"})
    with path.open("rb") as file:
        tensors, metadata = safetensors_file.read(file, "a")
    assert metadata == {"made": "there"}
    assert sorted(tensors) == sorted(TENSORS)
    for name, array in TENSORS.items():
        assert tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(tensors[name], array)


def test_the_bytes_are_those_of_the_library(tmp_path):
    tensors = {"b": np.ones((2, 3), np.float32), "a": np.zeros(5, np.float32)}
    safetensors_file.write_safetensors(tmp_path / "a", tensors, {"format": "pt"})
    safetensors.numpy.save_file(tensors, tmp_path / "b", {"format": "pt"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_equal_arrays_give_equal_bytes(tmp_path):
    backwards = {
        name: np.asarray(TENSORS[name], order="F") for name in reversed(TENSORS)
    }
    backwards["double"] = backwards["double"].astype(">f8")
    safetensors_file.write_safetensors(tmp_path / "a", TENSORS, {"b": "2", "a": "1"})
    safetensors_file.write_safetensors(tmp_path / "b", backwards, {"a": "1", "b": "2"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_every_array_is_aligned(tmp_path):
    safetensors_file.write_safetensors(tmp_path / "a", TENSORS)
    with (tmp_path / "a").open("rb") as file:
        tensors, _ = safetensors_file.read(file, "a")
    assert all(array.flags.aligned for array in tensors.values())


def test_small_floats_are_read():
    # 1.0 is 0x38 in four bits of exponent with bias 7, 0x3c in five with bias 15.
    content = written(
        {
            "a": ("F8_E4M3", np.array([0x38], np.uint8)),
            "b": ("F8_E5M2", np.array([0x3C], np.uint8)),
        }
    )
    tensors, _ = read(content)
    assert [float(tensors[name][0]) for name in "ab"] == [1.0, 1.0]


def test_arrays_at_odd_places_are_read():
    content = written(
        {"a": ("U8", np.array([1], np.uint8)), "b": ("F64", np.array([np.pi]))}
    )
    assert read(content)[0]["b"].tolist() == [np.pi]


def test_a_file_that_is_cut_short_is_told():
    content = written({"a": ("F32", np.zeros(4, np.float32))})
    with pytest.raises(UserError, match=rf"has {len(content) - 1} bytes, and its head"):
        read(content[:-1])
    with pytest.raises(UserError, match=r"is cut short: it has 20 bytes"):
        read(content[:20])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "F4"}, "unknown dtype F4"),
        ({"shape": [3]}, "16 bytes for an array of shape"),
        ({"shape": [-2, -2]}, "a negative size"),
        ({"shape": [4.0]}, "cannot be interpreted as an integer"),
        ({"data_offsets": [-16, 0]}, "a negative size"),
        ({"data_offsets": [0]}, "not enough values"),
    ],
)
def test_a_header_that_contradicts_itself_is_told(fields, message):
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]} | fields
    text = json.dumps({"a": entry}).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(16)
    with pytest.raises(UserError, match=message):
        read(content)


@pytest.mark.parametrize("text", [b"{not JSON", b"[1, 2]", b'{"a": 1}', b"{\xff}"])
def test_a_header_of_another_form_is_told(text):
    with pytest.raises(
        UserError, match=r"header of a.safetensors is not that of a saf"
    ):
        read(len(text).to_bytes(8, "little") + text)


def test_a_dtype_that_the_format_does_not_have_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot hold a, whose dtype is complex128"):
        safetensors_file.write_safetensors(tmp_path / "a", {"a": np.ones(1, complex)})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_unless_told(tmp_path):
    safetensors_file.write_safetensors(tmp_path / "a", TENSORS)
    with pytest.raises(UserError, match="a exists; give another --output"):
        safetensors_file.write_safetensors(tmp_path / "a", {})
    safetensors_file.write_safetensors(tmp_path / "a", {}, overwrite=True)
    assert (tmp_path / "a").read_bytes() == b"\x08\0\0\0\0\0\0\0{}      "

# SPDX-License-Identifier: Apache-2.0
import io
import zipfile

import ml_dtypes
import numpy as np
import pytest

from vit_jax.checkpoints import npz
from vit_jax.errors import UserError

TENSORS = {
    "Transformer/encoderblock_0/LayerNorm_0/scale": np.float32([1, 2, 3]),
    "cls": np.arange(12, dtype=np.float16).reshape(3, 4),
    "step": np.array(3, np.int32),
    "none": np.zeros((0, 2), np.float64),
}


def read(content: bytes) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return npz.read(archive, "a.npz")


def saved(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def test_the_bytes_are_those_of_numpy(tmp_path):
    npz.write_npz(tmp_path / "a.npz", TENSORS)
    assert (tmp_path / "a.npz").read_bytes() == saved(**TENSORS)


def test_the_bytes_do_not_depend_on_how_arrays_lie_in_memory(tmp_path):
    npz.write_npz(tmp_path / "a.npz", TENSORS)
    turned = {name: np.asarray(array, order="F") for name, array in TENSORS.items()}
    npz.write_npz(tmp_path / "b.npz", turned)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_numpy_reads_what_is_written(tmp_path):
    # These two are names of arguments of np.savez.
    tensors = {"file": np.ones(2), "allow_pickle": np.zeros(3), **TENSORS}
    npz.write_npz(tmp_path / "a.npz", tensors)
    with np.load(tmp_path / "a.npz") as loaded:
        assert loaded.files == list(tensors)
        for name, array in tensors.items():
            assert loaded[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[name], array)


def test_bfloat16_is_written_as_numpy_does_and_read_as_what_it_is(tmp_path, caplog):
    # 1.0 is 0x3f80, and -2.5 is 0xc020.
    tensors = {"a": np.array([1.0, -2.5], ml_dtypes.bfloat16), "b": np.ones(1)}
    npz.write_npz(tmp_path / "a.npz", tensors)
    content = (tmp_path / "a.npz").read_bytes()
    assert content == saved(**tensors)
    assert b"\x80\x3f\x20\xc0" in content
    with np.load(tmp_path / "a.npz") as loaded:
        assert loaded["a"].dtype == "V2"
    with caplog.at_level("INFO", logger="absl"):
        loaded = read(content)
    assert loaded["a"].dtype == ml_dtypes.bfloat16
    assert loaded["a"].astype(np.float32).tolist() == [1.0, -2.5]
    assert loaded["b"].dtype == np.float64
    assert "1 arrays of dtype V2 are read as bfloat16" in caplog.text


def test_compressed_archives_are_read():
    stream = io.BytesIO()
    np.savez_compressed(stream, **TENSORS)
    loaded = read(stream.getvalue())
    np.testing.assert_array_equal(loaded["cls"], TENSORS["cls"])


def test_a_member_that_is_no_array_is_left_out_and_told(caplog):
    stream = io.BytesIO(saved(a=np.ones(1)))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("README.txt", "hello")
    with caplog.at_level("INFO", logger="absl"):
        assert list(read(stream.getvalue())) == ["a"]
    assert "left out README.txt" in caplog.text


def test_arrays_of_objects_are_refused():
    content = saved(a=np.array([{"b": 1}], dtype=object))
    with pytest.raises(UserError, match=r"a in a.npz is an array of Python objects"):
        read(content)


def test_a_dtype_that_numpy_does_not_know_is_refused():
    with pytest.raises(UserError, match=r"a in a.npz has the dtype .V1"):
        read(saved(a=np.ones(2, ml_dtypes.float8_e4m3fn)))


def test_damage_is_told():
    content = bytearray(saved(a=np.arange(1000)))
    content[len(content) // 2] ^= 1
    with pytest.raises(UserError, match=r"a in a.npz is damaged \(Bad CRC-32"):
        read(bytes(content))
    content = saved(a=np.ones(3)).replace(b"'shape': (3,)", b"'shape': (9,)")
    with pytest.raises(UserError, match=r"a in a.npz is damaged"):
        read(content)


def test_an_existing_file_is_kept_unless_told(tmp_path):
    npz.write_npz(tmp_path / "a.npz", TENSORS)
    with pytest.raises(UserError, match=r"a.npz exists; give another --output"):
        npz.write_npz(tmp_path / "a.npz", {})
    npz.write_npz(tmp_path / "a.npz", {"b": np.ones(1)}, overwrite=True)
    assert list(read((tmp_path / "a.npz").read_bytes())) == ["b"]

# SPDX-License-Identifier: Apache-2.0
import io
import pickle
import zipfile

import numpy as np
import pytest

from vit_jax.checkpoints.recognise import form_of
from vit_jax.errors import UserError

# The first bytes of torch.save(..., _use_new_zipfile_serialization=False).
TORCH_1 = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")


def zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"0")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "form"),
    [
        (zipped("head/kernel.npy"), "npz"),
        (zipped("archive/data.pkl", "archive/data/0"), "torch"),
        (zipped("data.pkl"), "torch"),
        (TORCH_1 + b"\x80\x02M\xe9\x03.", "torch"),
        (b"\x02\0\0\0\0\0\0\0{}", "safetensors"),
        # More bytes than a header of '{' has: it is read, and then cut short.
        (b"\xff\0\0\0\0\0\0\0{", "safetensors"),
    ],
)
def test_forms_are_told_by_content(content, form):
    file = io.BytesIO(content)
    assert form_of(file, "a") == form
    assert file.tell() == 0


# The index of a TensorFlow checkpoint is a LevelDB table, which ends in this number.
TABLE = b"\0" * 40 + (0xDB4775248B80FB57).to_bytes(8, "little")
NPZ = io.BytesIO()
np.savez(NPZ, a=np.arange(100))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a is empty; download or copy it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "pointer .* 'git lfs pull'"),
        (b"\x1f\x8b\x08\0", "packed by gzip; unpack it with gunzip"),
        (b"BZh91AY", "packed by bzip2"),
        (b"\xfd7zXZ\0\0", "packed by xz"),
        (b"\x28\xb5\x2f\xfd\0", "packed by zstd"),
        (b"\x89HDF\r\n\x1a\n\0", "an HDF5 file, as Keras"),
        (b"\x93NUMPY\x01\0", r"a single array \(.npy\)"),
        (b'model_checkpoint_path: "a"', "the list of checkpoints of TensorFlow"),
        (TABLE, "the index of a TensorFlow checkpoint"),
        (b'{"architectures": []}', "JSON text"),
        (b"<!DOCTYPE html>", "a saved web page"),
        (b"\xef\xbb\xbf\n  <?xml version='1.0'?>", "a saved web page"),
        (pickle.dumps({"a": 1}), "a Python pickle, which can run code"),
        (b"\x82\xa6params\x80", "a MessagePack file, as Flax writes"),
        (b"\xde\0\x10", "a MessagePack file"),
        (b"hello", r"of no known form \(it begins with b'hello'\)"),
        (b"\xff\xff\xff\xff\0\0\0\0{", "of no known form"),
        (zipped("a.txt", "b.txt"), r"a zip archive without arrays \(it has a.txt, b"),
        (zipped(), r"a zip archive without arrays \(it has nothing\)"),
        (NPZ.getvalue()[:300], "cut short or damaged, of 300 bytes; download"),
        (NPZ.getvalue()[:-1], "cut short or damaged"),
        # Version 9 of the format; there is none.
        (NPZ.getvalue().replace(b"\1\2-\3-", b"\1\2-\3\x5a"), "cut short or damaged"),
    ],
)
def test_what_holds_no_weights_is_named(content, message):
    with pytest.raises(UserError, match=message) as raised:
        form_of(io.BytesIO(content), "a")
    assert "\n" not in str(raised.value)
    assert ";" in str(raised.value)

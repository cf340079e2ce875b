# SPDX-License-Identifier: Apache-2.0
import pytest

from vit_jax.checkpoints.whole_file import whole_file
from vit_jax.errors import UserError


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path):
    with whole_file(tmp_path / "new/a", overwrite=False) as file:
        file.write(b"12")
        assert not (tmp_path / "new/a").exists()
    assert (tmp_path / "new/a").read_bytes() == b"12"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a"]


def stopped(path) -> None:
    with whole_file(path, overwrite=True) as file:
        file.write(b"1")
        raise KeyboardInterrupt


def test_a_stopped_writer_leaves_what_was_there(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        stopped(tmp_path / "a")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def write(path, overwrite: bool) -> None:
    with whole_file(path, overwrite=overwrite) as file:
        file.write(b"1")


def test_an_existing_file_is_refused_unless_told(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(UserError, match="a exists; give another --output"):
        write(tmp_path / "a", overwrite=False)
    write(tmp_path / "a", overwrite=True)
    assert (tmp_path / "a").read_bytes() == b"1"


def test_what_cannot_be_written_is_told(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(UserError, match=r"cannot write .*a/b: "):
        write(tmp_path / "a/b", overwrite=False)
    (tmp_path / "c/d").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot write .*c: "):
        write(tmp_path / "c", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]

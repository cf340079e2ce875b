# SPDX-License-Identifier: Apache-2.0
"""Examples in tar files that Python's tarfile wrote."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from tests.data.written_shards import pairs, write_tar
from vit_jax.data.shards.tars import TarReader, members
from vit_jax.errors import UserError


def found(path: Path) -> list[tuple[bytes, object]]:
    """The image and the label of each example."""
    data = path.read_bytes()
    return [
        (data[place.offset : place.offset + place.length], place.label)
        for place in TarReader()(str(path))
    ]


@pytest.mark.parametrize(
    "tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
def test_members_lie_where_tarfile_says(tmp_path, tar_format):
    names = ["a.jpg", "b/c.cls", "x" * 99, "d" * 80 + "/" + "e" * 60 + ".jpg"]
    if tar_format != tarfile.USTAR_FORMAT:
        names.append("é" * 150 + ".jpg")
    path = write_tar(
        tmp_path / "x.tar", [(n, n.encode() * 20) for n in names], tar_format
    )
    with tarfile.open(path) as archive:
        expected = [
            (m.name, m.offset_data, m.offset_data + m.size)
            for m in archive.getmembers()
        ]
    assert [tuple(m) for m in members(path.read_bytes(), "x.tar")] == expected


def test_what_is_no_file_is_passed_over(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE):
            member = tarfile.TarInfo("a.jpg")
            member.type, member.linkname = kind, "l" * 200
            archive.addfile(member)
        member = tarfile.TarInfo("a.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    assert [m.name for m in members(path.read_bytes(), "x.tar")] == ["a.txt"]


def test_examples_are_files_that_share_a_key(tmp_path):
    path = write_tar(
        tmp_path / "x.tar",
        [
            ("README.md", b"hello"),
            ("./n01/a.JPEG", b"one"),
            ("./n01/a.cls", b" 3\n"),
            ("./n01/._a.jpg", b"of a Mac"),
            ("n02/a.txt", b"a caption"),
            ("n02/a.cls", b"4"),
            ("n02/a.seg.png", b"a mask"),
            ("n02/a.png", b"two"),
            ("c.json", b'{"label": 5, "width": 7}'),
            ("c.webp", b"three"),
            ("d.json", b'{"caption": "no label"}'),
            ("d.cls", b"6"),
            ("d.tif", b"four"),
        ],
    )
    assert found(path) == [(b"one", "3"), (b"two", "4"), (b"three", 5), (b"four", "6")]


def test_labels_are_read_from_json(tmp_path):
    texts = [b'{"label": "cat"}', b'{"labels": ["a", 2]}', b'{"target": 1}']
    path = write_tar(
        tmp_path / "x.tar",
        [
            m
            for i, t in enumerate(texts)
            for m in ((f"{i}.jpg", b"."), (f"{i}.json", t))
        ],
    )
    assert [label for _, label in found(path)] == ["cat", ["a", "2"], 1.0]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"b.jpg": None}, r"@\d+: 'b\.cls' has no image"),
        ({"b.cls": None}, r"@\d+: 'b\.jpg' has no \.cls or \.json"),
        ({"c.cls": b""}, r"'c\.cls' is empty"),
        ({"c.cls": b"\xff"}, r"'c\.cls' is no UTF-8 text"),
    ],
)
def test_a_missing_member_is_named_with_its_place(tmp_path, changed, words):
    files = {**dict(pairs({"a": "0", "b": "1", "c": "2"})), **changed}
    kept = [(name, data) for name, data in files.items() if data is not None]
    path = write_tar(tmp_path / "x.tar", kept)
    with pytest.raises(UserError, match=rf"x\.tar{words}|x\.tar@\d+: {words}"):
        list(TarReader()(str(path)))


def test_the_place_in_the_error_is_that_of_the_file(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"1" * 600)])
    # One header of 512 bytes lies before it.
    with pytest.raises(UserError, match=r"x\.tar@512: 'a\.jpg' has no \.cls"):
        list(TarReader()(str(path)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "is no JSON"),
        (b"[1]", r"has no label among its keys \(none\)"),
        (b'{"class": 1}', r"has no label among its keys \(class\)"),
        (b'{"label": 1, "target": 2}', "has label and target among its keys"),
        (b'{"label": true}', "has the label True; a label is"),
        (b'{"label": 1.5}', "has the label 1.5; a label is"),
        (b'{"labels": [1.5]}', r"has the labels \[1.5\]; a label is"),
        (b'{"target": "x"}', "has the target 'x'; a label is"),
        (b'{"target": Infinity}', "has the target inf; a label is"),
    ],
)
def test_json_without_a_label_is_refused(tmp_path, text, words):
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"."), ("a.json", text)])
    with pytest.raises(UserError, match=rf"x\.tar@1536: 'a\.json' {words}"):
        list(TarReader()(str(path)))


def test_two_images_with_one_key_are_refused(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"."), ("a.png", b".")])
    with pytest.raises(UserError, match=r"'a\.png' is a second image beside 'a\.jpg'"):
        list(TarReader()(str(path)))


def test_files_that_are_cut_are_refused_wherever_they_are_cut(tmp_path):
    whole = write_tar(tmp_path / "x.tar", pairs({"a": "0", "b": "1"})).read_bytes()
    end = 8 * 512  # four members of one block each, with their headers
    for keep in (1, 512, 600, 1024, 1500, end, end + 511):
        (tmp_path / "x.tar").write_bytes(whole[:keep])
        with pytest.raises(UserError, match=r"x\.tar ends .* it is cut"):
            list(TarReader()(str(tmp_path / "x.tar")))
    (tmp_path / "x.tar").write_bytes(whole[: end + 512])
    assert len(found(tmp_path / "x.tar")) == 2


def test_other_files_are_refused(tmp_path):
    path = write_tar(tmp_path / "x.tar", pairs({"a": "0", "b": "1"}))
    whole = path.read_bytes()
    path.write_bytes(whole[:1030] + b"\xff" + whole[1031:])
    with pytest.raises(UserError, match=r"x\.tar holds at byte 1024 no header"):
        list(TarReader()(str(path)))
    path.write_bytes(b"hello" * 200)
    with pytest.raises(UserError, match=r"x\.tar holds at byte 0 no header"):
        list(TarReader()(str(path)))
    path.write_bytes(gzip.compress(whole))
    with pytest.raises(UserError, match=r"x\.tar is compressed with GZIP"):
        list(TarReader()(str(path)))
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot read .*x\.tar"):
        list(TarReader()(str(path)))


def test_sparse_files_are_refused(tmp_path):
    member = tarfile.TarInfo("a.jpg")
    member.type = tarfile.GNUTYPE_SPARSE
    data = member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    with pytest.raises(UserError, match=r"sparse file 'a\.jpg' at byte 0"):
        list(members(data, "x.tar"))

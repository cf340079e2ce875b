# SPDX-License-Identifier: Apache-2.0
"""Every form of data set that may lie in a bucket, read from one that is made up.

The bucket is a folder here, behind TensorFlow's own files and exceptions, which is what
a real one is read through. An access that does not go that way fails by itself: there
is no local file `gs://...`.
"""

import csv
import json
import os
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.data.forms.test_tfds import prepare
from tests.data.pictures import jpeg, photo
from tests.data.written_shards import example, pairs, write_records, write_tar
from vit_jax.data.buckets import open_stream
from vit_jax.data.examples import Source
from vit_jax.data.shards.files import find_files
from vit_jax.data.shards.store import FOLDER, Store
from vit_jax.data.sources import check_source, open_source
from vit_jax.errors import UserError

NAMES = ("ant", "bee")


class MadeUpClient:
    """`tf.io.gfile` for `gs://bucket`, whose objects are files of a folder.

    Attributes:
      folder: What holds them.
      failure: What each access raises, None for what a client of that folder would.
      read_only: Whether writing is denied.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.failure: Exception | None = None
        self.read_only = False

    def local(self, path) -> str:
        """Where an object lies."""
        if self.failure is not None:
            raise self.failure
        bucket, _, name = str(path).removeprefix("gs://").partition("/")
        return str(self.folder / name if bucket == "bucket" else self.folder / bucket)

    def remote(self, path: str) -> str:
        """What an object is called."""
        return f"gs://bucket/{Path(path).relative_to(self.folder)}"

    def gfile(self) -> types.SimpleNamespace:
        """The functions that `etils.epath` calls."""
        import tensorflow as tf

        real = tf.io.gfile

        def open_file(path, mode):
            if self.read_only and "w" in mode:
                raise tf.errors.PermissionDeniedError(None, None, "403\n no\n")
            return real.GFile(self.local(path), mode)

        def listdir(path):
            names = real.listdir(self.local(path))
            folder = Path(self.local(path))
            return [name + "/" * (folder / name).is_dir() for name in names]

        def is_folder(path):  # this one of the client never raises
            return self.failure is None and real.isdir(self.local(path))

        def make_folders(path):
            real.makedirs(self.local(path))

        return types.SimpleNamespace(
            GFile=open_file,
            exists=lambda path: real.exists(self.local(path)),
            isdir=is_folder,
            listdir=listdir,
            glob=lambda path: [self.remote(p) for p in real.glob(self.local(path))],
            makedirs=make_folders,
            stat=lambda path: real.stat(self.local(path)),
        )


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpClient:
    """The bucket `gs://bucket`."""
    from etils.epath import backend, gpath

    folder = tmp_path / "objects"
    folder.mkdir()
    client = MadeUpClient(folder)
    gfile = property(lambda _: client.gfile())
    monkeypatch.setattr(type(backend.tf_backend), "gfile", gfile)
    # It would ask Google what kind of bucket it is.
    monkeypatch.setattr(gpath, "_is_zonal_gcs_bucket", lambda _: False, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("VIT_JAX_INDEX_DIR", raising=False)
    return client


def picture(seed: int) -> bytes:
    return jpeg(photo(8, 6, seed))


def read_all(source: Source) -> list[bytes]:
    return [bytes(data) for data in source.read(np.arange(len(source)))]


def write_lists(folder: Path) -> None:
    """`list.csv` and `list.jsonl`, with four images each."""
    rows = [(f"images/{n}.jpg", NAMES[n % 2]) for n in range(4)]
    (folder / "images").mkdir()
    for number, (path, _) in enumerate(rows):
        (folder / path).write_bytes(picture(number))
    with (folder / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "label"), *rows])
    lines = [json.dumps({"image": path, "label": label}) for path, label in rows]
    (folder / "list.jsonl").write_text("\n".join(lines))


def write_folders(folder: Path) -> None:
    """`train/CLASS/IMAGE`, two classes of two."""
    for number in range(4):
        path = folder / "train" / NAMES[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))


def write_zip(folder: Path, kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(folder / "all.zip", "w", kind) as archive:
        for number in range(4):
            name = f"train/{NAMES[number % 2]}/{number}.jpg"
            archive.writestr(name, picture(number))


def write_deflated_zip(folder: Path) -> None:
    write_zip(folder, zipfile.ZIP_DEFLATED)


def write_tars(folder: Path) -> None:
    for shard in range(2):
        members = []
        for number in (2 * shard, 2 * shard + 1):
            members += pairs({str(number): NAMES[number % 2]}, picture(number))
        write_tar(folder / f"train-{shard}.tar", members)


def write_tfrecords(folder: Path) -> None:
    for shard in range(2):
        numbers = (2 * shard, 2 * shard + 1)
        records = [
            example(image=[picture(n)], label=[NAMES[n % 2].encode()]) for n in numbers
        ]
        write_records(folder / f"train-{shard}.tfrecord", records)


@pytest.mark.parametrize(
    ("write", "dataset", "order"),
    [
        (write_lists, "csv:gs://bucket/list.csv", [0, 1, 2, 3]),
        (write_lists, "jsonl:gs://bucket/list.jsonl", [0, 1, 2, 3]),
        (write_folders, "folder:gs://bucket", [0, 2, 1, 3]),
        (write_zip, "zip:gs://bucket/all.zip", [0, 2, 1, 3]),
        (write_deflated_zip, "zip:gs://bucket/all.zip", [0, 2, 1, 3]),
        (write_tars, "tar:gs://bucket/train-*.tar", [0, 1, 2, 3]),
        (write_tars, "tar:gs://bucket/train-{0..1}.tar", [0, 1, 2, 3]),
        (write_tfrecords, "tfrecord:gs://bucket/train-*.tfrecord", [0, 1, 2, 3]),
    ],
)
def test_a_data_set_is_read_from_a_bucket(bucket, write, dataset, order):
    write(bucket.folder)
    source = open_source(dataset, "train")
    check_source(source, num_classes=2)
    assert source.class_names == NAMES
    assert source.labels.tolist() == [number % 2 for number in order]
    assert read_all(source) == [picture(number) for number in order]
    assert all(
        name.startswith("gs://bucket/") for name in source.names(np.arange(len(source)))
    )


def test_a_prepared_data_set_is_read_from_a_bucket(bucket):
    prepare(bucket.folder, "tfrecord")
    source = open_source("tfds:tiny", "test", data_dir="gs://bucket")
    check_source(source, num_classes=3)
    assert source.class_names == ("ant", "bee", "cat")
    assert sorted(source.labels.tolist()) == sorted(n % 3 for n in range(100, 107))


def test_array_records_in_a_bucket_are_refused(bucket):
    pytest.importorskip("array_record")
    prepare(bucket.folder, "array_record")
    with pytest.raises(UserError, match=r"in a bucket.*--file_format=tfrecord"):
        open_source("tfds:tiny", "test", data_dir="gs://bucket")


def test_a_names_file_is_read_from_the_bucket(bucket):
    write_folders(bucket.folder)
    (bucket.folder / "names.txt").write_text("bee\nant\n")
    source = open_source("folder:gs://bucket/@names=names.txt", "train")
    assert source.class_names == ("bee", "ant")
    assert source.labels.tolist() == [1, 1, 0, 0]


def test_the_index_of_shards_is_kept_in_the_bucket(bucket):
    write_tars(bucket.folder)
    first = open_source("tar:gs://bucket/train-*.tar", "train")
    assert (bucket.folder / FOLDER / "tar.index").is_file()
    # Known files are not gone through again: these could not be.
    for path in bucket.folder.glob("*.tar"):
        stat = path.stat()
        path.write_bytes(b"x" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = open_source("tar:gs://bucket/train-*.tar", "train")
    assert again.labels.tolist() == first.labels.tolist() == [0, 1, 0, 1]


def test_a_bucket_that_is_read_only_leaves_the_index_in_the_cache(bucket, tmp_path):
    write_tars(bucket.folder)
    bucket.read_only = True
    source = open_source("tar:gs://bucket/train-*.tar", "train")
    assert source.labels.tolist() == [0, 1, 0, 1]
    assert not (bucket.folder / FOLDER / "tar.index").exists()
    (cached,) = [p for p in Store("gs://bucket", "tar").places if "gs://" not in p]
    assert Path(cached).is_file()
    assert Path(cached).is_relative_to(tmp_path / "cache")


MISSING = [
    ("csv:gs://bucket/no.csv", r"cannot read gs://bucket/no\.csv: No such file"),
    ("jsonl:gs://bucket/no.jsonl", r"cannot read gs://bucket/no\.jsonl: No such file"),
    ("folder:gs://bucket/no", r"the folder gs://bucket/no does not exist"),
    ("zip:gs://bucket/no.zip", r"cannot read gs://bucket/no\.zip: No such file"),
    ("tar:gs://bucket/no-*.tar", r"there is no file gs://bucket/no-\*\.tar"),
    ("tar:gs://bucket/no.tar", r"there is no file gs://bucket/no\.tar"),
    ("tfrecord:gs://no/0.tfrecord", r"there is no file gs://no/0\.tfrecord"),
    ("tfds:no", r"gs://bucket/no does not exist"),
]


@pytest.mark.parametrize(("dataset", "message"), MISSING)
def test_what_is_not_in_the_bucket_is_told_in_one_line(bucket, dataset, message):
    with pytest.raises(UserError, match=message) as caught:
        open_source(dataset, "train", data_dir="gs://bucket")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dataset", [dataset for dataset, _ in MISSING])
def test_a_bucket_that_does_not_answer_is_told_in_one_line(bucket, dataset):
    import tensorflow as tf

    # What TensorFlow 2.21 says without a network.
    bucket.failure = tf.errors.FailedPreconditionError(
        None,
        None,
        "Error executing an HTTP request: libcurl code 6 meaning 'Could not resolve "
        "hostname'\n\t when reading metadata of gs://bucket",
    )
    message = r"cannot reach gs://.*: Error .*libcurl code 6.*; check the bucket's name"
    with pytest.raises(UserError, match=message) as caught:
        open_source(dataset, "train", data_dir="gs://bucket")
    assert "\n" not in str(caught.value)


def test_a_bucket_that_stops_answering_is_told_when_an_image_is_read(bucket):
    import tensorflow as tf

    for write, dataset in (
        (write_folders, "folder:gs://bucket/train"),
        (write_tars, "tar:gs://bucket/train-*.tar"),
    ):
        bucket.failure = None
        write(bucket.folder)
        source = open_source(dataset, "train")
        bucket.failure = tf.errors.UnavailableError(None, None, "try later")
        with pytest.raises(UserError, match=r"cannot reach gs://bucket/.*try later"):
            source.read(np.arange(1))


def test_wildcards_that_would_list_whole_buckets_are_refused(bucket):
    for pattern in ("gs://bucket/**/a.tar", "gs://*/a.tar", "gs://buck*/b/a.tar"):
        with pytest.raises(UserError, match="write out the bucket's name"):
            find_files(pattern)


def test_a_stream_of_a_bucket_seeks_as_a_file_does(bucket):
    data = bytes(range(256)) * 10_000  # more than a block
    (bucket.folder / "file").write_bytes(data)
    with open_stream("gs://bucket/file") as stream:
        assert stream.read(5) == data[:5]
        assert stream.seek(-7, 2) == len(data) - 7
        assert stream.read() == data[-7:]
        assert stream.read(1) == b""
        assert stream.seek(300) == 300
        assert stream.read() == data[300:]

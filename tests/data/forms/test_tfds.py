# SPDX-License-Identifier: Apache-2.0
"""Prepared TensorFlow Datasets, written here and read back; nothing is downloaded."""

import io
import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.index import find_dataset_shards
from vit_jax.data.shards import store as shard_store
from vit_jax.data.sources import check_source, open_source
from vit_jax.errors import UserError

NAMES = ["ant", "bee", "cat"]


def prepare(folder: Path, file_format: str) -> None:
    """Writes the data set `tiny`: 20 training and 7 test examples; id is the level."""
    import tensorflow_datasets as tfds

    with tfds.core.registered.skip_registration():

        class Tiny(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.2.0")
            url_infos: ClassVar = {}  # nothing is downloaded

            def _info(self):
                features = tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(shape=(None, None, 3)),
                        "label": tfds.features.ClassLabel(names=NAMES),
                        "id": np.int64,
                        "height": np.float32,
                    }
                )
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, dl_manager):
                return {"train": self._generate(20), "test": self._generate(7, 100)}

            def _generate(self, count, first=0):
                for number in range(first, first + count):
                    yield (
                        number,
                        {
                            "image": np.full((4, number + 1, 3), number, np.uint8),
                            "label": number % 3,
                            "id": number,
                            "height": number / 2,
                        },
                    )

            def _generate_examples(self):
                raise NotImplementedError

    builder = Tiny(data_dir=folder, file_format=file_format)
    config = tfds.download.DownloadConfig(num_shards=3)
    builder.download_and_prepare(download_config=config)


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def data_dir(request, tmp_path_factory) -> str:
    if request.param == "array_record":
        pytest.importorskip("array_record")
    folder = tmp_path_factory.mktemp(request.param)
    prepare(folder, request.param)
    return str(folder)


def levels(source) -> list[int]:
    images = [Image.open(io.BytesIO(d)) for d in source.read(np.arange(len(source)))]
    assert all(image.size[0] == image.getpixel((0, 0))[0] + 1 for image in images)
    return [image.getpixel((0, 0))[0] for image in images]


def test_every_example_comes_once_with_its_label(data_dir):
    train = open_source("tfds:tiny", "train", data_dir=data_dir)
    assert len(train) == 20
    found = levels(train)
    assert sorted(found) == list(range(20))
    assert train.labels.tolist() == [level % 3 for level in found]
    assert train.labels.dtype == np.int32
    assert train.class_names == tuple(NAMES)
    check_source(train, batch_size=20, num_classes=3)


def test_the_order_is_that_of_the_library(data_dir):
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(f"{data_dir}/tiny/1.2.0")
    try:
        order = [int(example["id"]) for example in builder.as_data_source("train")]
    except NotImplementedError:  # only ArrayRecord serves random access
        dataset = builder.as_dataset(split="train", shuffle_files=False)
        order = [int(example["id"]) for example in dataset.as_numpy_iterator()]
    assert levels(open_source("tfds:tiny", "train", data_dir=data_dir)) == order


def test_splits_are_cut_and_joined(data_dir, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", data_dir)
    both = open_source("tfds:tiny:1.2.0", "test[2:]+train[:10%]")
    assert len(both) == 7
    assert all(level >= 100 for level in levels(both)[:5])
    assert all(level < 100 for level in levels(both)[5:])
    assert both.labels.tolist() == [level % 3 for level in levels(both)]
    assert len(set(both.names(np.arange(7)))) == 7


def test_class_names_of_a_checkpoint_renumber(data_dir):
    names = ["cat", "dog", "bee", "ant"]
    test = open_source("tfds:tiny", "test", class_names=names, data_dir=data_dir)
    assert test.labels.tolist() == [(3, 2, 0)[level % 3] for level in levels(test)]
    with pytest.raises(UserError, match="has the class 'ant'"):
        open_source("tfds:tiny", "test", class_names=names[:3], data_dir=data_dir)


def test_other_features_are_read_as_ids_or_targets(data_dir):
    ids = open_source("tfds:tiny@label=id", "train", data_dir=data_dir)
    assert ids.labels.tolist() == levels(ids)
    assert ids.class_names is None
    heights = open_source("tfds:tiny@label=height", "train", data_dir=data_dir)
    assert heights.labels.dtype == np.float32
    assert heights.labels.tolist() == [level / 2 for level in levels(heights)]


@pytest.mark.parametrize(
    ("dataset", "split", "words"),
    [
        ("tfds:tyni", "train", r"does not exist; did you mean 'tiny'.*never downloads"),
        ("tfds:tiny:2.0.0", "train", r"no prepared version 2\.0\.0; it holds 1\.2\.0"),
        ("tfds:tiny", "validation", "no split 'validation'; it has"),
        ("tfds:tiny@image=picture", "train", "no feature 'picture'; it has height, id"),
        ("tfds:tiny@image=label", "train", "the feature 'label' of .* is no image"),
        ("tfds:tiny@label=image", "train", "in its feature 'image' 0 numbers"),
    ],
)
def test_what_is_not_there_is_refused(data_dir, dataset, split, words):
    with pytest.raises(UserError, match=words):
        open_source(dataset, split, data_dir=data_dir)


def test_the_newest_version_wins(data_dir, tmp_path):
    for version in ("1.9.0", "1.10.0"):
        folder = tmp_path / "tiny" / version
        folder.mkdir(parents=True)
        for file in (Path(data_dir) / "tiny" / "1.2.0").iterdir():
            (folder / file.name).symlink_to(file)
        info = json.loads((folder / "dataset_info.json").read_text())
        info["version"] = version
        (folder / "dataset_info.json").unlink()
        (folder / "dataset_info.json").write_text(json.dumps(info))
    (tmp_path / "tiny" / "2.0.0.incompleteABC").mkdir()
    test = open_source("tfds:tiny", "test", data_dir=str(tmp_path))
    assert "/1.10.0/" in test.names(np.array([0]))[0]


@pytest.mark.parametrize("keep", [5, 100, -1])
def test_a_shard_that_is_cut_is_refused_by_name(tmp_path, keep):
    prepare(tmp_path, "tfrecord")
    shard = next((tmp_path / "tiny" / "1.2.0").glob("*-train.tfrecord-00001-*"))
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"train\.tfrecord-00001-of-00003 ends inside"):
        open_source("tfds:tiny", "train", data_dir=str(tmp_path))


def test_a_shard_that_lacks_records_is_refused_by_name(tmp_path):
    prepare(tmp_path, "tfrecord")
    folder = tmp_path / "tiny" / "1.2.0"
    shards = sorted(folder.glob("*-train.tfrecord-*"))
    shards[0].write_bytes(shards[0].read_bytes() + shards[1].read_bytes())
    with pytest.raises(UserError, match=r"00000-of-00003 holds .* examples where"):
        open_source("tfds:tiny", "train", data_dir=str(tmp_path))
    shards[0].write_bytes(b"")
    with pytest.raises(UserError, match=r"cannot read .*00000-of-00003"):
        open_source("tfds:tiny", "train", data_dir=str(tmp_path))


def test_shards_are_gone_through_once(data_dir, monkeypatch):
    source = open_source("tfds:tiny", "train", data_dir=data_dir)
    monkeypatch.setattr(shard_store, "read_shard", None)
    again = open_source("tfds:tiny", "train", data_dir=data_dir)
    assert again.labels.tolist() == source.labels.tolist()
    assert levels(again) == levels(source)
    paths, reader = find_dataset_shards("tfds:tiny", data_dir)
    assert len(paths) == 6
    assert reader.name in ("tfrecord,image,label", "array_record,label")


def test_a_damaged_record_is_named_with_its_place(tmp_path):
    prepare(tmp_path, "tfrecord")
    shard = next((tmp_path / "tiny" / "1.2.0").glob("*-train.tfrecord-00001-*"))
    data = bytearray(shard.read_bytes())
    data[40] ^= 1
    shard.write_bytes(data)
    words = r"train\.tfrecord-00001-of-00003@0: the checksum of the record's data"
    with pytest.raises(UserError, match=words):
        open_source("tfds:tiny", "train", data_dir=str(tmp_path))

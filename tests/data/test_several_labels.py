# SPDX-License-Identifier: Apache-2.0
"""Several classes an example, in shards that we or TensorFlow Datasets wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tests.data.pictures import jpeg
from vit_jax.data.labels import MultiHot
from vit_jax.data.prepare.jobs import Job
from vit_jax.data.prepare.task import Task, prepare
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

LABELS = [[2, 0], [], [1], [0, 1, 2]]


def here(job: Job, numbers: Sequence[int]) -> None:
    for number in numbers:
        job(number)


def rows_of(source) -> list[list[int]]:
    assert isinstance(source.labels, MultiHot)
    every = source.labels[np.arange(len(source))]
    return [np.flatnonzero(row).tolist() for row in every]


@pytest.fixture
def lists(tmp_path: Path) -> str:
    """A list of pictures with several labels."""
    lines = ["image,labels"]
    for number, labels in enumerate(LABELS):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg())
        lines.append(f"{number}.jpg,{'|'.join(map(str, labels))}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    return f"csv:{tmp_path}/list.csv"


@pytest.mark.parametrize(
    ("file_format", "dataset"),
    [("tar", "tar:{}/*.tar"), ("tfrecord", "tfrecord:{}/*.tfrecord@labels=label")],
)
def test_our_shards_keep_several_labels(lists, tmp_path, file_format, dataset):
    prepare(Task(lists, "train", str(tmp_path / "o"), file_format, 2), here)
    source = open_source(dataset.format(tmp_path / "o"), "train")
    assert source.num_classes == 3
    assert sorted(rows_of(source)) == sorted(map(sorted, LABELS))


def test_a_feature_of_several_labels_must_be_there(tmp_path, lists):
    prepare(Task(lists, "train", str(tmp_path / "o"), "tfrecord"), here)
    dataset = f"tfrecord:{tmp_path}/o/*.tfrecord@labels=lable"
    with pytest.raises(UserError, match=r"'lable' no list of class ids or names"):
        open_source(dataset, "train")


def write_tfds(folder: Path) -> None:
    """A data set with the features of imagenet2012_real."""
    import tensorflow_datasets as tfds

    with tfds.core.registered.skip_registration():

        class Real(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")
            url_infos: ClassVar = {}  # nothing is downloaded

            def _info(self):
                label = tfds.features.ClassLabel(names=["ant", "bee", "cat"])
                features = tfds.features.FeaturesDict(
                    {
                        "image": tfds.features.Image(shape=(None, None, 3)),
                        "original_label": label,
                        "real_label": tfds.features.Sequence(label),
                    }
                )
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, dl_manager):
                return {"validation": self._generate()}

            def _generate(self):
                for number, labels in enumerate(LABELS):
                    image = np.full((4, 4, 3), number, np.uint8)
                    yield (
                        number,
                        {"image": image, "original_label": 0, "real_label": labels},
                    )

            def _generate_examples(self):
                raise NotImplementedError

    Real(data_dir=folder).download_and_prepare()


def test_tensorflow_datasets_may_have_sequences_of_labels(tmp_path):
    write_tfds(tmp_path)
    dataset = "tfds:real@label=real_label"
    source = open_source(dataset, "validation", data_dir=str(tmp_path))
    assert source.class_names == ("ant", "bee", "cat")
    assert sorted(rows_of(source)) == sorted(map(sorted, LABELS))
    turned = open_source(
        dataset,
        "validation",
        class_names=("cat", "bee", "ant", "dog"),
        data_dir=str(tmp_path),
    )
    assert turned.num_classes == 4
    assert rows_of(turned) == [
        sorted(2 - label for label in row) for row in rows_of(source)
    ]

# SPDX-License-Identifier: Apache-2.0
"""The labels of VTAB that no feature holds, from data sets as TFDS writes them.

The expected numbers are those of the definitions in google-research/task_adaptation.
"""

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import pixels
from vit_jax.data.forms import task_labels
from vit_jax.data.forms.task_labels import TASKS
from vit_jax.data.index import find_dataset_shards
from vit_jax.data.sources import check_source, open_source
from vit_jax.errors import UserError

# Each distance and its class.
KITTI = {-1: 0, 0: 0, 7.99: 0, 8: 0, 8.01: 1, 20: 1, 20.5: 2, 999: 2, 1000: 3}
CLEVR = {
    **{0.5: 0, 8: 0, 8.1: 1, 8.5: 1, 9: 2, 9.2: 3, 9.5: 3},
    **{9.9: 4, 10: 4, 10.1: 5, 100: 5},
}
# Of the labels 0...39.
ORIENTATIONS = [
    int(label)
    for label in (
        "0 0 0 1 1 2 2 2 3 3 4 4 4 5 5 6 6 6 7 7 "
        "8 8 8 9 9 10 10 10 11 11 12 12 12 13 13 14 14 14 15 15"
    ).split()
]


@pytest.mark.parametrize(("distance", "label"), KITTI.items())
def test_the_nearest_vehicle_is_binned(distance: float, label: int):
    far = 2000.0
    # A pedestrian (type 3) in front of it does not count.
    types, places = [3, 0, 2], [0, 0, -50, 1, 2, distance, 9, 9, far]
    assert task_labels.kitti_dist(types, places) == label


def test_without_a_vehicle_there_is_a_class_of_its_own():
    assert task_labels.kitti_dist([], []) == 3
    assert task_labels.kitti_dist([7, 3], [0, 0, 5.0, 0, 0, 6.0]) == 3


@pytest.mark.parametrize(("distance", "label"), CLEVR.items())
def test_the_nearest_object_is_binned(distance: float, label: int):
    # Columns and rows may be smaller than any distance.
    places = [0.1, 0.2, 100.0, 3.0, 4.0, distance]
    assert task_labels.clevr_dist(places) == label


def test_the_other_labels_are_as_defined():
    assert [task_labels.clevr_count([0] * n) for n in range(3, 11)] == list(range(8))
    halves = [k for k in range(16) for _ in range(2)]
    assert [task_labels.dspr_loc([k]) for k in range(32)] == halves
    assert [task_labels.dspr_ori([k]) for k in range(40)] == ORIENTATIONS


def test_each_class_has_a_name():
    counts = {name: len(set(task.class_names)) for name, task in TASKS.items()}
    assert counts == {
        **{"clevr_count": 8, "clevr_dist": 6, "kitti_dist": 4},
        **{"dspr_loc": 16, "dspr_ori": 16},
    }
    assert TASKS["dspr_ori"].class_names[:2] == (
        "orientation 0 to 2",
        "orientation 3 to 4",
    )


@pytest.mark.parametrize(
    ("task", "values", "words"),
    [
        ("clevr_count", ([0, 1],), "2 objects, not 3 to 10"),
        ("clevr_dist", ([],), "no object"),
        ("clevr_dist", ([1, 1, 0.0],), "a distance of 0, which is in no class"),
        ("clevr_dist", ([1, 1, 101.0],), "a distance of 101, which is in no class"),
        ("kitti_dist", ([0], [1, 1, -100.0]), "a distance of -100"),
        ("kitti_dist", ([0, 1], [1, 1, 5.0]), "2 types and 3 coordinates"),
        ("dspr_loc", ([32],), r"\[32\] where an index below 32"),
        ("dspr_ori", ([],), r"\[\] where an index below 40"),
    ],
)
def test_what_the_definitions_do_not_cover_is_refused(task, values, words):
    with pytest.raises(ValueError, match=words):
        TASKS[task].function(*values)


def prepare(folder: Path, file_format: str, name: str, features: dict, examples: Any):
    """Writes a data set of one shard in training order."""
    import tensorflow_datasets as tfds

    with tfds.core.registered.skip_registration():

        class Prepared(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("3.1.0")
            url_infos: ClassVar = {}  # nothing is downloaded

            def _info(self):
                return tfds.core.DatasetInfo(
                    builder=self, features=tfds.features.FeaturesDict(features)
                )

            def _split_generators(self, dl_manager):
                return {"train": enumerate(examples)}

            def _generate_examples(self):
                raise NotImplementedError

    Prepared.name = name
    Prepared(data_dir=folder, file_format=file_format).download_and_prepare()


def features_of(kind: str) -> dict[str, Any]:
    """Returns features as the builders of TensorFlow Datasets 4.9 declare them."""
    import tensorflow_datasets as tfds

    point = tfds.features.Tensor(shape=(3,), dtype=np.float32)
    if kind == "clevr":
        objects = {
            "size": tfds.features.ClassLabel(names=["small", "large"]),
            "pixel_coords": point,
        }
        texts = {"question": tfds.features.Text(), "answer": tfds.features.Text()}
        return {
            "image": tfds.features.Image(),
            "file_name": tfds.features.Text(),
            "objects": tfds.features.Sequence(objects),
            "question_answer": tfds.features.Sequence(texts),
        }
    if kind == "kitti":
        types = tfds.features.ClassLabel(names=["Car", "Van", "Truck", "Pedestrian"])
        return {
            "image": tfds.features.Image(),
            "image/file_name": tfds.features.Text(),
            "objects": tfds.features.Sequence({"type": types, "location": point}),
        }
    sides = {"dsprites": 64, "smallnorb": 96}
    numbers = {
        "dsprites": {"label_orientation": 40, "label_x_position": 32},
        "smallnorb": {"label_azimuth": 18, "label_elevation": 9},
    }
    return {
        "image": tfds.features.Image(shape=(sides[kind], sides[kind], 1)),
        **{
            name: tfds.features.ClassLabel(num_classes=count)
            for name, count in numbers[kind].items()
        },
    }


def examples_of(kind: str) -> list[dict[str, Any]]:
    if kind == "clevr":
        distances = [[7.5, 11, 12], [8.25, 8.25, 9, 12], [10.5] * 10]
        return [
            {
                "image": np.full((4, len(row), 3), len(row), np.uint8),
                "file_name": "x.png",
                "objects": [
                    {"size": 1, "pixel_coords": [3, 200, distance]} for distance in row
                ],
                "question_answer": [{"question": "what", "answer": "that"}] * len(row),
            }
            for row in distances
        ]
    if kind == "kitti":
        objects = [[(0, 25), (3, 4)], [], [(3, 5)], [(1, 8), (0, 30)], [(2, 19)]]
        return [
            {
                "image": np.full((4, 5, 3), number, np.uint8),
                "image/file_name": f"{number}.png",
                "objects": [{"type": t, "location": [-70, 9, z]} for t, z in row],
            }
            for number, row in enumerate(objects)
        ]
    if kind == "dsprites":
        image = np.zeros((64, 64, 1), np.uint8)
        image[3, 5] = 1
        return [
            {"image": image, "label_orientation": 39 - k, "label_x_position": k}
            for k in range(32)
        ]
    levels = np.arange(96 * 96, dtype=np.int64).reshape(96, 96, 1) % 256
    return [
        {
            "image": levels.astype(np.uint8),
            "label_azimuth": k,
            "label_elevation": k % 9,
        }
        for k in range(18)
    ]


KINDS = ("clevr", "kitti", "dsprites", "smallnorb")


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def data_dir(request, tmp_path_factory) -> str:
    if request.param == "array_record":
        pytest.importorskip("array_record")
    folder = tmp_path_factory.mktemp(request.param)
    for kind in KINDS:
        prepare(folder, request.param, kind, features_of(kind), examples_of(kind))
    return str(folder)


def pictures(source) -> list[np.ndarray]:
    return [pixels.decode_image(data) for data in source.read(np.arange(len(source)))]


def test_clevr_counts_and_distances_come_with_their_pictures(data_dir):
    counts = open_source(
        "tfds:clevr:3.*.*@task=clevr_count", "train", data_dir=data_dir
    )
    assert counts.labels.dtype == np.int32
    assert [picture.shape[1] - 3 for picture in pictures(counts)] == list(counts.labels)
    assert sorted(counts.labels) == [0, 1, 7]
    assert counts.class_names is not None
    assert counts.class_names[7] == "10 objects"
    check_source(counts, batch_size=3, num_classes=8)
    near = open_source("tfds:clevr@task=clevr_dist", "train", data_dir=data_dir)
    assert dict(zip(counts.labels, near.labels, strict=True)) == {0: 0, 1: 1, 7: 5}


def test_kitti_labels_come_with_their_pictures(data_dir):
    source = open_source("tfds:kitti:3.1.0@task=kitti_dist", "train", data_dir=data_dir)
    found = {
        int(picture[0, 0, 0]): int(label)
        for picture, label in zip(pictures(source), source.labels, strict=True)
    }
    assert found == {0: 2, 1: 3, 2: 3, 3: 0, 4: 1}


def test_dsprites_are_black_and_white_in_three_channels(data_dir):
    place = open_source("tfds:dsprites@task=dspr_loc", "train", data_dir=data_dir)
    angle = open_source("tfds:dsprites@task=dspr_ori", "train", data_dir=data_dir)
    # Position k has orientation 39 - k, which two labels of each half know.
    assert sorted(place.labels) == [k for k in range(16) for _ in range(2)]
    assert sorted(angle.labels) == ORIENTATIONS[8:]
    assert sorted(zip(place.labels, angle.labels, strict=True)) == sorted(
        (k // 2, ORIENTATIONS[39 - k]) for k in range(32)
    )
    (data,) = place.read(np.array([0]))
    assert Image.open(io.BytesIO(data)).mode == "L"
    assert pixels.decode_image(data).max() == 1  # which is black to a model
    shown = pixels.preprocess(data, "decode|multiply(255)")
    assert shown.shape == (64, 64, 3)
    assert np.argwhere(shown == 255).tolist() == [[3, 5, 0], [3, 5, 1], [3, 5, 2]]
    assert shown.sum() == 3 * 255


def test_norb_is_grey_in_three_channels_and_has_plain_labels(data_dir):
    for label, count in (("azimuth", 18), ("elevation", 9)):
        dataset = f"tfds:smallnorb@label=label_{label}"
        source = open_source(dataset, "train", data_dir=data_dir)
        assert sorted(source.labels) == sorted(k % count for k in range(18))
        assert len(source.class_names or ()) == count
        picture = pictures(source)[0]
        assert picture.shape == (96, 96, 3)
        assert (picture.reshape(-1, 3)[:512, 2] == np.arange(512) % 256).all()


def test_a_task_has_an_index_of_its_own(data_dir):
    paths, reader = find_dataset_shards("tfds:clevr@task=clevr_count", data_dir)
    assert len(paths) == 1
    assert reader.name.endswith(",task%3Dclevr_count")
    again = pickle.loads(pickle.dumps(reader))  # as for another process
    assert [found.label for found in again(paths[0])] == [
        found.label for found in reader(paths[0])
    ]


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("tfds:clevr@task=clevr_cout", "task 'clevr_cout'; did you mean 'clevr_count'"),
        ("tfds:clevr@task=clevr_dist;label=x", "a label and a task; leave one"),
        ("tfds:smallnorb@task=clevr_dist", "no feature 'objects'; it has image, label"),
        ("tfds:kitti@task=clevr_count", "'objects/size' no list of numbers"),
        (
            "tfds:clevr:2.*.*@task=clevr_dist",
            r"no prepared version 2\.\*\.\*; it holds",
        ),
        ("tfds:dmlab:2.0.1", "run 'tfds build dmlab:2.0.1'"),
        ("tfds:sun397/tfds:4.*.*", "run 'tfds build sun397/tfds'"),
    ],
)
def test_what_is_not_there_is_refused(data_dir, dataset, words):
    with pytest.raises(UserError, match=words):
        open_source(dataset, "train", data_dir=data_dir)


def test_an_example_without_a_label_is_named(tmp_path):
    few = {**examples_of("clevr")[0], "objects": []}
    prepare(tmp_path, "tfrecord", "clevr", features_of("clevr"), [few])
    words = r"clevr-train\.tfrecord-00000-of-00001@\d+ has 0 objects, not 3 to 10; take"
    with pytest.raises(UserError, match=words):
        open_source("tfds:clevr@task=clevr_count", "train", data_dir=str(tmp_path))

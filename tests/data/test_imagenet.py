# SPDX-License-Identifier: Apache-2.0
"""ImageNet's class lists, ReaL labels, and how data sets are numbered by them."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import imagenet
from vit_jax.data.labels import MultiHot
from vit_jax.data.sources import open_source, present_classes
from vit_jax.errors import UserError


def add_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2)).save(path, format="PNG")


def all_labels(source) -> np.ndarray:
    return source.labels[np.arange(len(source))]


def test_the_thousand_classes_are_those_that_everybody_numbers_so():
    classes = imagenet.classes("imagenet1k")
    assert len(classes) == 1000
    assert classes[0] == ("n01440764", "tench, Tinca tinca")
    assert classes[207].words == "golden retriever"
    assert classes[999].wnid == "n15075141"  # toilet tissue


def test_googles_list_of_imagenet21k_has_21843_classes_in_the_order_of_their_ids():
    names = imagenet.wnids("imagenet21k")
    assert len(set(names)) == 21_843
    assert list(names) == sorted(names)
    # All but one of the 1,000 classes are there (teddy is not).
    assert set(imagenet.wnids("imagenet1k")) - set(names) == {"n04399382"}


def test_an_unknown_list_names_the_known_ones():
    with pytest.raises(UserError, match=r"did you mean 'imagenet1k'.*imagenet21k"):
        imagenet.classes("imagenet_1k")


def test_real_leaves_46837_images_with_labels():
    # The number that the authors evaluate on, github.com/google-research/
    # reassessed-imagenet.
    labels = imagenet.real_labels()
    assert len(labels) == 50_000
    assert sum(bool(row) for row in labels) == 46_837
    assert {label for row in labels for label in row} <= set(range(1000))


def test_a_validation_image_is_known_by_its_name():
    path = "/ILSVRC2012_val_00000009/ILSVRC2012_val_00000012.JPEG"
    assert imagenet.validation_number(path) == 12


@pytest.mark.parametrize(
    "name", ["cat.jpg", "ILSVRC2012_val_00050001.JPEG", "ILSVRC2012_val_00000000.JPEG"]
)
def test_another_image_has_no_real_labels(name):
    with pytest.raises(UserError, match=f"{name} is no image of ImageNet's validation"):
        imagenet.validation_number(name)


def test_real_labels_follow_the_given_classes():
    # The first entries of the published file: [], [970, 795], [230, 231], [809].
    names = [f"ILSVRC2012_val_{number:08}.JPEG" for number in (3, 1, 2)]
    every = imagenet.wnids("imagenet1k")
    offsets, ids = imagenet.real_ids(names, every)
    assert offsets.tolist() == [0, 2, 2, 4]
    assert ids.tolist() == [230, 231, 970, 795]
    offsets, ids = imagenet.real_ids(names, (every[795], every[231], "zebra"))
    assert offsets.tolist() == [0, 1, 1, 2]
    assert ids.tolist() == [1, 0]


def test_real_labels_need_classes_named_by_wordnet():
    with pytest.raises(UserError, match=r"WordNet ids, such as n01440764.*cat, dog"):
        imagenet.real_ids(["ILSVRC2012_val_00000001.JPEG"], ("cat", "dog"))


@pytest.fixture
def validation(tmp_path: Path) -> Path:
    """Four validation images in folders of their (wrong) classes."""
    for number in range(1, 5):
        wnid = imagenet.wnids("imagenet1k")[10 * number]
        file = f"ILSVRC2012_val_{number:08}.JPEG"
        add_image(tmp_path / "validation" / wnid / file)
    return tmp_path


def test_a_folder_is_read_with_real_labels(validation):
    source = open_source(
        f"folder:{validation}@names=imagenet1k;labels=real", "validation"
    )
    assert isinstance(source.labels, MultiHot)
    assert source.num_classes == 1000
    found = [np.flatnonzero(row).tolist() for row in all_labels(source)]
    assert found == [[], [795, 970], [230, 231], [809]]


def test_a_list_of_ids_is_read_with_real_labels(validation):
    paths = sorted(validation.rglob("*.JPEG"))
    lines = "".join(f"{path.relative_to(validation)},7,val\n" for path in paths)
    (validation / "list.csv").write_text(f"image,label,split\n{lines}")
    source = open_source(f"csv:{validation}/list.csv@labels=real", "val[1:]")
    assert source.class_names == imagenet.wnids("imagenet1k")
    assert present_classes(source).tolist() == [230, 231, 795, 809, 970]


def test_other_labels_than_real_are_unknown(validation):
    with pytest.raises(UserError, match="value of the option labels: 'reel'; did you"):
        open_source(f"folder:{validation}@names=imagenet1k;labels=reel", "validation")


def test_wordnet_folders_take_the_ids_of_imagenet(tmp_path):
    """As ImageNet-A and -R, which have 200 of the 1,000 classes."""
    for wnid in ("n15075141", "n01443537"):
        add_image(tmp_path / wnid / "0.png")
    one = open_source(f"folder:{tmp_path}@names=imagenet1k", "train")
    assert all_labels(one).tolist() == [1, 999]
    assert present_classes(one).tolist() == [1, 999]
    google = open_source(f"folder:{tmp_path}@names=imagenet21k", "train")
    names = imagenet.wnids("imagenet21k")
    assert [names[i] for i in all_labels(google)] == ["n01443537", "n15075141"]


def test_folders_that_are_numbered_take_their_number(tmp_path):
    """As ImageNet-v2, whose folders are named 0 to 999."""
    for number in (0, 2, 10, 999):
        add_image(tmp_path / str(number) / "0.png")
    source = open_source(f"folder:{tmp_path}@names=imagenet1k", "train")
    assert sorted(all_labels(source).tolist()) == [0, 2, 10, 999]
    add_image(tmp_path / "1000" / "0.png")
    with pytest.raises(UserError, match=r"class '1000'.*not among the 1000 classes"):
        open_source(f"folder:{tmp_path}@names=imagenet1k", "train")


def test_a_names_file_of_that_name_is_still_a_file(tmp_path):
    add_image(tmp_path / "a" / "0.png")
    (tmp_path / "imagenet1k").write_text("b\na\n")
    source = open_source(f"folder:{tmp_path}@names=imagenet1k", "train")
    assert source.class_names == ("b", "a")


def test_numbers_to_predict_have_no_classes(tmp_path):
    add_image(tmp_path / "0.png")
    (tmp_path / "list.csv").write_text("image,target\n0.png,0.5\n")
    source = open_source(f"csv:{tmp_path}/list.csv", "train")
    with pytest.raises(UserError, match="leave out restrict_classes"):
        present_classes(source)


IMAGENETTE = "VIT_JAX_IMAGENETTE_ZIP"


@pytest.mark.skipif(IMAGENETTE not in os.environ, reason=f"${IMAGENETTE} is not set")
def test_real_labels_confirm_most_folders_of_imagenette(tmp_path):
    """A zip file SPLIT/WNID/*.JPEG, where some are validation images by their name."""
    with zipfile.ZipFile(os.environ[IMAGENETTE]) as archive:
        members = [m for m in archive.namelist() if "ILSVRC2012_val" in m]
        archive.extractall(tmp_path, members)
    own, real = [], []
    for split in ("train", "val"):
        dataset = f"folder:{tmp_path}@names=imagenet1k"
        own.extend(all_labels(open_source(dataset, split)))
        real.extend(all_labels(open_source(f"{dataset};labels=real", split)))
    labelled = [number for number, row in enumerate(real) if row.any()]
    assert 0.85 * len(own) < len(labelled) < len(own)  # 94 % of ImageNet have a label
    # People found about nine of ten of ImageNet's labels right; by chance, one in a
    # thousand would be. 0.8 is three standard errors below with a hundred images.
    agree = np.mean([real[number][own[number]] for number in labelled])
    assert agree > 0.8

# SPDX-License-Identifier: Apache-2.0
"""Looking into ImageNet's archives, and the labels of its validation images."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from tests.data.raw_imagenet import (
    add,
    picture,
    synset_tar,
    validation_classes,
    write_train,
    write_validation,
)
from vit_jax.data import imagenet
from vit_jax.data.examples import Source
from vit_jax.data.prepare.archives import find_archives, index_archive, merge_indices
from vit_jax.data.prepare.labels import validation_wnids
from vit_jax.errors import UserError

COUNTS = {"n01443537": 3, "n01440764": 2, "n15075141": 4}


def open_raw(form: str, folder: Path, split: str) -> Source:
    raw = find_archives(form, str(folder), split)
    paths = []
    for number, archive in enumerate(raw.archives):
        paths.append(str(folder / f"{number}.npz"))
        index_archive(archive, paths[-1])
    return merge_indices(raw, paths)


def test_a_tar_of_tars_is_read_without_unpacking(tmp_path):
    write_train(tmp_path / "ILSVRC2012_img_train.tar", COUNTS)
    source = open_raw("ilsvrc2012", tmp_path, "train")
    assert source.labels.tolist() == [0, 0, 1, 1, 1, 999, 999, 999, 999]
    assert source.class_names == imagenet.wnids("imagenet1k")
    rows = np.array([8, 0, 3])
    assert source.read(rows) == [picture(44), picture(64), picture(38)]
    path = f"{tmp_path}/ILSVRC2012_img_train.tar"
    assert source.names(rows[1:]) == [
        f"{path}:n01440764_0.JPEG",
        f"{path}:n01443537_1.JPEG",
    ]


def test_a_tar_for_each_class_is_numbered_in_googles_order(tmp_path):
    for wnid in ("n00005787", "n15102894"):
        (tmp_path / f"{wnid}.tar").write_bytes(synset_tar(wnid, 2))
    source = open_raw("imagenet21k", tmp_path, "train")
    assert source.labels.tolist() == [1, 1, 21_842, 21_842]
    assert source.read(np.array([1, 2])) == [picture(88), picture(94)]


def test_all_of_imagenet21k_may_come_as_one_tar(tmp_path):
    write_train(tmp_path / "fall11_whole.tar", {"n00004475": 1, "n00006024": 2})
    source = open_raw("imagenet21k", tmp_path, "train")
    assert source.labels.tolist() == [0, 2, 2]


def test_validation_images_get_the_labels_of_their_numbers(tmp_path):
    write_validation(tmp_path, 5)
    lines = "\n".join(validation_classes())
    (tmp_path / "imagenet_2012_validation_synset_labels.txt").write_text(lines)
    source = open_raw("ilsvrc2012", tmp_path, "validation")
    assert source.labels.tolist() == [35, 28, 21, 14, 7]  # the tar begins with number 5
    assert source.read(np.array([4])) == [picture(1)]


def kit_numbers() -> tuple[str, bytes]:
    """Ground truth and meta.mat with numbers that are not in the order of wnids."""
    wnids = imagenet.wnids("imagenet1k")
    kind = [("ILSVRC2012_ID", "f8"), ("WNID", "O"), ("words", "O")]
    synsets = np.array(
        [(1000 - n, wnid, "words") for n, wnid in enumerate(wnids)]
        + [(1001, "n00001740", "a class with children")],
        dtype=kind,
    )
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"synsets": synsets[:, None]})
    truth = [1000 - wnids.index(wnid) for wnid in validation_classes()]
    return "".join(f"{number}\n" for number in truth), buffer.getvalue()


def write_kit(folder: Path) -> None:
    truth, meta = kit_numbers()
    with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as archive:
        root = "ILSVRC2012_devkit_t12/data"
        add(archive, f"{root}/meta.mat", meta)
        add(archive, f"{root}/ILSVRC2012_validation_ground_truth.txt", truth.encode())


def write_unpacked_kit(folder: Path) -> None:
    truth, meta = kit_numbers()
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text(truth)
    (folder / "meta.mat").write_bytes(meta)


def write_solution(folder: Path) -> None:
    rows = [
        f"ILSVRC2012_val_{number:08},{wnid} 1 2 3 4 {wnid} 5 6 7 8"
        for number, wnid in enumerate(validation_classes(), start=1)
    ]
    text = "\n".join(["ImageId,PredictionString", *reversed(rows)])
    (folder / "LOC_val_solution.csv").write_text(text)


@pytest.mark.parametrize("write", [write_kit, write_unpacked_kit, write_solution])
def test_validation_labels_are_read_in_each_form(tmp_path, write):
    write(tmp_path)
    assert validation_wnids(str(tmp_path)) == validation_classes()


def test_missing_labels_say_which_files_hold_them(tmp_path):
    with pytest.raises(UserError, match="no labels of the validation images; put one"):
        validation_wnids(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n01440764\n" * 10, "holds 10 labels where .* 50000 images"),
        ("n00004475\n" * 50_000, "'n00004475', which is no class of ImageNet-1k"),
    ],
)
def test_wrong_labels_are_refused(tmp_path, text, message):
    (tmp_path / "imagenet_2012_validation_synset_labels.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        validation_wnids(str(tmp_path))


def test_wrong_archives_of_labels_are_refused(tmp_path):
    (tmp_path / "LOC_val_solution.csv").write_text("image,label\na,b\n")
    with pytest.raises(UserError, match="not the columns ImageId,PredictionString"):
        validation_wnids(str(tmp_path))
    (tmp_path / "LOC_val_solution.csv").unlink()
    kit = tmp_path / "ILSVRC2012_devkit_t12.tar.gz"
    kit.write_bytes(gzip.compress(b"no tar"))
    with pytest.raises(UserError, match="no whole archive"):
        validation_wnids(str(tmp_path))
    with tarfile.open(kit, "w:gz") as archive:
        add(archive, "data/meta.mat", b"")
    with pytest.raises(UserError, match="holds not both"):
        validation_wnids(str(tmp_path))


def test_what_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*img_train.tar: No such file"):
        find_archives("ilsvrc2012", str(tmp_path), "train")
    with pytest.raises(UserError, match="no split 'test'; use train or validation"):
        find_archives("ilsvrc2012", str(tmp_path), "test")
    with pytest.raises(UserError, match="neither tar files named after classes"):
        find_archives("imagenet21k", str(tmp_path), "train")


def test_a_packed_or_cut_archive_is_refused(tmp_path):
    path = tmp_path / "ILSVRC2012_img_train.tar"
    path.write_bytes(gzip.compress(synset_tar("n01440764", 1)))
    with pytest.raises(UserError, match=r"no whole, uncompressed tar.*unpack .tar.gz"):
        find_archives("ilsvrc2012", str(tmp_path), "train")
    path.write_bytes(synset_tar("n01440764", 1))
    with pytest.raises(UserError, match="holds no tar file that is named after a clas"):
        find_archives("ilsvrc2012", str(tmp_path), "train")
    # An inner tar that was cut before it was packed: its last image is not whole.
    with tarfile.open(path, "w") as archive:
        add(archive, "n01440764.tar", synset_tar("n01440764", 2)[:2000])
        add(archive, "n01443537.tar", synset_tar("n01443537", 2))
    with pytest.raises(UserError, match=r"archive of n01440764 in .* is cut"):
        open_raw("ilsvrc2012", tmp_path, "train")


def test_a_class_that_imagenet_does_not_have_is_refused(tmp_path):
    write_train(tmp_path / "ILSVRC2012_img_train.tar", {"n00004475": 1})
    with pytest.raises(UserError, match=r"1 classes .* among the 1000 of imagenet1k"):
        open_raw("ilsvrc2012", tmp_path, "train")

# SPDX-License-Identifier: Apache-2.0
"""Reads the classes of ImageNet's 50,000 validation images, in each form they come in.

    imagenet_2012_validation_synset_labels.txt   a WordNet id a line, in the images'
                                                 order (so TensorFlow's scripts)
    LOC_val_solution.csv                         ImageId,PredictionString (so Kaggle)
    ILSVRC2012_devkit_t12.tar.gz                 the official kit: a number a line, and
                                                 meta.mat, which says what it stands for
    ILSVRC2012_validation_ground_truth.txt       the two files of the kit, unpacked
    and meta.mat

The kit's numbers are not the class ids that everybody uses, so they never stand alone.
"""

import csv
import io
import os
import tarfile
from typing import Any

from etils import epath

from vit_jax.data import imagenet
from vit_jax.errors import UserError

SYNSET_LABELS = "imagenet_2012_validation_synset_labels.txt"
SOLUTION = "LOC_val_solution.csv"
KIT = "ILSVRC2012_devkit_t12.tar.gz"
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
META = "meta.mat"


def validation_wnids(folder: str) -> list[str]:
    """Returns the WordNet id of each validation image in the order of their numbers.

    Args:
      folder: Holds one of the files above.

    Raises:
      UserError: None of them is there, or one that does not give a class of the 1,000
        to each of the 50,000 images.
    """
    root = epath.Path(folder)
    readers = {
        SYNSET_LABELS: lambda path: path.read_text().split(),
        SOLUTION: _read_solution,
        KIT: _read_kit,
        GROUND_TRUTH: lambda path: _decode(
            path.read_text(), (path.parent / META).read_bytes()
        ),
    }
    for name, read in readers.items():
        path = root / name
        if path.exists():
            return _checked(read(path), os.fspath(path))
    raise UserError(
        f"{folder} holds no labels of the validation images; put one of "
        f"{', '.join(readers)} there ({GROUND_TRUTH} with {META})"
    )


def _checked(wnids: list[str], path: str) -> list[str]:
    known = set(imagenet.wnids("imagenet1k"))
    strange = next((wnid for wnid in wnids if wnid not in known), None)
    if strange is not None:
        raise UserError(f"{path} holds {strange!r}, which is no class of ImageNet-1k")
    if len(wnids) != imagenet.NUM_VALIDATION:
        raise UserError(
            f"{path} holds {len(wnids)} labels where ImageNet's validation set has "
            f"{imagenet.NUM_VALIDATION} images; copy it again"
        )
    return wnids


def _read_solution(path: epath.Path) -> list[str]:
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    try:
        by_number = {
            imagenet.validation_number(row["ImageId"]): row["PredictionString"].split()
            for row in rows
        }
        return [by_number[number][0] for number in sorted(by_number)]
    except (KeyError, IndexError) as err:
        raise UserError(
            f"{path} has not the columns ImageId,PredictionString; copy it again"
        ) from err


def _read_kit(path: epath.Path) -> list[str]:
    found: dict[str, bytes] = {}
    try:
        with (
            path.open("rb") as file,
            tarfile.open(fileobj=file, mode="r:gz") as archive,
        ):
            for member in archive:
                name = os.path.basename(member.name)
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None and name in (GROUND_TRUTH, META):
                    found[name] = content.read()
    except (tarfile.TarError, OSError, EOFError) as err:
        raise UserError(f"{path} is no whole archive ({err}); copy it again") from err
    if len(found) < 2:
        raise UserError(f"{path} holds not both {GROUND_TRUTH} and {META}")
    return _decode(found[GROUND_TRUTH].decode(), found[META])


def _decode(numbers: str, meta: bytes) -> list[str]:
    """Turns the kit's numbers into WordNet ids, by its MATLAB file."""
    import scipy.io  # lazily: only the kit needs it

    synsets: Any = scipy.io.loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
    wnids = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    return [wnids.get(int(number), number) for number in numbers.split()]

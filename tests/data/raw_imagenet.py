# SPDX-License-Identifier: Apache-2.0
"""Archives of the forms in which ImageNet is handed out, with a few drawn images."""

import io
import tarfile
from pathlib import Path

from tests.data.pictures import encode, jpeg, photo
from vit_jax.data import imagenet


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def picture(seed: int) -> bytes:
    """A JPEG file, or for each third a PNG file, as some of ImageNet's .JPEG are."""
    image = photo(seed=seed)
    return encode(image, "PNG") if seed % 3 == 2 else jpeg(image)


def synset_tar(wnid: str, count: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for number in range(count):
            add(archive, f"{wnid}_{number}.JPEG", picture(int(wnid[-2:]) + number))
    return buffer.getvalue()


def write_train(path: Path, counts: dict[str, int]) -> None:
    """Writes a tar file of a tar file for each class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for wnid, count in counts.items():
            add(archive, f"{wnid}.tar", synset_tar(wnid, count))


def write_validation(folder: Path, count: int) -> None:
    """Writes the tar file of the validation images, in no order."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as archive:
        for number in range(count, 0, -1):
            add(archive, f"ILSVRC2012_val_{number:08}.JPEG", picture(number))


def validation_classes() -> list[str]:
    """A class for each validation image: number n has class (7 n) % 1000."""
    names = imagenet.wnids("imagenet1k")
    return [names[7 * number % 1000] for number in range(1, 50_001)]

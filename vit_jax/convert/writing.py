# SPDX-License-Identifier: Apache-2.0
"""The forms in which a checkpoint can be written, by name."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax import trees
from vit_jax.checkpoints import files, native
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import google, huggingface, swin, timm
from vit_jax.errors import UserError, unknown

Writer = Callable[[Checkpoint, str], Sequence[str]]


def _native(checkpoint: Checkpoint, path: str) -> Sequence[str]:
    native.write(checkpoint, path)
    return [f"use with --checkpoint={path} or --init={path}"]


def _google(checkpoint: Checkpoint, path: str) -> Sequence[str]:
    files.write_npz(path, google.tensors(checkpoint))
    return []


def _timm(checkpoint: Checkpoint, path: str) -> Sequence[str]:
    if not path.endswith(".safetensors"):
        raise UserError(
            f"timm tells a file's form by its name, so {path!r} must end in "
            ".safetensors"
        )
    arrays = timm.tensors(checkpoint)
    files.write_safetensors(path, arrays, timm.metadata(checkpoint))
    return timm.notes(checkpoint, path)


def _swin(checkpoint: Checkpoint, path: str) -> Sequence[str]:
    files.write_safetensors(path, swin.tensors(checkpoint), swin.metadata(checkpoint))
    return []


def _huggingface(checkpoint: Checkpoint, path: str) -> Sequence[str]:
    huggingface.write(checkpoint, path)
    auto = "AutoModelForImageClassification" if _has_head(checkpoint) else "AutoModel"
    return [f"open with transformers.{auto}.from_pretrained({path!r})"]


def _stablehlo(checkpoint: Checkpoint, path: str) -> Sequence[str]:
    from vit_jax import export

    export.export_stablehlo(checkpoint, path)
    return [
        f"call with jax.export.deserialize(open({path!r}, 'rb').read()).call(image)"
    ]


def _onnx(checkpoint: Checkpoint, path: str) -> Sequence[str]:
    from vit_jax import export

    export.export_onnx(checkpoint, path)
    return [f"open with onnxruntime.InferenceSession({path!r})"]


WRITERS: Mapping[str, Writer] = {
    "native": _native,
    "google": _google,
    "timm": _timm,
    "swin": _swin,
    "huggingface": _huggingface,
    "stablehlo": _stablehlo,
    "onnx": _onnx,
}


def write_checkpoint(checkpoint: Checkpoint, path: str, form: str) -> Sequence[str]:
    """Writes a checkpoint in one of the forms.

    Args:
      checkpoint: The weights.
      path: The file, or for "huggingface" the directory; it must not exist.
      form: A key of `WRITERS`.

    Returns:
      Lines that say how to open it, and what it could not hold.

    Raises:
      UserError: An unknown form, a model that the form cannot hold, or a path that
        exists.
    """
    if form not in WRITERS:
        raise unknown("form of checkpoint", form, WRITERS)
    if form == "native" or not checkpoint.model.get("patch_outputs"):
        return WRITERS[form](checkpoint, path)
    lines = WRITERS[form](_without_patch_head(checkpoint), path)
    return [*lines, "left out what predicts masked patches, which only native holds"]


def _without_patch_head(checkpoint: Checkpoint) -> Checkpoint:
    """Leaves out what only masked patch prediction has a use for."""
    params = {
        name: part
        for name, part in checkpoint.params.items()
        if name not in ("mask_embedding", "patch_head")
    }
    model = {k: v for k, v in checkpoint.model.items() if k != "patch_outputs"}
    return dataclasses.replace(checkpoint, params=params, model=model)


def average(checkpoints: Sequence[Checkpoint]) -> Checkpoint:
    """Returns the mean of the weights of several checkpoints: a uniform soup.

    Fine-tuned from the same weights, models may be averaged into one that is better
    than each (Wortsman et al., arXiv:2203.05482, section 2).

    Args:
      checkpoints: Of one model and of the same classes.

    Returns:
      The first, with the mean of all weights in its own dtypes.

    Raises:
      UserError: Models or classes that are not the same.
    """
    first, *others = checkpoints
    for i, other in enumerate(others, start=2):
        for field in ("model", "class_names", "preprocessing"):
            if getattr(other, field) != getattr(first, field):
                raise UserError(
                    f"checkpoint {i} has another {field} than the first "
                    f"({getattr(other, field)!r} and {getattr(first, field)!r}); only "
                    "weights of the same model can be averaged"
                )
    flat = [trees.flatten(checkpoint.params) for checkpoint in checkpoints]

    def mean(name: str, array: Any) -> np.ndarray:
        arrays = [np.asarray(each[name], np.float64) for each in flat]
        return np.mean(arrays, axis=0).astype(array.dtype)

    params = trees.unflatten(
        {name: mean(name, array) for name, array in flat[0].items()}
    )
    return dataclasses.replace(first, params=params)


def _has_head(checkpoint: Checkpoint) -> bool:
    return bool(checkpoint.model["num_classes"])

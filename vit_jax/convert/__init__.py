# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other frameworks, read and written.

`load_checkpoint` reads whatever a CHECKPOINT argument names; which form it has is told
by its content, never by its name. Each form is a module with `matches` and `read`.
"""

import dataclasses
import json
import re

from etils import epath

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.models import presets, stacking


def load_checkpoint(spec: str, preset: str | None = None) -> Checkpoint:
    """Loads the weights that a CHECKPOINT argument names.

    Args:
      spec: The workdir of a run (`DIR`, `DIR@STEP`, `DIR@best`, each optionally with
        `:ema` or `:raw`), a `.npz` of Google, a `.safetensors` file of ours, of timm
        or of official Swin, or a directory of Hugging Face; a file may be followed by
        `:NAME` of a sub-tree.
      preset: Numerics and preprocessing of a file that tells neither; None takes those
        that its form usually has.

    Returns:
      The weights in our names, blocks one by one, and what is needed to use them.

    Raises:
      UserError: There is nothing of that name, or nothing that can be read.
    """
    if not spec:
        raise UserError("an empty name for a checkpoint; name a file or a directory")
    if preset is not None:
        presets.find(preset)
    name, subtree = _split(spec)
    path = epath.Path(name).expanduser()
    # What reads a form is imported when needed: workdirs take Orbax, files do not.
    if path.is_dir() and _has_config(path):
        return _read_directory(path, preset)
    if path.is_dir() or re.search(r"@(\d+|best)$", name):
        from vit_jax.checkpoints import workdir

        return _unstacked(workdir.load(spec))
    if not path.exists():
        raise UserError(
            f"no checkpoint {name!r}; name the workdir of a run, a .npz or "
            ".safetensors file, or a directory of Hugging Face"
        )
    from vit_jax.checkpoints import files, native
    from vit_jax.convert import google, swin, timm

    content = files.read_tensors(path)
    if native.matches(content.metadata):
        return native.read(content)
    if google.matches(content.tensors, subtree):
        return google.read(content.tensors, content.metadata, preset, subtree)
    for form in (swin, timm):
        if form.matches(content.tensors):
            return form.read(content.tensors, content.metadata, preset)
    shown = ", ".join(list(content.tensors)[:5])
    raise UserError(
        f"{name} holds arrays of no known layout, such as {shown}; known are Google's "
        "names, timm's, official Swin's and Hugging Face's (as a directory)"
    )


def _split(spec: str) -> tuple[str, str | None]:
    """Cuts the name of a sub-tree off, if there is one."""
    match = re.fullmatch(r"(.+):([A-Za-z_][\w/]*)", spec)
    if match is None or epath.Path(spec).exists() or match[2].startswith("//"):
        return spec, None
    return match[1], match[2]


def _has_config(path: epath.Path) -> bool:
    names = {entry.name for entry in path.iterdir()}
    return "config.json" in names and "checkpoint.json" not in names


def _read_directory(path: epath.Path, preset: str | None) -> Checkpoint:
    """Reads what a hub has of a model: of transformers, or of timm."""
    from vit_jax.checkpoints import files
    from vit_jax.convert import huggingface, timm

    if huggingface.matches(path):
        return huggingface.read(path, preset)
    try:
        config = json.loads((path / "config.json").read_text())
    except json.JSONDecodeError as err:
        raise UserError(f"{path / 'config.json'} is damaged ({err})") from err
    if "architecture" not in config:
        raise UserError(
            f"{path / 'config.json'} has neither the model_type of transformers nor "
            "the architecture of timm; name the directory of a model"
        )
    content = files.read_directory(path)
    return timm.read(content.tensors, content.metadata, preset, config)


def _unstacked(checkpoint: Checkpoint) -> Checkpoint:
    """Takes apart what a run with `mesh.scan` keeps as one array for all blocks."""
    if "encoderblock" not in checkpoint.params.get("Transformer", {}):
        return checkpoint
    params = stacking.unstack_blocks(checkpoint.params)
    return dataclasses.replace(checkpoint, params=params)

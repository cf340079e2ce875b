# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in Google's names: the `.npz` files of ViT, BiT, Mixer and big_vision.

Our names are those of google-research/vision_transformer (ViT, hybrids, Mixer) and of
big_vision (BiT), so that most arrays keep theirs. Files differ in age and in what wrote
them: `legacy.py`, `vit.py` and `bit.py` know how. Names decide,
never roots. Such a file tells neither numerics nor preprocessing; a preset does.
Pooling, where no array tells it, is that of the preset, or the mean.
"""

import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from absl import logging

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert.google import bit, legacy, vit
from vit_jax.convert.identify import check_family, identify
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, presets

# Where parameters are: released files, optimizers of old Flax, other exports, and
# big_vision's train states and image towers.
ROOTS = ("", "opt/target/", "target/", "params/img/", "params/", "img/")
# The first array of a model.
_FIRST = re.compile(
    r"((?:.*/)?)(?:embedding/kernel|stem/kernel|(?<!root_block/)conv_root/kernel|"
    rf"root_block/conv_root/kernel|{bit.ROOT.pattern})"
)
_GROUP_NORM = re.compile(r"(.*/)?(gn_root|gn[123]|gn_proj|norm-pre-head)/(scale|bias)")
# Fields that change what weights mean and that no array tells.
_NUMERICS = (
    "norm_eps",
    "gelu",
    "conv_eps",
    "conv_eps_form",
    "group_norm_eps",
    "pool_padding",
)


def matches(tensors: Mapping[str, np.ndarray], subtree: str | None = None) -> bool:
    """Whether arrays have Google's names, at whatever root."""
    del subtree
    return any(_FIRST.fullmatch(name) for name in tensors)


def read(
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    preset: str | None,
    subtree: str | None = None,
) -> Checkpoint:
    """Makes a checkpoint of arrays in Google's names; no value changes.

    The exception is a table of big_vision with a row for the class token, see
    `vit.from_big_vision`.

    Args:
      tensors: By slash-joined name.
      metadata: Not used; npz files have none.
      preset: Key of `presets.PRESETS`; None takes that of the layout: "google-vit",
        "google-hybrid", "bit" and "mixer", and of big_vision "big-vision-vit",
        "siglip" and "bit-big-vision".
      subtree: Root of the parameters, such as "img"; None finds it.

    Raises:
      UserError: No model under a root that is known, arrays that are none of its own,
        or a preset of another family.
    """
    del metadata
    root = _root(tensors, subtree)
    if root:
        depth = root.count("/")
        other = [name.split("/") for name in tensors if not name.startswith(root)]
        left = sorted({"/".join(parts[:depth]) for parts in other})
        logging.info("took %s; left out: %s", root, ", ".join(left) or "nothing")
    arrays = {
        name.removeprefix(root): _number(array)
        for name, array in tensors.items()
        if name.startswith(root)
    }
    params, usual = _to_ours(arrays, root, preset)
    preset = preset or usual
    model, image_shape = identify(params, preset=preset)
    return Checkpoint(
        params=trees.unflatten(params),
        model=model,
        image_shape=image_shape,
        preprocessing=presets.find(preset).evaluation_ops(image_shape[0]),
    )


def _root(tensors: Mapping[str, np.ndarray], subtree: str | None) -> str:
    found = {match[1] for name in tensors if (match := _FIRST.fullmatch(name))}
    wanted = ROOTS
    if subtree is not None:
        place = subtree.strip("/") + "/"
        wanted = tuple(before + place + after for before in ROOTS for after in ROOTS)
    for root in wanted:
        if root in found:
            return root
    top = ", ".join(sorted({name.split("/")[0] for name in tensors}))
    if not found:
        raise UserError(f"there is no model in Google's names; these begin with {top}")
    what = "at none of the usual roots" if subtree is None else f"under {subtree!r}"
    places = " or ".join(
        f"FILE.npz:{root.strip('/')}" for root in sorted(found) if root
    )
    raise UserError(
        f"there is no model {what} of this file, whose names begin with {top}; name "
        f"{places or 'FILE.npz alone'}, where there is one"
    )


def _number(array: np.ndarray) -> np.ndarray:
    """Reads as bfloat16 what NumPy keeps as two opaque bytes."""
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def _to_ours(
    arrays: Mapping[str, np.ndarray], root: str, preset: str | None
) -> tuple[dict[str, np.ndarray], str]:
    """Returns arrays in our names, and the preset that their layout usually has."""
    if any(bit.ROOT.fullmatch(name) for name in arrays):
        return bit.from_tensorflow(arrays), "bit"
    arrays = {
        name: array.reshape(-1)
        if _GROUP_NORM.fullmatch(name) and array.shape[:-1] == (1, 1, 1)
        else array
        for name, array in legacy.modernised(arrays).items()
    }
    if "stem/kernel" in arrays:
        return arrays, "mixer"
    if "root_block/conv_root/kernel" in arrays:
        return arrays, "bit-big-vision"
    family = "hybrid" if "conv_root/kernel" in arrays else "vit"
    big_vision = vit.is_big_vision(arrays)
    if preset is not None:
        check_family(preset, family)
        fields = presets.find(preset).fields
        big_vision = big_vision or not fields.get("class_position", True)
    if big_vision:
        arrays = vit.from_big_vision(arrays)
    usual = {"hybrid": "google-hybrid", "vit": "google-vit"}[family]
    if big_vision and family == "vit":
        tower = "img" in root.split("/") and "MAPHead_0/probe" in arrays
        usual = "siglip" if tower else "big-vision-vit"
    return arrays, usual


def tensors(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint in Google's names, numbered as in linen.

    BiT gets the names of its release; a ViT or hybrid with `class_position=False` and a
    BiT whose pool is padded with -inf get those of big_vision. LayerScale is folded
    into the weights. The log says by which preset the file is to be read, and what of
    the description it does not hold.

    Raises:
      UserError: A model of a family, or with a part or numerics, that such a file
        cannot hold.
    """
    family = catalog.find(checkpoint.model["name"]).family
    if family in ("swin", "swin-v2", "axial-vit"):
        others = "" if family == "axial-vit" else "for timm or Hugging Face, or "
        raise UserError(
            f"{checkpoint.model['name']} has no form in Google's names; write it "
            f"{others}in our own form"
        )
    model: Any = build_model(**checkpoint.model)
    params = trees.flatten(checkpoint.params)
    if family in ("vit", "hybrid"):
        vit.refuse_what_has_no_name(model, checkpoint.image_shape)
        params = vit.fold_layer_scale(params)
        if not model.class_position:
            params = vit.to_big_vision(params)
    elif family == "mixer" and checkpoint.image_shape[0] != checkpoint.image_shape[1]:
        raise UserError(
            "a file in Google's names can only hold a Mixer for square images; write "
            "it in our own form"
        )
    elif family == "bit" and model.pool_padding == "zero":
        params = bit.to_tensorflow(params)
    elif family == "bit":
        params = {
            name: array[None, None, None] if _GROUP_NORM.fullmatch(name) else array
            for name, array in params.items()
        }
    _tell_what_is_lost(checkpoint, family, model)
    return params


def _tell_what_is_lost(checkpoint: Checkpoint, family: str, model: Any) -> None:
    numerics = {
        field: getattr(model, field) for field in _NUMERICS if hasattr(model, field)
    }
    own = (
        checkpoint.model.get("preset") or catalog.find(checkpoint.model["name"]).preset
    )
    fitting = [
        name
        for name, preset in presets.PRESETS.items()
        if preset.family == family and numerics.items() <= preset.fields.items()
    ]
    if not fitting:
        shown = ", ".join(f"{field}={value!r}" for field, value in numerics.items())
        raise UserError(
            f"no preset computes as this model does ({shown}), and a file in Google's "
            "names is read by a preset; write it in our own form"
        )
    preset = own if own in fitting else fitting[0]
    logging.info(
        "Google's names do not tell how the weights are run, as on images of %s; read "
        "the file with --preset=%s",
        "x".join(map(str, checkpoint.image_shape[:2])),
        preset,
    )
    if checkpoint.class_names is not None:
        logging.info("the names of the classes are not kept")

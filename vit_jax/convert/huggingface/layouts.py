# SPDX-License-Identifier: Apache-2.0
"""The layouts of transformers that are read and written, by the `model_type` of each.

Version 5 renames arrays in memory and writes the old names to disk; some files carry
the new ones. `disk_names` makes the old ones, inside the trunk, of both.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from vit_jax.convert.huggingface import maps, tables
from vit_jax.convert.rules import Rule
from vit_jax.errors import UserError, unknown

Tensors = dict[str, np.ndarray]
Renames = Sequence[tuple[str, str]]

_PARTS = {"q": "query", "k": "key", "v": "value"}
_MLP = ((r"\.mlp\.fc1\.", ".intermediate.dense."), (r"\.mlp\.fc2\.", ".output.dense."))
_NESTED = (
    *((rf"\.{p}_proj\.", f".attention.{part}.") for p, part in _PARTS.items()),
    (r"\.o_proj\.", ".output.dense."),
)
_VIT: Renames = ((r"^layers\.", "encoder.layer."), *_NESTED, *_MLP)
_DINOV2: Renames = (*_NESTED, (r"\.mlp\.down_proj\.", ".mlp.weights_out."))
_SWIN: Renames = (
    *((rf"\.{p}_proj\.", f".self.{part}.") for p, part in _PARTS.items()),
    (r"\.o_proj\.", ".output.dense."),
    (r"\.relative_position_bias\.", ".self."),
    *_MLP,
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """One `model_type`.

    Attributes:
      preset: Key of `presets.PRESETS` by which its models run.
      prefix: What names of the trunk begin with in a model with a head.
      heads: Architectures with a head; the first is written.
      trunks: Architectures without one; the first is written.
      rules: Makes the table.
      renames: From names in memory to names on disk, as regular expressions.
    """

    preset: str
    prefix: str
    heads: tuple[str, ...]
    trunks: tuple[str, ...]
    rules: Callable[[], list[Rule]]
    renames: Renames = ()


LAYOUTS: Mapping[str, Layout] = {
    "vit": Layout(
        "hf-vit",
        "vit.",
        ("ViTForImageClassification",),
        ("ViTModel",),
        tables.vit,
        _VIT,
    ),
    "deit": Layout(
        "hf-vit",
        "deit.",
        ("DeiTForImageClassificationWithTeacher", "DeiTForImageClassification"),
        ("DeiTModel",),
        tables.deit,
        _VIT,
    ),
    "dinov2": Layout(
        "dinov2",
        "dinov2.",
        ("Dinov2ForImageClassification",),
        ("Dinov2Model",),
        tables.dinov2,
        _DINOV2,
    ),
    "dinov2_with_registers": Layout(
        "dinov2",
        "dinov2_with_registers.",
        ("Dinov2WithRegistersForImageClassification",),
        ("Dinov2WithRegistersModel",),
        tables.dinov2,
        _DINOV2,
    ),
    "siglip": Layout(
        "siglip",
        "vision_model.",
        ("SiglipForImageClassification",),
        ("SiglipModel",),
        tables.siglip,
    ),
    "siglip_vision_model": Layout(
        "siglip", "vision_model.", (), ("SiglipVisionModel",), tables.siglip
    ),
    "swin": Layout(
        "hf-swin-v1",
        "swin.",
        ("SwinForImageClassification",),
        ("SwinModel",),
        maps.swin,
        _SWIN,
    ),
    "swinv2": Layout(
        "hf-swin-v2",
        "swinv2.",
        ("Swinv2ForImageClassification",),
        ("Swinv2Model",),
        maps.swin_v2,
    ),
    "bit": Layout(
        "hf-bit", "bit.", ("BitForImageClassification",), ("BitModel",), maps.bit
    ),
    # Version 4 alone has it, so it is not written.
    "vit-hybrid": Layout(
        "timm-hybrid",
        "vit.",
        ("ViTHybridForImageClassification",),
        ("ViTHybridModel",),
        maps.hybrid,
    ),
}

_HEAD = re.compile(r"((cls_|distillation_)?classifier|pooler)\.")
# Rebuilt from the sizes by whoever needs them.
_BUFFER = re.compile(
    r".*(relative_position_index|relative_coords_table|attn_mask|position_ids)"
)
# What evaluation has no use for: the token of masked patches, and what SigLIP has
# besides the image tower.
_UNUSED = re.compile(r"(.*\.)?mask_token|text_model\..*|logit_scale|logit_bias")


def layout_of(config: Mapping[str, Any], origin: str) -> str:
    """Returns the key of `LAYOUTS` that a config.json states.

    Args:
      config: Its content.
      origin: Its name, for errors.

    Raises:
      UserError: It states none, or one that is not read, or another architecture of
        one that is.
    """
    kind = config.get("model_type")
    if kind is None:
        hint = "give one that save_pretrained() of transformers wrote"
        if "architecture" in config:
            hint = "it is timm's: give the model.safetensors beside it instead"
        raise UserError(f"{origin} has no model_type; {hint}")
    if kind not in LAYOUTS:
        raise unknown(f"model_type in {origin}:", str(kind), LAYOUTS)
    known = LAYOUTS[kind].heads + LAYOUTS[kind].trunks
    for name in config.get("architectures") or ():
        if name not in known:
            raise unknown(f"architecture in {origin}:", str(name), known)
    return kind


def disk_names(kind: str, tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Returns arrays by their names on disk inside the trunk.

    Buffers are left out, and so is what evaluation does not use, which the log names.
    """
    layout = LAYOUTS[kind]
    named: Tensors = {}
    unused = []
    for name, array in tensors.items():
        name = name.removeprefix(layout.prefix)
        if _UNUSED.fullmatch(name):
            unused.append(name)
        elif not _BUFFER.fullmatch(name):
            for pattern, new in layout.renames:
                name = re.sub(pattern, new, name)
            named[name] = array
    if "classifier.weight" in named and kind == "siglip":
        unused += [name for name in named if name.startswith("head.")]
    if kind == "deit" or "classifier.weight" in named:
        unused += [name for name in named if name.startswith("pooler.")]
    if unused:
        shown = ", ".join(unused[:3]) + ", ..." * (len(unused) > 3)
        logging.info("left out %d arrays without use here: %s", len(unused), shown)
    return {k: v for k, v in _with_gates(named).items() if k not in unused}


def _with_gates(tensors: Tensors) -> Tensors:
    """Joins the two halves of gated layers, which version 5 has apart in memory."""
    joined: Tensors = {}
    for name, array in tensors.items():
        if ".mlp.gate_proj." in name:
            value = tensors.get(name.replace("gate_proj", "up_proj"), array[:0])
            name = name.replace("gate_proj", "weights_in")
            array = np.concatenate([array, value])
        if ".mlp.up_proj." not in name:
            joined[name] = array
    return joined


def with_prefix(kind: str, tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Returns arrays by the names of a model with a head."""
    prefix = LAYOUTS[kind].prefix
    return {
        name if _HEAD.match(name) else prefix + name: array
        for name, array in tensors.items()
    }


def rules_of(kind: str, gated: bool = False) -> list[Rule]:
    """Returns the table of a layout; `gated` is that of DINOv2's other MLP."""
    return tables.dinov2(gated=True) if gated else LAYOUTS[kind].rules()

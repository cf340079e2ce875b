# SPDX-License-Identifier: Apache-2.0
"""The comparison of `--verify` against the frameworks themselves."""

import dataclasses
import pathlib

import numpy as np
import pytest

from tests.reference.weights import random_params
from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import verify, writing
from vit_jax.models import build_model

pytestmark = pytest.mark.reference

VIT = {"width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64}
SWIN = {"width": 32, "depths": [2, 1], "num_heads": [1, 2], "window_size": 4}
MODELS = {
    "vit": ({"name": "ViT-S/8", **VIT}, 32, "block01/output"),
    "hybrid": (
        {"name": "R26+ViT-S/32", "preset": "timm-hybrid", **VIT},
        64,
        "stage4/unit2",
    ),
    "bit": ({"name": "BiT-R50x1", "preset": "timm-bit"}, 32, "stage4/unit03"),
    "mixer": ({"name": "Mixer-B/16", "preset": "timm-mixer"}, 224, "block11/output"),
    "swin": ({"name": "Swin-T", "resolution": 32, **SWIN}, 32, "stage0/block01/output"),
    "swin-v2": (
        {"name": "SwinV2-T", "resolution": 32, **SWIN},
        32,
        "stage1/block00/output",
    ),
}
CASES = [
    (form, family)
    for family in MODELS
    for form in ("timm", "huggingface")
    if form == "timm" or family not in ("hybrid", "mixer")
]


def make(family: str) -> tuple[Checkpoint, str]:
    fields, side, output = MODELS[family]
    fields = {**fields, "num_classes": 7}
    params = random_params(build_model(**fields), side)
    checkpoint = Checkpoint(
        params=params,
        model=fields,
        image_shape=(side, side, 3),
        preprocessing=f"decode|resize({side})|value_range(-1, 1)",
    )
    return checkpoint, output


@pytest.mark.parametrize(("form", "family"), CASES)
def test_what_is_written_computes_the_same_there(
    form: str, family: str, tmp_path: pathlib.Path
):
    checkpoint, output = make(family)
    path = str(tmp_path / "written.safetensors")
    writing.write_checkpoint(checkpoint, path, form)
    verdict = verify.verify(checkpoint, path, form)
    assert verdict.against.startswith({"timm": "timm's", "huggingface": "tran"}[form])
    assert verdict.equal, verdict.table()
    assert verdict.same_top5 == 1.0
    # Blocks were compared too, and not the logits alone.
    assert (output, "real") in {(d.name, d.image) for d in verdict.differences}


def test_another_activation_is_found(tmp_path: pathlib.Path):
    checkpoint, _ = make("vit")
    path = str(tmp_path / "written.safetensors")
    writing.write_checkpoint(checkpoint, path, "huggingface")
    changed = dataclasses.replace(checkpoint, model={**checkpoint.model, "gelu": "erf"})
    assert not verify.verify(changed, path, "huggingface", tolerance=1e-5).equal


def test_one_weight_that_is_off_is_found_in_its_block(tmp_path: pathlib.Path):
    checkpoint, _ = make("swin")
    path = str(tmp_path / "written.safetensors")
    writing.write_checkpoint(checkpoint, path, "timm")
    flat = dict(trees.flatten(checkpoint.params))
    name = "layers_0/blocks_1/attn/relative_position_bias_table"
    flat[name] = flat[name] + np.float32(1.0) * (
        np.arange(flat[name].size) % 2
    ).reshape(flat[name].shape)
    changed = dataclasses.replace(checkpoint, params=trees.unflatten(flat))
    verdict = verify.verify(changed, path, "timm")
    over = {d.name for d in verdict.differences if d.relative > verdict.tolerance}
    assert "stage0/block00/output" not in over
    assert "stage0/block01/output" in over

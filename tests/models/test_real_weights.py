# SPDX-License-Identifier: Apache-2.0
"""A trained model from files that are not part of the project.

VIT_JAX_DINOV2 names a folder with `vit_s14_google_fp16.npz`, a ViT-S/14 of DINOv2 in
Google's names with positions for 37x37 patches, and `golden.npz`: pictures, and what
another runtime makes of them.
"""

import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model, presets
from vit_jax.resample import resize_positions

FOLDER = os.environ.get("VIT_JAX_DINOV2")
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="VIT_JAX_DINOV2 names no folder with the weights of DINOv2"
)

PRESET = presets.find("dinov2")
POSITIONS = "Transformer/posembed_input/pos_embedding"

# The file is rounded to float16, the golden figures come from unrounded weights.
RELATIVE = 1e-2


@pytest.fixture(scope="module")
def weights():
    """The file with the sub-modules of a block counted by type, as today."""
    today = {
        "LayerNorm_2": "LayerNorm_1",
        "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
        "MlpBlock_3": "MlpBlock_0",
    }
    with np.load(Path(str(FOLDER), "vit_s14_google_fp16.npz")) as file:
        return {
            re.sub("|".join(today), lambda match: today[match[0]], name): file[name]
            for name in file.files
        }


@pytest.fixture(scope="module")
def golden():
    with np.load(Path(str(FOLDER), "golden.npz")) as file:
        return dict(file)


def model_and_params(weights, **fields):
    model = build_model("ViT-S/14", num_classes=0, preset="dinov2", **fields)
    params = trees.unflatten(
        {name: jnp.asarray(leaf, jnp.float32) for name, leaf in weights.items()}
    )
    return model, params


def normalised(pixels):
    mean, std = (np.asarray(values, np.float32) for values in PRESET.pixels)
    return (pixels.astype(np.float32) - mean) / std


def relative_error(ours, golden):
    return np.sqrt(np.mean((ours - golden) ** 2) / np.mean(golden**2))


def test_resized_positions_are_the_golden_ones(weights, golden):
    table = weights[POSITIONS].astype(np.float32)
    resized = resize_positions(table, (16, 16), PRESET.position_resize)
    # Rounding to 11 bits, and cubic weights whose sizes sum to 1.6 on a plane.
    expected = golden["pos_embed_16x16"]
    assert np.abs(resized[0] - expected).max() < 1.6 * 2**-11 * np.abs(table).max()


@pytest.mark.parametrize("when", ["loading", "running"])
def test_tokens_are_the_golden_ones(weights, golden, when):
    fields = {"resolution": 518, "resize_positions": PRESET.position_resize}
    if when == "loading":
        fields = {"resolution": 224}
        table = weights[POSITIONS].astype(np.float32)
        table = resize_positions(table, (16, 16), PRESET.position_resize)
        weights = {**weights, POSITIONS: table}
    model, params = model_and_params(weights, **fields)
    image = normalised(golden["images_uint8"])
    features, out = jax.jit(model.apply)({"params": params}, image)
    first = relative_error(features, golden["tokens_first"][:, 0])
    mean = relative_error(out["encoded"][:, 1:].mean(1), golden["tokens_patch_mean"])
    assert max(first, mean) < RELATIVE


def test_other_numerics_do_not_pass(weights, golden):
    model, params = model_and_params(
        weights, resolution=518, resize_positions="zoom", gelu="tanh"
    )
    image = normalised(golden["images_uint8"])[:2]
    features, _ = jax.jit(model.apply)({"params": params}, image)
    assert relative_error(features, golden["tokens_first"][:2, 0]) > RELATIVE


@pytest.mark.parametrize("size", [(518, 518), (224, 336)])
def test_other_sizes_run_where_resizing_is_asked_for(weights, golden, size):
    pixels = golden["images_uint8"][:1]
    image = normalised(np.asarray(jax.image.resize(pixels, (1, *size, 3), "linear")))
    model, params = model_and_params(weights, resolution=518)
    if size != (518, 518):
        with pytest.raises(UserError, match="made for a grid of 37x37 patches"):
            model.apply({"params": params}, image)
        model = model.clone(resize_positions=PRESET.position_resize)
    features, _ = jax.jit(model.apply)({"params": params}, image)
    assert np.isfinite(features).all()
    expected = golden["tokens_first"][0, 0]
    cosine = features[0] @ expected / np.linalg.norm(features[0])
    # The same picture at another scale is still the same picture.
    assert cosine / np.linalg.norm(expected) > 0.8

# SPDX-License-Identifier: Apache-2.0
"""The same file in Google's names, read by us and by timm, gives the same logits."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference.weights import images, random_params, to_torch
from vit_jax import trees
from vit_jax.checkpoints import files
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import google
from vit_jax.models import build_model, stacking

pytestmark = pytest.mark.reference

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what these packages warn of is theirs
    timm = pytest.importorskip("timm")

TINY = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64}
SIZES = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_ratio": 2,
}
# Sums in another order.
LOGITS = 1e-5


def checkpoint(name, side, **fields):
    model = {"name": name, **fields}
    params = random_params(build_model(**model), side)
    return Checkpoint(params, model, (side, side, 3))


def assert_both_read_the_same(path, preset, theirs, kind):
    found = google.read(files.read_tensors(path).tensors, {}, preset)
    image = images(found.image_shape[0] if preset != "timm-bit" else 64, kind)
    params = jax.tree.map(jnp.asarray, found.params)
    ours, _ = jax.jit(build_model(**found.model).apply)({"params": params}, image)
    theirs.load_pretrained(str(path))
    with torch.no_grad():
        expected = theirs.eval()(to_torch(np.asarray(image).transpose(0, 3, 1, 2)))
    expected = expected.numpy()
    assert 0.1 < np.abs(expected).mean() < 10
    assert np.abs(ours - expected).max() < LOGITS


@pytest.mark.parametrize("kind", ["random", "nearly constant"])
def test_a_vit_with_the_numbers_of_old_flax(tmp_path, kind):
    params = trees.flatten(checkpoint("ViT-Ti/8", 32, num_classes=5, **TINY).params)
    numbers = {"LayerNorm_1": "LayerNorm_2", "Attention_0": "Attention_1"}
    numbers["MlpBlock_0"] = "MlpBlock_3"
    old = {
        re.sub("|".join(numbers), lambda match: numbers[match[0]], name): array
        for name, array in params.items()
    }
    np.savez(tmp_path / "a.npz", **old)
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=5, **SIZES)
    assert_both_read_the_same(tmp_path / "a.npz", "timm-vit", theirs, kind)


@pytest.mark.parametrize("stacked", [False, True])
def test_an_image_tower_that_we_write(tmp_path, stacked):
    tower = checkpoint(
        "ViT-Ti/8", 32, num_classes=0, preset="siglip", gelu="erf", **TINY
    )
    arrays = google.tensors(tower)
    if stacked:
        arrays = trees.flatten(stacking.stack_blocks(trees.unflatten(arrays)))
    np.savez(tmp_path / "a.npz", **{f"params/img/{k}": a for k, a in arrays.items()})
    theirs = timm.create_model("vit_base_patch16_siglip_224", **SIZES)
    path = tmp_path / "a.npz"
    assert_both_read_the_same(path, "timm-vit", theirs, "random")


def test_a_class_token_without_a_position(tmp_path):
    arrays = google.tensors(
        checkpoint("ViT-Ti/8", 32, num_classes=5, class_position=False, **TINY)
    )
    np.savez(tmp_path / "a.npz", **arrays)
    theirs = timm.create_model(
        "vit_tiny_patch16_224", num_classes=5, no_embed_class=True, **SIZES
    )
    assert_both_read_the_same(tmp_path / "a.npz", "timm-vit", theirs, "random")


def test_a_bit_that_we_write(tmp_path):
    bit = checkpoint("BiT-R50x1", 64, num_classes=5, stages=(1, 2))
    files.write_npz(tmp_path / "a.npz", google.tensors(bit))
    theirs = timm.models.ResNetV2(
        layers=(1, 2),
        channels=(256, 512),
        num_classes=5,
        stem_type="fixed",
        conv_layer=lambda *args, **kwargs: timm.layers.StdConv2d(
            *args, eps=1e-8, **kwargs
        ),
    )
    assert_both_read_the_same(tmp_path / "a.npz", "timm-bit", theirs, "random")

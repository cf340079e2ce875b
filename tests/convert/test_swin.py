# SPDX-License-Identifier: Apache-2.0
"""State dicts of the authors of Swin; that they compute the same: tests/reference."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import swin, timm
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog
from vit_jax.models.layers.windows import log_coordinates

SIZES = {"width": 8, "depths": (2, 1), "num_heads": (2, 4)}
SIZES |= {"window_size": 4, "resolution": 32}
ROWS = [row for row in catalog.VARIANTS if row.family.startswith("swin")]


def checkpoint(name, **fields):
    kwargs = {"name": name, "num_classes": 7, **SIZES, **fields}
    model, side = build_model(**kwargs), kwargs["resolution"]
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes
    )
    return Checkpoint(params, kwargs, (side, side, 3))


def with_buffers(made):
    """The tensors with the buffers that the authors' code saves beside them."""
    named = swin.tensors(made)
    model = build_model(**made.model)
    sides = [model.resolution // 4 // 2**i for i in range(len(model.depths))]
    pretrained = getattr(model, "pretrained_window_size", None)
    for stage, depth in enumerate(model.depths):
        window = min(model.window_size, sides[stage])
        for block in range(depth):
            prefix = f"layers.{stage}.blocks.{block}"
            index = np.zeros((window**2, window**2), np.int64)
            named[f"{prefix}.attn.relative_position_index"] = index
            if "pretrained_window_size" in dir(model):
                own = pretrained[stage] if pretrained else window
                table = log_coordinates((window, window), (own, own))
                table = table.reshape(1, 2 * window - 1, 2 * window - 1, 2)
                named[f"{prefix}.attn.relative_coords_table"] = table
            if block % 2 and window < sides[stage]:
                count = (sides[stage] // window) ** 2
                mask = np.zeros((count, window**2, window**2), np.float32)
                named[f"{prefix}.attn_mask"] = mask
    return named


def assert_same(ours, expected):
    ours, expected = trees.flatten(ours), trees.flatten(expected)
    assert set(ours) == set(expected)
    for name, leaf in expected.items():
        np.testing.assert_array_equal(ours[name], leaf, err_msg=name)


FORMS = {
    "V1": ("Swin-T", {}),
    "V1 with absolute positions": ("Swin-T", {"absolute_positions": True}),
    "V1, last window shrunk": ("Swin-T", {"window_size": 8}),
    "V2": ("SwinV2-T", {}),
    "V2 after another pre-training": (
        "SwinV2-T",
        {"pretrained_window_size": (6, 3)},
    ),
    "V2, last window shrunk": ("SwinV2-T", {"window_size": 8}),
    "V2 without a head": ("SwinV2-T", {"num_classes": 0}),
}


@pytest.mark.parametrize("form", FORMS)
def test_buffers_tell_windows_and_resolution_and_are_no_parameters(form):
    name, fields = FORMS[form]
    made = checkpoint(name, **fields)
    named = with_buffers(made)
    assert swin.matches(named)
    read = swin.read(named)
    assert_same(read.params, made.params)
    found, wanted = build_model(**read.model), build_model(**made.model)
    assert found == wanted
    assert read.image_shape == (32, 32, 3)
    assert read.model["preset"] == {"Swin-T": "swin-v1"}.get(name, "swin-v2")


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read_back_bit_for_bit(form):
    name, fields = FORMS[form]
    made = checkpoint(name, preset=None, **fields)
    named = swin.tensors(made)
    back = swin.read(named, swin.metadata(made))
    assert_same(back.params, made.params)
    assert back.model == made.model
    assert_same(swin.tensors(back), named)


def test_merging_is_at_the_end_of_a_stage_and_at_the_start_of_one_in_timm():
    made = checkpoint("Swin-T")
    official, theirs = swin.tensors(made), timm.tensors(made)
    for last in ("norm.weight", "norm.bias", "reduction.weight"):
        np.testing.assert_array_equal(
            official[f"layers.0.downsample.{last}"],
            theirs[f"layers.1.downsample.{last}"],
        )
    np.testing.assert_array_equal(official["head.weight"], theirs["head.fc.weight"])
    assert not swin.matches(theirs)
    assert swin.matches(official)
    # Neither is told by the head: without one, the place of merging tells.
    headless = checkpoint("Swin-T", num_classes=0)
    assert not swin.matches(timm.tensors(headless))
    assert swin.matches(swin.tensors(headless))


def test_a_single_stage_is_told_by_its_head():
    made = checkpoint("Swin-T", depths=(2,), num_heads=(2,))
    assert swin.matches(swin.tensors(made))
    assert not swin.matches(timm.tensors(made))
    assert not swin.matches({"blocks.0.attn.qkv.weight": np.zeros(1)})


def test_the_size_follows_from_the_tables_without_buffers():
    read = swin.read(swin.tensors(checkpoint("Swin-T", window_size=8)))
    # The second stage has windows of 4, as its map is 4 x 4: 32 pixels.
    assert build_model(**read.model).window_size == 8
    assert read.image_shape == (32, 32, 3)


def test_models_for_384_pixels_see_the_whole_image():
    fields = {"window_size": 12, "resolution": 384}
    read = swin.read(with_buffers(checkpoint("Swin-T", **fields)))
    assert read.model["preset"] == "swin-v1-384"
    assert read.preprocessing.startswith("decode|resize(384,")
    small = swin.read(with_buffers(checkpoint("Swin-T")))
    assert small.preprocessing.startswith("decode|resize_small(36,")  # 32 / 0.875


def test_21841_classes_are_read():
    # The classes of the authors' files of ImageNet-22k.
    named = swin.tensors(checkpoint("Swin-T", num_classes=21841))
    assert named["head.weight"].shape == (21841, 16)
    assert swin.read(named).model["num_classes"] == 21841


def test_what_the_authors_do_not_have_is_refused():
    with pytest.raises(UserError, match=r"extra_norm_every.*native"):
        swin.tensors(checkpoint("SwinV2-T", extra_norm_every=2))
    vit = Checkpoint({}, {"name": "ViT-B/16", "num_classes": 1}, (224, 224, 3))
    with pytest.raises(UserError, match=r"ViT-B/16 is no Swin.*timm instead"):
        swin.tensors(vit)


def test_incomplete_or_contradicting_files_are_refused():
    made = checkpoint("Swin-T", preset="swin-v1")
    named = swin.tensors(made)
    with pytest.raises(UserError, match="'swin-v1', not 'timm-swin-v1'"):
        swin.read(named, swin.metadata(made), "timm-swin-v1")
    with pytest.raises(UserError, match="not those of the model that the file"):
        swin.read(named, swin.metadata(checkpoint("Swin-T", num_classes=8)))
    del named["layers.1.blocks.0.attn.relative_position_bias_table"]
    with pytest.raises(UserError, match="number of heads; it is incomplete"):
        swin.read(named)


# Parameters of official files (tensors without buffers, numbers).
OFFICIAL = {"Swin-T": (173, 28_288_354), "SwinV2-T": (221, 28_347_154)}


@pytest.mark.parametrize("name", OFFICIAL)
def test_tensors_of_official_files(name):
    row = catalog.find(name)
    kwargs = {"name": name, "num_classes": 1000}
    image = jax.ShapeDtypeStruct((1, row.resolution, row.resolution, 3), jnp.float32)
    init = build_model(**kwargs).init
    shapes = jax.eval_shape(init, jax.random.key(0), image)["params"]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.uint8), shapes)
    named = swin.tensors(Checkpoint(params, kwargs, (row.resolution,) * 2 + (3,)))
    sizes = [math.prod(tensor.shape) for tensor in named.values()]
    assert (len(sizes), sum(sizes)) == OFFICIAL[name]

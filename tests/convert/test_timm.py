# SPDX-License-Identifier: Apache-2.0
"""State dicts of timm: every row of the zoo, both ways, and what is refused.

That timm computes the same is in tests/reference/test_timm_files.py.
"""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import timm
from vit_jax.convert.timm.architectures import ARCHITECTURES
from vit_jax.convert.timm.heads import heads_of
from vit_jax.convert.timm.names import mlp_ratio
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog

# Two blocks of width 64, as timm's heads are 64 wide where nobody says otherwise.
TINY = {"width": 64, "depth": 2, "num_heads": 1, "mlp_dim": 96}
# Sizes that keep the names of a family's rows, but for the number of blocks.
VIT = {"width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 8}
SWIN = {"width": 8, "depths": (2, 2, 2, 2), "num_heads": (1,) * 4, "mlp_ratio": 1}
SWIN |= {"window_size": 8, "resolution": 256}
THIN = {
    "vit": {**VIT, "patch_size": 8},
    "hybrid": VIT,
    "mixer": {"patch_size": 8, "width": 8, "depth": 2, "token_mlp_dim": 4}
    | {"mlp_dim": 8},
    "bit": {"width_factor": 1, "stages": (2, 2, 2, 2)},
    "swin": SWIN,
    "swin-v2": SWIN,
}
SIDES = {"vit": 32, "hybrid": 64, "mixer": 32, "bit": 64, "swin": 256, "swin-v2": 256}


@functools.cache
def shapes(model, side):
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), image)["params"]


def checkpoint(name, side, *, num_classes=10, **fields):
    """Random weights of a model."""
    kwargs = {"name": name, "num_classes": num_classes, **fields}
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32),
        shapes(build_model(**kwargs), side),
    )
    return Checkpoint(params, kwargs, (side, side, 3), "decode", tuple("abcdefghij"))


def assert_same(ours, expected):
    ours, expected = trees.flatten(ours), trees.flatten(expected)
    assert set(ours) == set(expected)
    for name, leaf in expected.items():
        assert ours[name].dtype == leaf.dtype
        np.testing.assert_array_equal(ours[name], leaf, err_msg=name)


# Tensors of timm's models, from their state dicts.
COUNTS = {
    "ViT-B/16": 152,
    "ViT-L/16": 296,
    "ViT-H/14": 392,
    "R+ViT-Ti/16": 155,
    "R26+ViT-S/32": 239,
    "R50+ViT-B/16": 308,
    "R50+ViT-L/32": 455,
    "BiT-R50x1": 153,
    "Mixer-B/16": 150,
    "Mixer-L/16": 294,
    "Swin-T": 173,
    "Swin-S": 329,
    "Swin-B": 329,
    "Swin-L": 329,
    "SwinV2-T": 221,
    "SwinV2-S": 425,
    "SwinV2-B": 425,
    "SwinV2-L": 425,
}


ROWS = [row for row in catalog.VARIANTS if row.family != "axial-vit"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_a_place_in_timm(row):
    side, thin = SIDES[row.family], dict(THIN[row.family])
    if row.family == "hybrid":
        thin["stages"] = (2,) * len(row.fields["stages"])
    made = checkpoint(row.name, side, **thin)
    if "extra_norm_every" in row.fields:
        # Norms after each sixth block, which the two blocks above do not have.
        made = checkpoint(row.name, side, **thin, extra_norm_every=2)
        with pytest.raises(UserError, match=r"extra_norm_every.*convert to native"):
            timm.tensors(made)
        return
    named = timm.tensors(made)
    assert timm.matches(named)
    # Packed projections are two tensors of timm and six of ours.
    packed = sum(name.endswith("attn.qkv.weight") for name in named)
    extra = 4 * packed if row.family in ("vit", "hybrid") else 0
    assert len(named) + extra == len(trees.flatten(made.params))
    if row.name in COUNTS:
        count = len(named)
        for template, real, own in repeated(row):
            each = sum(name.startswith(template) for name in named)
            count += each * (real - own)
        assert count == COUNTS[row.name]


def repeated(row):
    """Prefix of a block that repeats, how often a row has it, and the model above."""
    if row.family == "bit":
        for stage, units in enumerate(row.fields["stages"]):
            yield f"stages.{stage}.blocks.1.", units, 2
    elif "depths" in row.fields:
        for stage, depth in enumerate(row.fields["depths"]):
            yield f"layers.{stage}.blocks.1.", depth, 2
    else:
        yield "blocks.1.", row.fields["depth"], 2
        for stage, units in enumerate(row.fields.get("stages", ())):
            yield f"patch_embed.backbone.stages.{stage}.blocks.1.", units, 2


def through_a_file(made, tmp_path, **kwargs):
    path = tmp_path / "timm.safetensors"
    save_file(timm.tensors(made), path, metadata=timm.metadata(made))
    return timm.read(load_file(path), metadata_of(path), **kwargs)


def metadata_of(path):
    with safe_open(path, "numpy") as file:
        return file.metadata()


FORMS = {
    "class token": {},
    "tanh": {"preset": "google-vit"},
    "another epsilon": {"preset": "hf-vit"},
    "mean, norm before": {"pool": "mean"},
    "mean, norm after": {"pool": "mean", "pool_norm": "after"},
    "mean beside a class token": {"pool": "mean", "class_token": True},
    "attention pooling": {"preset": "siglip"},
    "attention pooling beside a class token": {"pool": "map", "class_token": True},
    "every patch": {"pool": "none"},
    "distilled": {"distillation": True},
    "no row for the class token": {"class_position": False},
    "registers": {"num_registers": 3},
    "registers and no rows": {"num_registers": 3, "class_position": False},
    "registers and a mean": {"num_registers": 3, "pool": "mean"},
    "layer scale": {"layer_scale": 1e-5},
    "gated": {"mlp": "swiglu", "layer_scale": 1e-5},
    "norms of queries and keys": {"qk_norm": True},
    "no positions": {"positions": "none"},
    "fixed positions": {"positions": "sincos2d", "pool": "mean"},
    "rotary": {"positions": "rotary2d", "layer_scale": 1e-5},
    "no head": {"num_classes": 0},
    "folded DINOv2": {"preset": "dinov2"},
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read_back_bit_for_bit(form, tmp_path):
    fields = {"preset": "timm-vit", **TINY, **FORMS[form]}
    made = checkpoint("ViT-S/8", 16, **fields)
    back = through_a_file(made, tmp_path)
    assert_same(back.params, made.params)
    assert dataclasses.replace(back, params={}) == dataclasses.replace(made, params={})
    # Written again, nothing has changed.
    again, first = timm.tensors(back), timm.tensors(made)
    assert_same(again, first)


# What tensors alone tell, with what they cannot tell.
TOLD = {
    "class token": {},
    "mean, norm after": {},
    "attention pooling": {"gelu": "erf"},
    "distilled": {},
    "no row for the class token": {},
    "registers": {},
    "registers and no rows": {},
    "layer scale": {},
    "gated": {},
    "norms of queries and keys": {},
    "rotary": {},
    "no head": {},
}


@pytest.mark.parametrize("form", TOLD)
def test_tensors_tell_the_form_without_metadata(form):
    fields = {"preset": "timm-vit", **TINY, **FORMS[form]}
    made = checkpoint("ViT-S/8", 16, **fields)
    read = timm.read(timm.tensors(made))
    assert_same(read.params, made.params)
    # Every field is found; what is said beside the row may be more than above.
    found, wanted = (
        build_model(**model)
        for model in (read.model, {**made.model, **TOLD[form], "name": "ViT-S/8"})
    )
    scale = {"layer_scale": found.layer_scale, "position_stddev": None}
    assert found.clone(**scale) == wanted.clone(**scale)
    # Without a table of positions nothing tells the size of the images.
    side = 224 if form == "rotary" else 16
    assert read.image_shape == (side, side, 3)


def test_older_names_of_layer_scale_are_read():
    made = checkpoint("ViT-S/8", 16, **TINY, layer_scale=1e-6, class_position=False)
    named = {
        name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): tensor
        for name, tensor in timm.tensors(made).items()
    }
    assert "blocks.1.gamma_2" in named
    read = timm.read(named)
    assert_same(read.params, made.params)
    assert read.preprocessing.endswith('normalize("imagenet")')


def test_rows_of_registers_are_added_to_them(rng):
    made = checkpoint("ViT-S/8", 16, **TINY, num_registers=2)
    named = timm.tensors(made)
    rows = rng.normal(size=(1, 2, 64)).astype(np.float32)
    assert named["pos_embed"].shape == (1, 1 + 2 + 4, 64)
    np.testing.assert_array_equal(named["pos_embed"][:, 1:3], 0)
    named["pos_embed"] = named["pos_embed"].copy()
    named["pos_embed"][:, 1:3] = rows
    read = timm.read(named)
    np.testing.assert_array_equal(
        read.params["registers"], made.params["registers"] + rows
    )


def test_heads_are_those_of_the_row_with_the_same_sizes():
    # ViT-mu: 32 wide, one block, and two heads; by width they would be none.
    made = checkpoint("ViT-mu/16", 32)
    assert timm.read(timm.tensors(made)).model["name"] == "ViT-mu/16"
    # The heads of So400m are 72 wide, so 16 of them; by width they would be 18.
    sizes = {**catalog.VIT_SIZES["So400m"], "patch_size": 14}
    tensors = {
        "blocks.0.attn.proj.weight": np.broadcast_to(np.uint8(0), (1152, 1152)),
        "blocks.0.mlp.fc2.weight": np.broadcast_to(np.uint8(0), (1152, 4304)),
    } | {f"blocks.{i}.norm1.weight": np.zeros(1) for i in range(27)}
    assert heads_of("vit", tensors, None) == sizes["num_heads"] == 16


def test_unknown_heads_are_asked_for_and_taken_from_config():
    fields = {**TINY, "width": 48, "num_heads": 4}
    made = checkpoint("ViT-S/8", 16, preset="timm-vit", **fields)
    named = timm.tensors(made)
    with pytest.raises(UserError, match=r"heads of a ViT of width 48.*config\.json"):
        timm.read(named)
    config = {"architecture": "vit_small_patch16_224", "model_args": {"num_heads": 4}}
    assert_same(timm.read(named, config=config).params, made.params)


CONFIG = {
    "architecture": "vit_base_patch16_224",
    "num_classes": 3,
    "global_pool": "avg",
    "label_names": ["n01", "n02", "n03"],
    "label_descriptions": {"n01": "cat", "n02": "dog"},
    "model_args": {"num_heads": 4, "act_layer": "gelu_tanh", "img_size": 16},
    "pretrained_cfg": {
        "input_size": [3, 224, 224],
        "interpolation": "bilinear",
        "crop_pct": 0.8,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    },
}


def test_config_tells_heads_pooling_activation_preprocessing_and_classes():
    fields = {**TINY, "num_heads": 4, "pool": "mean", "class_token": True}
    made = checkpoint("ViT-S/8", 16, preset="timm-vit", gelu="tanh", **fields)
    read = timm.read(timm.tensors(made), config=CONFIG)
    assert_same(read.params, made.params)
    assert read.model["pool"] == "mean"
    assert read.model["gelu"] == "tanh"
    assert read.class_names == ("cat", "dog", "n03")
    assert read.preprocessing == (
        'decode|resize_small(20, method="bilinear", antialias=True)|central_crop(16)'
        '|normalize("imagenet")'
    )


def test_statistics_and_squashing_of_config():
    named = timm.tensors(checkpoint("ViT-S/8", 16, **TINY))
    images = {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_mode": "squash"}
    read = timm.read(named, config={"pretrained_cfg": images})
    assert read.preprocessing == (
        'decode|resize((16, 16), method="bicubic", antialias=True)|central_crop(16)'
        "|value_range(-1, 1)"
    )
    images = {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3], "crop_pct": 1}
    read = timm.read(named, config={"pretrained_cfg": images})
    assert read.preprocessing.endswith("|normalize((0.1, 0.2, 0.3), (1, 2, 3))")


def test_a_grid_that_is_not_square_is_told_by_config():
    kwargs = {"name": "ViT-S/8", "num_classes": 10, "preset": "timm-vit", **TINY}
    model = build_model(**kwargs, resolution=(16, 32))
    image = jax.ShapeDtypeStruct((1, 16, 32, 3), jnp.float32)
    tree = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), tree)
    made = Checkpoint(params, {**kwargs, "resolution": (16, 32)}, (16, 32, 3))
    read = timm.read(timm.tensors(made), config={"model_args": {"img_size": [16, 32]}})
    assert read.image_shape == (16, 32, 3)
    assert read.model["resolution"] == (16, 32)


def test_images_of_384_pixels_are_seen_whole():
    made = checkpoint("ViT-S/32", 384, **TINY, patch_size=128)
    read = timm.read(timm.tensors(made))
    assert "resize_small(384, " in read.preprocessing
    small = timm.read(timm.tensors(checkpoint("ViT-S/32", 96, **TINY)))
    assert "resize_small(106, " in small.preprocessing  # 96 / 0.9


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"representation_size": 8}, "pre_logits.*tanh is in between.*Fine-tune"),
        ({"positions": "relative"}, "positions='relative'.*native"),
        ({"positions": "learned2d"}, "positions='learned2d'.*native"),
        ({"position_injection": "every_layer"}, "every_layer.*native"),
        ({"pool": "cls_mean"}, "pool='cls_mean'.*native"),
    ],
)
def test_what_timm_does_not_have_is_refused(fields, told):
    with pytest.raises(UserError, match=told):
        timm.tensors(checkpoint("ViT-S/8", 16, **TINY, **fields))


def test_an_axial_vit_is_refused():
    fields = {"name": "Axial-ViT-B/16", "num_classes": 3}
    with pytest.raises(UserError, match=r"no Axial-ViT-B/16; convert to native"):
        timm.tensors(Checkpoint({}, fields, (224, 224, 3)))


def test_forms_that_no_architecture_of_timm_has_are_refused():
    made = checkpoint("ViT-S/8", 16, **TINY, distillation=True, mlp="swiglu")
    with pytest.raises(UserError, match="timm has no model like ViT-S/8"):
        timm.metadata(made)
    # Where LayerScale belongs to an architecture, no argument takes it away.
    made = checkpoint("ViT-S/8", 16, **TINY, positions="rotary2d")
    with pytest.raises(UserError, match="positions 'rotary2d'"):
        timm.metadata(made)
    made = Checkpoint({}, {"name": "ViT-M/16", "num_classes": 5}, (224, 224, 3))
    assert timm.timm_name(made) == "vit_tiny_patch16_224"


def test_swin_that_timm_does_not_have_is_refused():
    swin = {**SWIN, "resolution": 32, "window_size": 2}
    for fields in ({"gelu": "tanh"}, {"window_kind": "sliding"}):
        made = checkpoint("Swin-T", 32, **swin, **fields)
        with pytest.raises(UserError, match="convert to native"):
            timm.tensors(made)
    made = checkpoint("Swin-T", 32, **swin, absolute_positions=True)
    with pytest.raises(UserError, match="absolute_positions"):
        timm.tensors(made)


def test_other_pooling_and_other_tensors_are_refused():
    named = timm.tensors(checkpoint("ViT-S/8", 16, **TINY))
    with pytest.raises(UserError, match="global_pool 'max', which we do not have"):
        timm.read(named, config={"global_pool": "max"})
    with pytest.raises(UserError, match=r"norm_pre\.weight"):
        timm.read({**named, "norm_pre.weight": named["norm.weight"]})
    with pytest.raises(UserError, match="no timm model"):
        timm.read({"conv1.weight": named["norm.weight"]})
    del named["blocks.1.attn.qkv.bias"]
    with pytest.raises(UserError, match="missing"):
        timm.read(named)


def test_a_preset_that_contradicts_the_file_is_refused(tmp_path):
    made = checkpoint("ViT-S/8", 16, preset="google-vit", **TINY)
    assert through_a_file(made, tmp_path, preset="google-vit").model["preset"]
    with pytest.raises(UserError, match="'google-vit', not 'timm-vit'"):
        through_a_file(made, tmp_path, preset="timm-vit")


def test_the_preset_of_the_user_is_that_of_the_weights():
    named = timm.tensors(checkpoint("ViT-S/8", 16, **TINY))
    read = timm.read(named, preset="google-vit")
    assert read.model["preset"] == "google-vit"
    assert build_model(**read.model).gelu == "tanh"
    tower = timm.tensors(checkpoint("ViT-S/8", 16, preset="siglip", **TINY))
    assert build_model(**timm.read(tower).model).gelu == "erf"
    assert build_model(**timm.read(tower, preset="siglip").model).gelu == "tanh"


def test_folded_dinov2_is_written_with_factors_of_one():
    made = checkpoint("ViT-S/14", 28, preset="dinov2", **TINY)
    named = timm.tensors(made)
    np.testing.assert_array_equal(named["blocks.1.ls2.gamma"], np.ones(64, np.float32))
    # Without our metadata the factors are part of the model.
    read = timm.read(named)
    assert read.model["preset"] == "dinov2"
    assert read.model["layer_scale"] is not None
    # Factors that are not one do not vanish, whatever the description says.
    named["blocks.1.ls2.gamma"] = np.full(64, 2, np.float32)
    with pytest.raises(UserError, match="LayerScale"):
        timm.read(named, timm.metadata(made))


NAMES = {
    "vit_small_patch16_224": ("ViT-S/16", 224, {}),
    "vit_base_patch16_384": ("ViT-B/16", 384, {}),
    "vit_small_patch14_dinov2": ("ViT-S/14", 518, {"preset": "dinov2"}),
    "vit_base_patch16_siglip_224": ("ViT-B/16", 224, {"preset": "siglip"}),
    "vit_so400m_patch14_siglip_384": ("ViT-So400m/14", 378 + 6, {"pool": "map"}),
    "deit_base_distilled_patch16_384": ("ViT-B/16", 384, {"distillation": True}),
    "vit_large_r50_s32_384": ("R50+ViT-L/32", 384, {}),
    "resnetv2_101x3_bit": ("BiT-R101x3", 224, {}),
    "mixer_l16_224": ("Mixer-L/16", 224, {}),
    "swin_base_patch4_window12_384": ("Swin-B-w12-384", 384, {}),
    "swinv2_tiny_window16_256": ("SwinV2-T-w16", 256, {}),
    "swinv2_large_window12to24_192to384": ("SwinV2-L-w12to24-384", 384, {}),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_timm(name):
    row, side, fields = NAMES[name]
    model = {"name": row, "num_classes": 1000, **fields}
    assert timm.timm_name(Checkpoint({}, model, (side, side, 3))) == name
    assert name in ARCHITECTURES


def test_the_log_tells_how_to_open_the_file():
    model = {"name": "ViT-B/16", "num_classes": 10}
    lines = timm.notes(Checkpoint({}, model, (224, 224, 3)), "b16.safetensors")
    assert lines[0] == (
        "open with timm.create_model('vit_base_patch16_224', num_classes=10, "
        "act_layer='gelu_tanh', checkpoint_path='b16.safetensors')"
    )
    assert "without act_layer='gelu_tanh' logits differ by about 1e-3" in lines[1]
    model = {"name": "BiT-R50x2", "num_classes": 10}
    lines = timm.notes(Checkpoint({}, model, (224, 224, 3)), "x.safetensors")
    assert lines[0].startswith("timm has no name for BiT-R50x2; build timm.models.Res")
    assert "epsilons" in lines[1]


def test_metadata_holds_the_call(tmp_path):
    made = checkpoint("ViT-S/8", 16, **TINY)
    said = timm.metadata(made)
    assert said["architecture"] == "vit_small_patch8_224"
    assert json.loads(said["model_args"]) == {
        "img_size": 16,
        "embed_dim": 64,
        "depth": 2,
        "num_heads": 1,
        "mlp_ratio": 1.5,
        "act_layer": "gelu_tanh",
    }
    # It is enough to read the file without our description.
    del said["vit_jax_description"]
    assert build_model(**timm.read(timm.tensors(made), said).model).gelu == "tanh"


@pytest.mark.parametrize("size", catalog.VIT_SIZES.values())
def test_ratio_gives_the_hidden_width(size):
    ratio = mlp_ratio(size["width"], size["mlp_dim"])
    assert math.floor(size["width"] * ratio) == size["mlp_dim"]

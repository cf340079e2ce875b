# SPDX-License-Identifier: Apache-2.0
"""Files as Google's code writes them, made by hand of tiny models with random weights.

Names and shapes are those of google-research/vision_transformer (tests of its models,
released files), big_vision (models/vit.py) and big_transfer.
"""

import logging
import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from absl import logging as absl_logging

from vit_jax import trees
from vit_jax.checkpoints import files
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import google
from vit_jax.convert.identify.parameters import parameter_shapes
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, list_models, stacking

TINY = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64}
MIXER = {"width": 32, "depth": 2, "token_mlp_dim": 8, "mlp_dim": 64}
MODELS = {
    "vit": ("ViT-Ti/4", TINY),
    "hybrid": ("R26+ViT-S/32", {**TINY, "stages": (2, 1)}),
    "bit": ("BiT-R50x1", {"stages": (2, 1)}),
    "mixer": ("Mixer-S/4", MIXER),
}
TABLE = "Transformer/posembed_input/pos_embedding"
FOLDER = os.environ.get("VIT_JAX_DINOV2")


def random_checkpoint(family, size=16, **fields):
    """A tiny model with weights of which none is zero."""
    name, sizes = MODELS[family]
    model = {"name": name, "num_classes": 3, **sizes, **fields}
    rng = np.random.default_rng(1)
    shapes = parameter_shapes(build_model(**model), (size, size, 3))
    params = {
        name: rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    return Checkpoint(trees.unflatten(params), model, (size, size, 3))


def flat(checkpoint):
    return trees.flatten(checkpoint.params)


def read(arrays, preset=None, subtree=None):
    return google.read(arrays, {}, preset, subtree)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].tobytes() == array.tobytes(), name
        assert found[name].shape == array.shape, name


def logits(checkpoint, seed=0):
    rng = np.random.default_rng(seed)
    image = rng.uniform(-1, 1, (2, *checkpoint.image_shape)).astype(np.float32)
    model = build_model(**checkpoint.model)
    params = jax.tree.map(jnp.asarray, checkpoint.params)
    return np.asarray(jax.jit(model.apply)({"params": params}, image)[0])


@pytest.fixture
def log(caplog):
    """What absl logs, which does not go through the root logger."""
    logger = absl_logging.get_absl_logger()
    before, logger.propagate = logger.propagate, True
    with caplog.at_level(logging.INFO, logger="absl"):
        yield caplog
    logger.propagate = before


ATTENTION = "Transformer/encoderblock_0/MultiHeadDotProductAttention_0"
# Names of one encoder block and what is around it: released files after linen.
VIT_NAMES = {
    "cls": (1, 1, 32),
    "embedding/kernel": (4, 4, 3, 32),
    "embedding/bias": (32,),
    TABLE: (1, 17, 32),
    "Transformer/encoderblock_0/LayerNorm_0/scale": (32,),
    "Transformer/encoderblock_0/LayerNorm_0/bias": (32,),
    **{
        f"{ATTENTION}/{part}/{kind}": shape
        for part in ("query", "key", "value")
        for kind, shape in (("kernel", (32, 4, 8)), ("bias", (4, 8)))
    },
    f"{ATTENTION}/out/kernel": (4, 8, 32),
    f"{ATTENTION}/out/bias": (32,),
    "Transformer/encoderblock_0/LayerNorm_1/scale": (32,),
    "Transformer/encoderblock_0/LayerNorm_1/bias": (32,),
    "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel": (32, 64),
    "Transformer/encoderblock_0/MlpBlock_0/Dense_0/bias": (64,),
    "Transformer/encoderblock_0/MlpBlock_0/Dense_1/kernel": (64, 32),
    "Transformer/encoderblock_0/MlpBlock_0/Dense_1/bias": (32,),
    "Transformer/encoder_norm/scale": (32,),
    "Transformer/encoder_norm/bias": (32,),
    "pre_logits/kernel": (32, 48),
    "pre_logits/bias": (48,),
    "head/kernel": (48, 3),
    "head/bias": (3,),
}


def test_a_vit_is_written_with_the_names_of_the_released_code():
    checkpoint = random_checkpoint("vit", depth=1, representation_size=48)
    written = google.tensors(checkpoint)
    assert {name: array.shape for name, array in written.items()} == VIT_NAMES


FORMS = [
    ("vit", {}),
    ("vit", {"num_classes": 0}),
    ("vit", {"pool": "mean"}),
    ("vit", {"pool": "map"}),
    ("vit", {"representation_size": 48}),
    ("vit", {"preset": "big-vision-vit"}),
    ("vit", {"preset": "big-vision-vit", "pool": "map"}),
    ("vit", {"preset": "big-vision-vit", "pool": "mean", "representation_size": 48}),
    ("hybrid", {}),
    ("hybrid", {"stages": (), "patch_size": 2}),
    ("hybrid", {"representation_size": 48, "class_position": False}),
    ("bit", {}),
    ("bit", {"preset": "bit-big-vision", "width_factor": 2}),
    ("mixer", {}),
]


@pytest.mark.parametrize(("family", "fields"), FORMS, ids=str)
def test_what_is_written_is_read_again_bit_by_bit(family, fields):
    checkpoint = random_checkpoint(family, **fields)
    written = google.tensors(checkpoint)
    again = read(written)
    assert_same(flat(again), flat(checkpoint))
    usual = checkpoint.model.get("preset") or catalog.find(MODELS[family][0]).preset
    assert again.model["preset"] == usual
    # Writing and reading once more changes nothing.
    assert_same(google.tensors(again), written)
    assert build_model(**again.model) == build_model(**checkpoint.model)
    if family != "bit":  # whose files do not tell the size of images
        assert again.image_shape == checkpoint.image_shape


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_numbers_go_through_a_file_and_back(tmp_path, dtype):
    checkpoint = random_checkpoint("vit")
    params = {name: array.astype(dtype) for name, array in flat(checkpoint).items()}
    np.savez(tmp_path / "a.npz", **params)
    first = read(files.read_tensors(tmp_path / "a.npz").tensors)
    assert_same(flat(first), params)
    files.write_npz(tmp_path / "b.npz", google.tensors(first))
    second = read(files.read_tensors(tmp_path / "b.npz").tensors)
    assert_same(flat(second), params)


def test_two_opaque_bytes_are_bfloat16():
    params = flat(random_checkpoint("vit"))
    short = {name: array.astype(ml_dtypes.bfloat16) for name, array in params.items()}
    opaque = {name: array.view("V2") for name, array in short.items()}
    assert_same(flat(read(opaque)), short)


def legacy(params):
    """The numbers that old Flax gave to the parts of a block."""
    numbers = {
        "LayerNorm_1": "LayerNorm_2",
        "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
        "MlpBlock_0": "MlpBlock_3",
    }
    return {
        re.sub("|".join(numbers), lambda match: numbers[match[0]], name): array
        for name, array in params.items()
    }


@pytest.mark.parametrize("family", ["vit", "hybrid"])
def test_numbers_of_old_flax_are_read_and_linen_is_written(family):
    params = flat(random_checkpoint(family))
    old = legacy(params)
    assert "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel" in old
    checkpoint = read(old)
    assert_same(flat(checkpoint), params)
    assert_same(google.tensors(checkpoint), params)


@pytest.mark.parametrize("root", ["opt/target/", "target/", "params/", "img/"])
@pytest.mark.parametrize("numbering", [legacy, dict])
def test_parameters_are_found_under_every_root(root, numbering):
    params = flat(random_checkpoint("vit"))
    under = {f"{root}{name}": array for name, array in numbering(params).items()}
    assert google.matches(under)
    assert_same(flat(read(under)), params)


@pytest.mark.parametrize("root", ["", "params/"])
def test_the_image_tower_is_taken_and_the_others_are_named(root, log):
    checkpoint = random_checkpoint("vit", preset="siglip", num_classes=0)
    tower = google.tensors(checkpoint)
    both = {f"{root}img/{name}": array for name, array in tower.items()}
    both[f"{root}txt/Embed_0/embedding"] = np.zeros((4, 32), np.float32)
    both[f"{root}t"] = np.zeros(1, np.float32)
    both["opt/0/count"] = np.zeros((), np.int32)
    found = read(both)
    assert found.model["preset"] == "siglip"
    assert found.model.get("pool", "map") == "map"
    assert_same(flat(found), flat(checkpoint))
    assert f"{root}txt" in log.text
    assert "opt" in log.text
    assert_same(flat(read(both, subtree="img")), flat(checkpoint))


def test_an_explicit_subtree_is_taken():
    params = flat(random_checkpoint("vit"))
    other = {name: 2 * array for name, array in params.items()}
    file = {
        **params,
        **{f"ema/{name}": array for name, array in other.items()},
        **{f"model/params/{name}": array for name, array in other.items()},
    }
    assert_same(flat(read(file, subtree="ema")), other)
    assert_same(flat(read(file, subtree="model")), other)
    assert_same(flat(read(file, subtree="model/params")), other)


def test_an_unknown_root_is_refused_with_the_names_that_are_there():
    params = flat(random_checkpoint("vit"))
    file = {f"model/net/{name}": array for name, array in params.items()}
    file["step"] = np.zeros(())
    assert google.matches(file)
    with pytest.raises(
        UserError, match=r"begin with model, step; name FILE.npz:model/net"
    ):
        read(file)
    with pytest.raises(UserError, match="no model under 'img' of this file"):
        read(file, subtree="img")
    with pytest.raises(UserError, match=r"name FILE\.npz alone, where there is one"):
        read(params, subtree="img")
    with pytest.raises(
        UserError, match=r"no model in Google's names; .* with layers, w"
    ):
        read({"layers/0": np.zeros(1), "w": np.zeros(1)})


@pytest.mark.parametrize(
    "names",
    [
        ["patch_embed.proj.weight", "blocks.0.norm1.weight", "stem.conv.weight"],
        ["layers_0/blocks_0/norm1/scale", "patch_embed/proj/kernel"],
    ],
)
def test_names_of_others_do_not_match(names):
    assert not google.matches(dict.fromkeys(names, np.zeros(1)))


def big_vision(params):
    return {name.replace(TABLE, "pos_embedding"): a for name, a in params.items()}


def test_stacked_blocks_are_taken_apart():
    checkpoint = random_checkpoint("vit", preset="big-vision-vit")
    stacked = trees.flatten(stacking.stack_blocks(checkpoint.params))
    query = "Transformer/encoderblock/MultiHeadDotProductAttention_0/query/kernel"
    assert stacked[query].shape == (2, 32, 4, 8)
    assert_same(flat(read(big_vision(stacked))), flat(checkpoint))


@pytest.mark.parametrize("name", ["pos_embedding", "Transformer/pos_embedding"])
def test_positions_of_big_vision_have_no_class_row(name):
    checkpoint = random_checkpoint("vit", preset="big-vision-vit")
    params = flat(checkpoint)
    file = {key.replace(TABLE, name): array for key, array in params.items()}
    found = read(file)
    assert params[TABLE].shape == (1, 16, 32)
    assert_same(flat(found), params)
    # Without the rule of its own layout it would be another function.
    assert found.model == {**found.model, "preset": "big-vision-vit"}
    assert "class_position" not in found.model
    assert read(file, "google-vit").model["class_position"] is False


def test_a_class_row_is_folded_into_the_class_token_of_big_vision():
    with_row = random_checkpoint("vit", depth=1)
    params = flat(with_row)
    first = read(big_vision(params))
    assert first.model["preset"] == "big-vision-vit"
    assert "class_position" not in first.model
    folded = flat(first)
    assert folded[TABLE].tobytes() == params[TABLE][:, 1:].tobytes()
    np.testing.assert_array_equal(folded["cls"], params["cls"] + params[TABLE][:, :1])
    np.testing.assert_allclose(logits(first), logits(with_row), atol=1e-6)
    # Older names, and where the caller asks for it.
    inside = {k.replace("posembed_input/", ""): a for k, a in params.items()}
    assert_same(flat(read(inside)), folded)
    assert_same(flat(read(params, "big-vision-vit")), folded)
    assert_same(flat(read(legacy(params), "big-vision-vit")), folded)
    # What is written then is read without another fold.
    assert_same(flat(read(google.tensors(first))), folded)


def test_the_files_of_google_keep_their_class_row():
    params = flat(random_checkpoint("vit"))
    found = read(params)
    assert found.model["preset"] == "google-vit"
    assert "class_position" not in found.model
    assert_same(flat(found), params)


def test_the_row_of_no_class_token_is_left_out(log):
    checkpoint = random_checkpoint("vit", preset="big-vision-vit", pool="mean")
    params = flat(checkpoint)
    table = np.concatenate([np.ones((1, 1, 32), np.float32), params[TABLE]], axis=1)
    assert_same(flat(read(big_vision({**params, TABLE: table}))), params)
    assert "left out the first row" in log.text


def test_a_sum_of_short_numbers_is_not_rounded():
    params = flat(random_checkpoint("vit"))
    params = {name: array.astype(np.float16) for name, array in params.items()}
    cls = flat(read(big_vision(params)))["cls"]
    wide = {name: params[name].astype(np.float64) for name in ("cls", TABLE)}
    np.testing.assert_allclose(cls, wide["cls"] + wide[TABLE][:, :1], rtol=1e-7)


def test_pieces_of_a_map_head_at_the_top_are_put_together():
    checkpoint = random_checkpoint("vit", preset="big-vision-vit", pool="map")
    params = flat(checkpoint)
    file = {name.removeprefix("MAPHead_0/"): array for name, array in params.items()}
    assert {"probe", "LayerNorm_0/scale", "MlpBlock_0/Dense_0/kernel"} <= file.keys()
    assert_same(flat(read(big_vision(file))), params)


def test_no_positions_are_those_that_big_vision_computes():
    fields = {"pool": "mean", "positions": "sincos2d", "representation_size": 48}
    checkpoint = random_checkpoint("vit", preset="big-vision-vit", **fields)
    found = read(google.tensors(checkpoint))
    assert found.model == {**found.model, "preset": "big-vision-vit", **fields}
    assert found.image_shape == (224, 224, 3)  # the file does not tell
    assert_same(flat(found), flat(checkpoint))


def test_group_norms_lose_their_axes_and_nothing_else_does():
    params = flat(random_checkpoint("hybrid"))
    norms = [name for name in params if re.search(r"gn(_root|\d|_proj)/", name)]
    assert len(norms) == 2 * (1 + 3 * 3 + 2)
    wide = {name: params[name][None, None, None] for name in norms}
    assert_same(flat(read({**params, **wide})), params)

    # A patch of one pixel of one channel: its kernel is no norm.
    grey = flat(random_checkpoint("vit", patch_size=1, size=4, depth=1))
    grey["embedding/kernel"] = grey["embedding/kernel"][:, :, :1]
    found = read(grey)
    assert flat(found)["embedding/kernel"].shape == (1, 1, 1, 32)
    assert found.image_shape == (4, 4, 1)


def old_mixer(params):
    """Names of a Mixer before linen, with the axes that its layers had."""
    result = {}
    for name, array in params.items():
        name = re.sub(r"^stem/", "embedding/", name)
        name = re.sub(r"^MixerBlock_(\d)/", r"Mixer/encoderblock_\1/", name)
        name = name.replace("pre_head_layer_norm", "Mixer/encoder_norm")
        if match := re.fullmatch(r"(.*)_mixing/Dense_(\d)/(\w+)", name):
            name = f"{match[1]}_mixing_phase_0/{match[3]}{int(match[2]) + 1}"
            array = array[None]
        name = name.replace("/LayerNorm_1/", "/LayerNorm_2/")
        result[name] = array
    return result


def test_an_old_mixer_is_read_and_linen_is_written():
    params = flat(random_checkpoint("mixer"))
    old = old_mixer(params)
    assert old["Mixer/encoderblock_1/token_mixing_phase_0/kernel1"].shape == (1, 16, 8)
    assert old["Mixer/encoderblock_0/channel_mixing_phase_0/bias2"].shape == (1, 32)
    assert {"embedding/kernel", "Mixer/encoder_norm/scale"} <= old.keys()
    found = read(old)
    assert found.model["preset"] == "mixer"
    assert_same(flat(found), params)
    assert_same(google.tensors(found), params)
    assert_same(flat(read({f"opt/target/{k}": a for k, a in old.items()})), params)


def test_a_mixer_of_one_token_keeps_its_axis():
    params = flat(random_checkpoint("mixer", size=4, depth=1))
    found = flat(read(old_mixer(params)))
    assert found["MixerBlock_0/token_mixing/Dense_0/kernel"].shape == (1, 8)
    assert_same(found, params)


# A BiT of one stage with two units, by big_transfer's names.
BIT_NAMES = {
    "resnet/root_block/standardized_conv2d/kernel": (7, 7, 3, 64),
    "resnet/block1/unit01/a/proj/standardized_conv2d/kernel": (1, 1, 64, 256),
    "resnet/block1/unit01/a/group_norm/gamma": (64,),
    "resnet/block1/unit01/a/group_norm/beta": (64,),
    "resnet/block1/unit01/a/standardized_conv2d/kernel": (1, 1, 64, 64),
    "resnet/block1/unit02/a/group_norm/gamma": (256,),
    "resnet/block1/unit02/a/group_norm/beta": (256,),
    "resnet/block1/unit02/a/standardized_conv2d/kernel": (1, 1, 256, 64),
    **{
        f"resnet/block1/unit0{unit}/{name}": shape
        for unit in (1, 2)
        for name, shape in {
            "b/group_norm/gamma": (64,),
            "b/group_norm/beta": (64,),
            "b/standardized_conv2d/kernel": (3, 3, 64, 64),
            "c/group_norm/gamma": (64,),
            "c/group_norm/beta": (64,),
            "c/standardized_conv2d/kernel": (1, 1, 64, 256),
        }.items()
    },
    "resnet/group_norm/gamma": (256,),
    "resnet/group_norm/beta": (256,),
    "resnet/head/conv2d/kernel": (1, 1, 256, 3),
    "resnet/head/conv2d/bias": (3,),
}


def test_a_bit_is_written_with_the_names_of_its_release():
    written = google.tensors(random_checkpoint("bit", stages=(2,)))
    assert {name: array.shape for name, array in written.items()} == BIT_NAMES


def test_numbers_of_tensorflow_say_nothing():
    checkpoint = random_checkpoint("bit")
    file = {
        re.sub(r"(standardized_conv2d|group_norm)/", rf"\1_{i}/", name): array
        for i, (name, array) in enumerate(google.tensors(checkpoint).items())
    }
    assert google.matches(file)
    found = read(file)
    assert found.model["preset"] == "bit"
    assert_same(flat(found), flat(checkpoint))
    kernel = "resnet/block1/unit01/a/standardized_conv2d"
    file[f"{kernel}/kernel"] = np.zeros((1, 1, 64, 64), np.float32)
    with pytest.raises(UserError, match="there twice"):
        read(file)
    with pytest.raises(UserError, match=r"resnet/gate .* none of the release's arrays"):
        read({**google.tensors(checkpoint), "resnet/gate": np.zeros(1)})


def test_a_bit_of_big_vision_keeps_its_names_and_padding():
    checkpoint = random_checkpoint("bit", preset="bit-big-vision")
    written = google.tensors(checkpoint)
    assert written["block1/unit01/gn2/scale"].shape == (1, 1, 1, 64)
    assert written["norm-pre-head/bias"].shape == (1, 1, 1, 512)
    assert written["head/kernel"].shape == (512, 3)
    found = read(written)
    assert found.model["preset"] == "bit-big-vision"
    assert build_model(**found.model).pool_padding == "-inf"
    assert_same(flat(found), flat(checkpoint))
    # The same arrays can be run as the release runs them.
    assert read(written, "bit").model["preset"] == "bit"


def test_layer_scale_is_folded_and_said_so(log):
    checkpoint = random_checkpoint("vit", layer_scale=0.1, depth=1)
    written = google.tensors(checkpoint)
    assert not any("LayerScale" in name for name in written)
    assert "folded LayerScale" in log.text
    folded = read(written)
    assert "layer_scale" not in folded.model
    np.testing.assert_allclose(logits(folded), logits(checkpoint), atol=1e-5)
    # Nothing else changes.
    kept = ("query", "LayerNorm", "Dense_0", "head", "embedding", "cls")
    for name, array in written.items():
        if any(part in name for part in kept):
            np.testing.assert_array_equal(array, flat(checkpoint)[name])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_registers": 2}, "num_registers=2 has no place"),
        ({"distillation": True}, "distillation=True has no place"),
        ({"qk_norm": True}, "qk_norm=True has no place"),
        ({"mlp": "swiglu"}, "mlp='swiglu' has no place"),
        ({"positions": "learned2d"}, "positions='learned2d' has no place"),
        ({"positions": "none"}, "positions='none' has no place"),
        ({"position_injection": "every_layer"}, "position_injection='every_layer'"),
        ({"pool": "none"}, "pool='none' has no place"),
        ({"norm_eps": 1e-3}, r"no preset computes as .*norm_eps=0.001"),
    ],
    ids=str,
)
def test_what_has_no_name_is_refused(fields, words):
    with pytest.raises(UserError, match=words):
        google.tensors(random_checkpoint("vit", **fields))


def test_grids_that_are_not_square_are_refused():
    for family in ("vit", "mixer"):
        name, sizes = MODELS[family]
        model = {"name": name, "num_classes": 3, **sizes, "resolution": (8, 32)}
        shapes = parameter_shapes(build_model(**model), (8, 32, 3))
        params = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
        checkpoint = Checkpoint(trees.unflatten(params), model, (8, 32, 3))
        with pytest.raises(UserError, match=r"only .* square"):
            google.tensors(checkpoint)


@pytest.mark.parametrize("name", ["Swin-T", "Axial-ViT-B/16"])
def test_what_has_no_form_in_googles_names_is_refused(name):
    checkpoint = Checkpoint({}, {"name": name, "num_classes": 3}, (224, 224, 3))
    with pytest.raises(UserError, match=f"{name} has no form in Google's names"):
        google.tensors(checkpoint)


def test_the_log_tells_by_which_preset_the_file_is_read(log):
    google.tensors(random_checkpoint("vit", preset="dinov2"))
    assert "images of 16x16" in log.text
    assert "--preset=dinov2" in log.text
    # The usual preset of transformers with another epsilon computes as timm's.
    log.clear()
    google.tensors(random_checkpoint("vit", preset="hf-vit", norm_eps=1e-6))
    assert "--preset=timm-vit" in log.text


def test_class_names_are_said_to_be_lost(log):
    checkpoint = random_checkpoint("mixer")
    named = Checkpoint(**{**vars(checkpoint), "class_names": ("a", "b", "c")})
    google.tensors(named)
    assert "names of the classes are not kept" in log.text


def test_a_preset_of_another_family_is_refused():
    params = flat(random_checkpoint("vit"))
    with pytest.raises(
        UserError, match=r"'mixer'.* these parameters are of the family"
    ):
        read(params, "mixer")
    with pytest.raises(UserError, match="use bit or bit-big-vision"):
        read(google.tensors(random_checkpoint("bit")), "google-vit")


def test_preprocessing_is_that_of_the_preset():
    params = flat(random_checkpoint("vit"))
    assert read(params).preprocessing == "decode|resize(16)|value_range(-1, 1)"
    assert 'normalize("imagenet")' in read(params, "dinov2").preprocessing


def test_arrays_without_a_place_are_refused():
    params = flat(random_checkpoint("vit"))
    with pytest.raises(UserError, match="no place for: head_dist/bias"):
        read({**params, "head_dist/bias": params["head/bias"]})


# Tensors and parameters with 1000 classes: derived from the released models.
COUNTS = {
    "ViT-B/16": (200, 86_567_656),
    "ViT-L/16": (392, 304_326_632),
    "ViT-L/32": (392, 306_535_400),
    "ViT-H/14": (520, 632_045_800),
    "R50+ViT-B/16": (356, 98_659_112),
    "R50+ViT-L/32": (551, 328_994_856),
    "R26+ViT-S/32": (287, 36_431_912),
    "R26+ViT-B/32": (287, 101_383_976),
    "R+ViT-Ti/16": (203, 6_337_704),
    "Mixer-B/16": (150, 59_880_472),
    "Mixer-L/16": (294, 208_196_168),
    "BiT-R50x1": (153, 25_549_352),
}
ROWS = [name for name in list_models() if not re.match("Swin|Axial", name)]


def strided_checkpoint(name, **fields):
    """A whole model whose arrays take no memory."""
    row = catalog.find(name)
    model = {"name": name, "num_classes": 1000, **fields}
    image_shape = (row.resolution, row.resolution, 3)
    shapes = parameter_shapes(build_model(**model), image_shape)
    zero = np.zeros((), np.float32)
    params = {key: np.broadcast_to(zero, shape) for key, shape in shapes.items()}
    return Checkpoint(trees.unflatten(params), model, image_shape)


def counts(written):
    return len(written), sum(array.size for array in written.values())


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_names_for_all_its_arrays(name):
    checkpoint = strided_checkpoint(name)
    written = google.tensors(checkpoint)
    arrays, parameters = COUNTS.get(name, (None, catalog.find(name).parameters))
    assert counts(written) == (arrays or len(flat(checkpoint)), parameters)
    again = read(written)
    preset = catalog.find(name).preset
    assert again.model == {"name": name, "num_classes": 1000, "preset": preset}
    assert again.image_shape == checkpoint.image_shape


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        (
            "ViT-B/16",
            {"num_classes": 21843, "representation_size": 768},
            (202, 103_186_515),
        ),
        ("ViT-B/16", {"pool": "mean"}, (199, 86_566_120)),
        ("ViT-B/16", {"preset": "big-vision-vit"}, (200, 86_566_888)),
        (
            "R50+ViT-B/16",
            {"num_classes": 21843, "representation_size": 768},
            (358, 115_277_971),
        ),
        ("Mixer-B/16", {"num_classes": 21843}, (150, 75_908_739)),
    ],
    ids=str,
)
def test_other_forms_have_the_published_counts(name, fields, expected):
    written = google.tensors(strided_checkpoint(name, **fields))
    assert counts(written) == expected
    found = read(written).model
    assert {key: found.get(key) for key in fields} == fields


@pytest.mark.skipif(
    FOLDER is None, reason="VIT_JAX_DINOV2 names no folder with the weights of DINOv2"
)
def test_a_real_file_is_read_and_written_bit_by_bit(tmp_path):
    path = Path(str(FOLDER), "vit_s14_google_fp16.npz")
    original = files.read_tensors(path).tensors
    checkpoint = read(original, "dinov2")
    assert checkpoint.model == {
        "name": "ViT-S/14",
        "num_classes": 0,
        "preset": "dinov2",
    }
    assert checkpoint.image_shape == (518, 518, 3)
    files.write_npz(tmp_path / "copy.npz", google.tensors(checkpoint))
    again = files.read_tensors(tmp_path / "copy.npz").tensors
    assert_same(legacy(again), original)
    assert_same(flat(read(again, "dinov2")), flat(checkpoint))

# SPDX-License-Identifier: Apache-2.0
"""Folders of transformers without transformers: names, counts, refusals, fixtures.

The models of both libraries are compared in tests/reference/test_huggingface_files.py.
"""

import functools
import json
import logging
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.checkpoints import files
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import huggingface
from vit_jax.convert.huggingface import writing
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog

# Written by transformers 5.24.0: save_pretrained() of models with random weights.
FIXTURES = Path(__file__).parents[1] / "fixtures" / "huggingface"

TINY = {"width": 8, "depth": 2, "num_heads": 2, "mlp_dim": 16, "num_classes": 3}
TINY_SWIN = {
    "width": 8,
    "depths": (2, 1),
    "num_heads": (1, 2),
    "window_size": 2,
    "resolution": 16,
    "num_classes": 3,
}


def shapes_of(fields, side):
    model = build_model(**fields)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), image)["params"]


def checkpoint_of(fields, side=16, **others):
    rng = np.random.default_rng(0)

    def draw(leaf):
        return rng.normal(size=leaf.shape).astype(np.float32)

    params = jax.tree.map(draw, shapes_of(fields, side))
    return Checkpoint(params, fields, (side, side, 3), **others)


def vit(**fields):
    return checkpoint_of({"name": "ViT-S/4", "preset": "hf-vit", **TINY, **fields})


def empty(fields, side):
    """A checkpoint of the model's own sizes, of one byte a number."""

    def zeros(leaf):
        return np.broadcast_to(np.int8(0), leaf.shape)

    params = jax.tree.map(zeros, shapes_of(fields, side))
    return Checkpoint(params, fields, (side, side, 3))


# Tensors and parameters: layouts of transformers 5.24.0, counted in its own models.
# Of DINOv2 the mask token is one tensor of 384.
COUNTS = {
    "ViT Base": (
        {"name": "ViT-B/16", "num_classes": 1000, "preset": "hf-vit"},
        224,
        (200, 86_567_656),
    ),
    "ViT of 2 layers": (
        {"name": "ViT-B/16", "num_classes": 1000, "preset": "hf-vit", "depth": 2},
        224,
        (40, 15_688_936),
    ),
    "ViT trunk of 2 layers, with pooler": (
        {
            "name": "ViT-B/16",
            "num_classes": 0,
            "preset": "hf-vit",
            "depth": 2,
            "representation_size": 768,
        },
        224,
        (40, 15_510_528),
    ),
    "DINOv2 small": (
        {"name": "ViT-S/14", "num_classes": 0, "preset": "dinov2"},
        518,
        (223, 22_056_576),
    ),
    "BiT": (
        {"name": "BiT-R50x1", "num_classes": 1000, "preset": "hf-bit"},
        224,
        (153, 25_549_352),
    ),
    "Swin-T": (
        {"name": "Swin-T", "num_classes": 1000, "preset": "hf-swin-v1"},
        224,
        (221, 28_288_354),
    ),
    "SwinV2-T": (
        {"name": "SwinV2-T", "num_classes": 1000, "preset": "hf-swin-v2"},
        256,
        (245, 28_347_154),
    ),
}


@pytest.mark.parametrize("model", COUNTS)
def test_tensors_and_parameters_are_as_many_as_there(model):
    fields, side, expected = COUNTS[model]
    tensors = huggingface.tensors(empty(fields, side))
    assert (len(tensors), sum(array.size for array in tensors.values())) == expected


# One block in each stage, and narrow: how many there are decides names, not widths.
SMALLEST = {
    "vit": {"name": "ViT-S/4", "preset": "hf-vit", **TINY, "depth": 1},
    "swin": {**TINY_SWIN, "name": "Swin-T"},
    "swin-v2": {**TINY_SWIN, "name": "SwinV2-T"},
    "bit": {"name": "BiT-R50x1", "preset": "hf-bit"},
}
FOUR = {"depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}
SMALLEST["swin"] |= FOUR | {"resolution": 64}
SMALLEST["swin-v2"] |= FOUR | {"resolution": 64}
SMALLEST["bit"] |= {"stages": (2, 2, 2, 2), "num_classes": 3}


@functools.cache
def smallest(family):
    return trees.flatten(empty(SMALLEST[family], 64).params)


def with_blocks_of(row):
    """A checkpoint with the arrays of a row by name, of the smallest widths."""
    counts = row.fields.get("depths") or row.fields.get("stages")
    counts = counts or (row.fields["depth"],)
    # The stage and the last block of each array that is in a block.
    form = {
        "vit": r"Transformer/(?P<block>encoderblock_)(?P<last>0)/",
        "bit": r"block(?P<stage>\d)/(?P<block>unit0)(?P<last>2)/",
    }.get(row.family, r"layers_(?P<stage>\d)/(?P<block>blocks_)(?P<last>0)/")
    first = 1 if row.family == "bit" else 0
    flat = {}
    for name, array in smallest(row.family).items():
        flat[name] = array
        if match := re.match(form, name):
            stage = int(match.groupdict().get("stage", first)) - first
            for i in range(int(match["last"]) + 1, counts[stage] + first):
                number = f"{i:02}" if row.family == "bit" else str(i)
                start = match.start("block") + len(match["block"].rstrip("0"))
                flat[name[:start] + number + name[match.end("last") :]] = array
    key = {"vit": "depth", "bit": "stages"}.get(row.family, "depths")
    fields = SMALLEST[row.family] | {key: counts[0] if key == "depth" else counts}
    return Checkpoint(trees.unflatten(flat), fields, (64, 64, 3))


ROWS = [
    row
    for row in catalog.VARIANTS
    # The norm on the main branch of the largest Swins is not in transformers.
    if row.family in SMALLEST and "extra_norm_every" not in row.fields
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_a_name_for_each_array(row):
    tensors = huggingface.tensors(with_blocks_of(row))
    blocks = sum(row.fields.get("depths", ())) + sum(row.fields.get("stages", ()))
    # Counted in the tables of names: of a block, of merging, of the rest.
    expected = {
        "vit": 16 * row.fields.get("depth", 0) + 8,
        "swin": 17 * blocks + 3 * 3 + 8,
        "swin-v2": 19 * blocks + 3 * 3 + 8,
        "bit": 9 * blocks + 4 + 5,
    }
    assert len(tensors) == expected[row.family]


def test_names_of_vit_are_those_on_disk():
    names = set(huggingface.tensors(vit(depth=1)))
    block = "vit.encoder.layer.0"
    layers = [
        "vit.embeddings.patch_embeddings.projection",
        *(f"{block}.attention.attention.{part}" for part in ("query", "key", "value")),
        f"{block}.attention.output.dense",
        f"{block}.layernorm_before",
        f"{block}.layernorm_after",
        f"{block}.intermediate.dense",
        f"{block}.output.dense",
        "vit.layernorm",
        "classifier",
    ]
    expected = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    tokens = ("cls_token", "position_embeddings")
    assert names == expected | {f"vit.embeddings.{token}" for token in tokens}


def sines(side):
    pixels = np.sin(np.arange(side * side * 3, dtype=np.float32))
    return pixels.reshape(1, side, side, 3)


# What transformers 5.24.0 made of `sines` with the weights of the fixtures.
@pytest.mark.parametrize(
    ("name", "side", "expected"),
    [
        ("vit", 8, [-0.07897842, 3.46113467, 1.89435303]),
        ("swin", 16, [-0.96332097, -3.01481342, 1.40721357]),
    ],
)
def test_a_folder_of_transformers_gives_its_logits(name, side, expected):
    checkpoint = huggingface.read(FIXTURES / name)
    model = build_model(**checkpoint.model)
    logits, _ = jax.jit(model.apply)({"params": checkpoint.params}, sines(side))
    np.testing.assert_allclose(logits[0], expected, rtol=0, atol=1e-4)
    assert checkpoint.class_names == ("cat", "dog", "eel")
    assert checkpoint.image_shape == (side, side, 3)


def test_config_and_processor_decide_what_differs_from_the_preset():
    checkpoint = huggingface.read(FIXTURES / "vit")
    assert checkpoint.model["norm_eps"] == 1e-3
    assert "gelu" not in checkpoint.model
    assert checkpoint.preprocessing == (
        'decode|resize(8, method="bilinear", antialias=True)|value_range(-1, 1)'
    )


def test_without_a_processor_the_ops_are_those_of_the_preset():
    checkpoint = huggingface.read(FIXTURES / "swin")
    assert checkpoint.preprocessing == (
        'decode|resize(16, method="bicubic", antialias=True)|normalize("imagenet")'
    )


def test_a_preset_that_is_asked_for_takes_the_place_of_the_folders(caplog):
    checkpoint = huggingface.read(FIXTURES / "vit", preset="google-vit")
    model = build_model(**checkpoint.model)
    assert (model.norm_eps, model.gelu) == (1e-6, "tanh")
    assert checkpoint.preprocessing == "decode|resize(8)|value_range(-1, 1)"
    assert "norm_eps=0.001" in caplog.text


# What each is written as, and read back from.
ROUND_TRIPS = {
    "vit": ({"name": "ViT-S/4", "preset": "google-vit", **TINY}, 16),
    "trunk with pre-logits": (
        {
            "name": "ViT-S/4",
            "preset": "google-vit",
            **TINY,
            "num_classes": 0,
            "representation_size": 12,
        },
        16,
    ),
    "deit": ({"name": "ViT-S/4", "preset": "hf-vit", **TINY, "distillation": True}, 16),
    "deit trunk": (
        {
            "name": "ViT-S/4",
            "preset": "hf-vit",
            **TINY,
            "distillation": True,
            "num_classes": 0,
        },
        16,
    ),
    "dinov2": (
        {
            "name": "ViT-S/4",
            "preset": "dinov2",
            **TINY,
            "pool": "cls_mean",
            "layer_scale": 1e-5,
        },
        16,
    ),
    "dinov2 with registers": (
        {
            "name": "ViT-S/4",
            "preset": "dinov2",
            **TINY,
            "num_classes": 0,
            "layer_scale": 1e-5,
            "num_registers": 3,
            "mlp": "swiglu",
        },
        16,
    ),
    "siglip": ({"name": "ViT-S/4", "preset": "siglip", **TINY, "num_classes": 0}, 16),
    "mean": (
        {"name": "ViT-S/4", "preset": "big-vision-vit", **TINY, "pool": "mean"},
        16,
    ),
    "mean, trunk": (
        {
            "name": "ViT-S/4",
            "preset": "big-vision-vit",
            **TINY,
            "pool": "mean",
            "num_classes": 0,
        },
        16,
    ),
    "swin": (
        {
            "name": "Swin-T",
            "preset": "swin-v1",
            **TINY_SWIN,
            "absolute_positions": True,
        },
        16,
    ),
    "swin v2": (
        {
            "name": "SwinV2-T",
            "preset": "swin-v2",
            **TINY_SWIN,
            "pretrained_window_size": (3, 2),
        },
        16,
    ),
    "bit": (
        {"name": "BiT-R50x1", "preset": "hf-bit", "stages": (2, 1), "num_classes": 3},
        32,
    ),
}


@pytest.mark.parametrize("case", ROUND_TRIPS)
def test_what_is_written_reads_back_bit_for_bit(case, tmp_path):
    fields, side = ROUND_TRIPS[case]
    ops = 'decode|resize(16, method="bicubic", antialias=True)|normalize("imagenet")'
    names = ("cat", "dog", "eel") if fields["num_classes"] else None
    checkpoint = checkpoint_of(fields, side, preprocessing=ops, class_names=names)
    if case == "bit":
        checkpoint = checkpoint_of(fields, side, class_names=names)
    huggingface.write(checkpoint, tmp_path / "hf")
    again = huggingface.read(tmp_path / "hf")
    flat, wanted = trees.flatten(again.params), trees.flatten(checkpoint.params)
    assert set(flat) == set(wanted)
    for name, array in flat.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)
    assert build_model(**again.model) == build_model(**fields)
    assert again.class_names == names
    assert again.image_shape == checkpoint.image_shape
    if case != "bit":
        assert again.preprocessing == ops
    # And converting twice changes nothing.
    huggingface.write(again, tmp_path / "twice")
    for name in ("config.json", "model.safetensors"):
        once = files.read_tensors(tmp_path / "hf" / "model.safetensors").tensors
        twice = files.read_tensors(tmp_path / "twice" / "model.safetensors").tensors
        assert set(once) == set(twice)
        assert all(np.array_equal(once[name], twice[name]) for name in once)


def test_numbers_of_half_width_keep_their_dtype(tmp_path):
    checkpoint = vit()
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), checkpoint.params)
    huggingface.write(
        Checkpoint(half, checkpoint.model, checkpoint.image_shape), tmp_path / "hf"
    )
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    again = huggingface.read(tmp_path / "hf")
    assert again.params["cls"].dtype == jnp.bfloat16


def test_config_states_the_numerics_of_the_weights(tmp_path):
    checkpoint = vit(preset="google-vit")
    huggingface.write(checkpoint, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    expected = {
        "architectures": ["ViTForImageClassification"],
        "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh",
        "image_size": 16,
        "patch_size": 4,
        "hidden_size": 8,
        "intermediate_size": 16,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
        "problem_type": "single_label_classification",
    }
    assert {key: config[key] for key in expected} == expected


# Ops that no processor follows; the message names the reason.
INEXPRESSIBLE = {
    "decode|resize(16)|value_range(-1, 1)": "bilinear without antialias",
    "decode|resize_small(20)|central_crop(16)|value_range(-1, 1)": "area",
    "decode|pad(4)|value_range(-1, 1)": "no such op",
    "decode|central_crop(16)|resize(16, antialias=True)|value_range(-1, 1)": "place",
    "decode|resize(16, antialias=True)": "does not normalise",
    "decode|resize(16, antialias=True)|value_range(-1, 1, 0, 1)": "0 to 255",
}


@pytest.mark.parametrize("ops", INEXPRESSIBLE)
def test_a_processor_that_would_differ_is_left_out(ops, tmp_path, caplog):
    fields = {"name": "ViT-S/4", "preset": "google-vit", **TINY}
    checkpoint = checkpoint_of(fields, preprocessing=ops)
    huggingface.write(checkpoint, tmp_path / "hf")
    assert not (tmp_path / "hf" / "preprocessor_config.json").exists()
    assert INEXPRESSIBLE[ops] in caplog.text
    # The description beside the arrays still has them.
    assert huggingface.read(tmp_path / "hf").preprocessing == ops


REFUSED = {
    "hybrid": (
        {"name": "R26+ViT-S/32", "num_classes": 3, "depth": 1},
        32,
        "no hybrid of ResNet and ViT",
    ),
    "mixer": ({"name": "Mixer-S/16", "num_classes": 3}, 32, "no MLP-Mixer"),
    "axial": ({"name": "Axial-ViT-S/4", **TINY}, 16, "no Axial-ViT"),
    "pre-logits": (
        {"name": "ViT-S/4", **TINY, "representation_size": 4},
        16,
        "no representation_size=4, only None; its classifiers sit on the trunk",
    ),
    "attention pooling and a head": (
        {"name": "ViT-S/4", **TINY, "preset": "siglip"},
        16,
        "no classifier on the attention pooling",
    ),
    "LayerScale and class token alone": (
        {"name": "ViT-S/4", **TINY, "layer_scale": 1e-5},
        16,
        "dinov2 has no pool='cls', only 'cls_mean'; train",
    ),
    "positions": (
        {"name": "ViT-S/4", **TINY, "positions": "sincos2d"},
        16,
        "no positions='sincos2d', only 'learned'; write another form",
    ),
    "class token without position": (
        {"name": "ViT-S/4", **TINY, "preset": "big-vision-vit"},
        16,
        "vit has no class_position=False",
    ),
    "norm after the mean": (
        {
            "name": "ViT-S/4",
            **TINY,
            "class_position": False,
            "pool": "mean",
            "pool_norm": "after",
        },
        16,
        "no pool_norm='after'",
    ),
    "every patch": (
        {"name": "ViT-S/4", **TINY, "pool": "none"},
        16,
        "no pool='none', only 'cls'",
    ),
    "odd MLP": (
        {
            "name": "ViT-S/4",
            **TINY,
            "preset": "dinov2",
            "mlp_dim": 20,
            "num_classes": 0,
        },
        16,
        "mlp_dim is 20 for width 8",
    ),
    "BiT's own epsilon": (
        {"name": "BiT-R50x1", "stages": (1,), "num_classes": 3},
        32,
        "no conv_eps=1e-10, only 1e-08; load the checkpoint with preset='hf-bit'",
    ),
    "extra norms": (
        {"name": "SwinV2-T", **TINY_SWIN, "extra_norm_every": 1},
        16,
        "no extra_norm_every=1",
    ),
    "Swin's epsilon": (
        {"name": "Swin-T", **TINY_SWIN, "norm_eps": 1e-6},
        16,
        "no norm_eps=1e-06, only 1e-05",
    ),
    "windows that shrink": (
        {"name": "Swin-T", **TINY_SWIN, "window_size": 4},
        16,
        "windows of 4 in every stage, but these shrink to 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_transformers_does_not_have_is_refused(case, tmp_path):
    fields, side, message = REFUSED[case]
    with pytest.raises(UserError, match="transformers") as caught:
        huggingface.write(empty(fields, side), tmp_path / "hf")
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_dinov2_that_is_not_square_is_refused():
    fields = {"name": "ViT-S/4", **TINY, "preset": "dinov2", "pool": "cls_mean"}
    checkpoint = checkpoint_of(fields)
    wide = Checkpoint(checkpoint.params, fields, (8, 32, 3))
    with pytest.raises(UserError, match="square sizes only, but the image is 8 x 32"):
        huggingface.tensors(wide)


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        huggingface.write(vit(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_is_filled(tmp_path):
    huggingface.write(vit(), tmp_path)
    assert (tmp_path / "config.json").exists()


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "write_safetensors", fail)
    with pytest.raises(UserError, match="No space left on device; free space"):
        huggingface.write(vit(), tmp_path / "hf")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path):
    """A folder of transformers whose files a test may change."""
    return Path(shutil.copytree(FIXTURES / "vit", tmp_path / "vit"))


def change(folder, name="config.json", **entries):
    content = json.loads((folder / name).read_text()) | entries
    (folder / name).write_text(json.dumps(content))


CHANGED = {
    "unknown kind": ({"model_type": "dinov3"}, "did you mean 'dinov2'"),
    "no kind": ({"model_type": None}, "no model_type; give one that save_pretrained"),
    "timm's": ({"model_type": None, "architecture": "vit"}, "it is timm's"),
    "unknown architecture": (
        {"architectures": ["ViTForMaskedImageModeling"]},
        "unknown architecture .*Known: ViTForImageClassification, ViTModel",
    ),
    "activation": ({"hidden_act": "relu"}, "unknown hidden_act .* 'relu'"),
    "no biases": ({"qkv_bias": False}, "qkv_bias is False .* only True is known"),
    "heads": ({"image_size": 12}, "neither 3x3"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_config_of_another_model_is_refused(case, folder):
    entries, message = CHANGED[case]
    (folder / "preprocessor_config.json").unlink()
    change(folder, **entries)
    with pytest.raises(UserError, match=message):
        huggingface.read(folder)


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("swin", {"layer_norm_eps": 1e-6}, "layer_norm_eps is 1e-06 .* only 1e-05"),
        ("bit", {"global_padding": "SAME"}, "global_padding is 'SAME'"),
        ("bit", {"output_stride": 16, "depths": [1, 1, 1, 1]}, "output_stride is 16"),
    ],
)
def test_other_convolutions_and_norms_are_refused(name, entries, message, tmp_path):
    config = {"model_type": name, **entries}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=message):
        huggingface.read(tmp_path)


def test_files_that_are_missing_or_damaged_are_named(folder, tmp_path):
    with pytest.raises(UserError, match=r"no file .*config.json; give a folder"):
        huggingface.read(tmp_path / "nowhere")
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json is damaged"):
        huggingface.read(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(UserError, match="holds no dictionary"):
        huggingface.read(folder)


def test_an_array_that_no_rule_explains_is_named(folder):
    path = folder / "model.safetensors"
    tensors = dict(files.read_tensors(path).tensors)
    tensors["vit.encoder.layer.0.adapter.weight"] = np.zeros((2, 2), np.float32)
    files.write_safetensors(folder / "new", tensors)
    (folder / "new").rename(path)
    with pytest.raises(UserError, match=r"1 arrays are not explained: .*adapter"):
        huggingface.read(folder)


PROCESSORS = {
    "class": ({"image_processor_type": "SamImageProcessor"}, "unknown image processor"),
    "lanczos": ({"resample": 1}, "resample 1 .* has no op"),
    "size": ({"size": {"longest_edge": 8}}, "has no op; known are height and width"),
    "another size": (
        {"size": {"height": 16, "width": 16}},
        r"makes images of \(16, 16\), but the model takes \(8, 8\) only",
    ),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_a_processor_that_ops_cannot_follow_is_refused(case, folder):
    entries, message = PROCESSORS[case]
    change(folder, "preprocessor_config.json", **entries)
    with pytest.raises(UserError, match=message):
        huggingface.read(folder)


def test_the_mask_token_is_left_out_and_the_log_says_so(tmp_path, caplog):
    fields = {"name": "ViT-S/4", **TINY, "preset": "dinov2", "num_classes": 0}
    huggingface.write(checkpoint_of(fields), tmp_path / "hf")
    caplog.set_level(logging.INFO)
    huggingface.read(tmp_path / "hf")
    assert "left out 1 arrays without use here: embeddings.mask_token" in caplog.text


def renamed(source, target, change_name, **entries):
    """Writes a folder anew with other names and entries of config.json."""
    target.mkdir()
    tensors = files.read_directory(source).tensors
    files.write_safetensors(
        target / "model.safetensors",
        {change_name(name): array for name, array in tensors.items()},
    )
    shutil.copy(source / "config.json", target)
    change(target, **entries)


def test_the_prefix_that_version_4_put_before_siglip_is_taken_off(tmp_path):
    fields = {"name": "ViT-S/4", **TINY, "preset": "siglip", "num_classes": 0}
    huggingface.write(checkpoint_of(fields), tmp_path / "five")
    renamed(tmp_path / "five", tmp_path / "four", lambda name: f"vision_model.{name}")
    five, four = (huggingface.read(tmp_path / name) for name in ("five", "four"))
    assert build_model(**four.model) == build_model(**five.model)


def test_buffers_of_version_4_are_rebuilt(tmp_path):
    huggingface.write(checkpoint_of(ROUND_TRIPS["swin"][0]), tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    tensors = dict(files.read_tensors(path).tensors)
    index = "swin.encoder.layers.0.blocks.0.attention.self.relative_position_index"
    files.write_safetensors(
        path, tensors | {index: np.zeros((4, 4), np.int64)}, overwrite=True
    )
    assert huggingface.read(tmp_path / "hf").model["num_classes"] == 3


def hybrid_name(name):
    """Our name of a hybrid's array in version 4 of transformers."""
    bit = "vit.embeddings.patch_embeddings.backbone.bit"
    parts = name.split("/")
    end = {"kernel": "weight", "scale": "weight"}.get(parts[-1], parts[-1])
    if parts[0] == "conv_root":
        return f"{bit}.embedder.convolution.{end}"
    if parts[0] == "gn_root":
        return f"{bit}.embedder.norm.{end}"
    if parts[0].startswith("block"):
        stage, unit = int(parts[0][5:]) - 1, int(parts[1][4:]) - 1
        inner = parts[2].replace("gn_proj", "downsample.norm").replace("gn", "norm")
        inner = inner.replace("conv_proj", "downsample.conv")
        return f"{bit}.encoder.stages.{stage}.layers.{unit}.{inner}.{end}"
    return None


def test_the_hybrid_of_version_4_is_read(tmp_path):
    fields = {
        "name": "R26+ViT-S/32",
        "preset": "timm-hybrid",
        **TINY,
        "stages": (2, 1),
        "norm_eps": 1e-12,
    }
    checkpoint = checkpoint_of(fields, 32)
    flat = trees.flatten(checkpoint.params)
    transformer = {k: v for k, v in flat.items() if hybrid_name(k) is None}
    same_vit = Checkpoint(
        trees.unflatten(transformer),
        {"name": "ViT-S/8", **TINY, "preset": "hf-vit"},
        (32, 32, 3),
    )
    tensors = huggingface.tensors(same_vit)
    for name, array in flat.items():
        if theirs := hybrid_name(name):
            tensors[theirs] = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
    files.write_safetensors(tmp_path / "model.safetensors", tensors)
    config = {"model_type": "vit-hybrid", "image_size": 32, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = huggingface.read(tmp_path)
    assert build_model(**again.model) == build_model(**fields)
    for name, array in trees.flatten(again.params).items():
        np.testing.assert_array_equal(array, flat[name], err_msg=name)


def test_the_defaults_of_the_library_fill_a_config_that_omits_them(tmp_path):
    # As published beside SigLIP Base.
    fields = {
        "name": "ViT-S/4",
        **TINY,
        "preset": "siglip",
        "width": 24,
        "num_heads": 12,
        "num_classes": 0,
    }
    huggingface.write(checkpoint_of(fields, 224 // 14), tmp_path / "hf")
    config = {"model_type": "siglip", "vision_config": {"image_size": 16}}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    checkpoint = huggingface.read(tmp_path / "hf")
    model = build_model(**checkpoint.model)
    assert (model.num_heads, model.gelu, model.norm_eps) == (12, "tanh", 1e-6)


def test_a_damaged_description_is_named(tmp_path):
    huggingface.write(vit(), tmp_path / "hf")
    path = tmp_path / "hf" / "model.safetensors"
    metadata = {"vit_jax_description": "{"}
    tensors = files.read_tensors(path).tensors
    files.write_safetensors(path.with_name("new"), tensors, metadata)
    path.with_name("new").rename(path)
    with pytest.raises(UserError, match=r"description in the metadata.* is damaged"):
        huggingface.read(tmp_path / "hf")


def test_pictures_that_dinov2_resizes_its_positions_for_are_remembered(tmp_path):
    fields = {
        "name": "ViT-S/4",
        **TINY,
        "preset": "dinov2",
        "pool": "cls_mean",
        "layer_scale": 1e-5,
        "resolution": 16,
        "resize_positions": "bicubic",
    }
    made_for_16 = checkpoint_of(fields)
    checkpoint = Checkpoint(made_for_16.params, fields, (24, 24, 3))
    huggingface.write(checkpoint, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["image_size"] == 16
    again = huggingface.read(tmp_path / "hf")
    assert again.image_shape == (24, 24, 3)
    assert build_model(**again.model) == build_model(**fields)


def test_matching_looks_for_the_kind_of_model(folder, tmp_path):
    assert huggingface.matches(folder)
    assert not huggingface.matches(tmp_path)

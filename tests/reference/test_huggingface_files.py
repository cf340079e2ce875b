# SPDX-License-Identifier: Apache-2.0
"""Folders that transformers writes, read by us; folders of ours, opened by it.

Tiny models of each layout, made from its own definition with random weights.
"""

import json
import warnings

import jax
import numpy as np
import pytest

from tests.reference.weights import images, random_params
from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.checkpoints.files import write_safetensors
from vit_jax.convert import huggingface
from vit_jax.data.pixels import preprocess
from vit_jax.models import build_model

pytestmark = pytest.mark.reference

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what these packages warn of is theirs
    transformers = pytest.importorskip("transformers")

# Largest difference of a logit or feature in float32, with values of size 1.
TOLERANCE = 1e-4

SIDE = 32
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": SIDE,
    "patch_size": 8,
}
DINO = {key: value for key, value in VIT.items() if key != "intermediate_size"}
SWIN = {
    "embed_dim": 32,
    "depths": [2, 1, 1],
    "num_heads": [1, 2, 4],
    "window_size": 4,
    "image_size": 64,
}
BIT = {"embedding_size": 64, "hidden_sizes": [256, 512], "depths": [2, 1]}
TEXT = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 10,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
CLASSES = {"num_labels": 5}


def siglip_config(**fields):
    vision = transformers.SiglipVisionConfig(**VIT).to_dict()
    return transformers.SiglipConfig(vision_config=vision, text_config=TEXT, **fields)


# Class, config, and what of its output is the same as our logits.
LAYOUTS = {
    "ViT": (
        "ViTForImageClassification",
        lambda: transformers.ViTConfig(**VIT, **CLASSES),
        "logits",
    ),
    "ViT with another epsilon and tanh": (
        "ViTForImageClassification",
        lambda: transformers.ViTConfig(
            **VIT, **CLASSES, layer_norm_eps=1e-3, hidden_act="gelu_pytorch_tanh"
        ),
        "logits",
    ),
    "ViT, not square": (
        "ViTForImageClassification",
        lambda: transformers.ViTConfig(**(VIT | {"image_size": [16, 64]}), **CLASSES),
        "logits",
    ),
    "ViT trunk": ("ViTModel", lambda: transformers.ViTConfig(**VIT), "pooler_output"),
    "DeiT": (
        "DeiTForImageClassification",
        lambda: transformers.DeiTConfig(**VIT, **CLASSES),
        "logits",
    ),
    "DeiT with teacher": (
        "DeiTForImageClassificationWithTeacher",
        lambda: transformers.DeiTConfig(**VIT, **CLASSES),
        "logits",
    ),
    "DINOv2": (
        "Dinov2ForImageClassification",
        lambda: transformers.Dinov2Config(**DINO, **CLASSES),
        "logits",
    ),
    "DINOv2 trunk with SwiGLU": (
        "Dinov2Model",
        lambda: transformers.Dinov2Config(**DINO, use_swiglu_ffn=True),
        "pooler_output",
    ),
    "DINOv2 with registers": (
        "Dinov2WithRegistersForImageClassification",
        lambda: transformers.Dinov2WithRegistersConfig(**DINO, **CLASSES),
        "logits",
    ),
    "SigLIP tower": (
        "SiglipVisionModel",
        lambda: transformers.SiglipVisionConfig(**VIT),
        "pooler_output",
    ),
    "SigLIP classifier": (
        "SiglipForImageClassification",
        lambda: siglip_config(**CLASSES),
        "logits",
    ),
    "Swin": (
        "SwinForImageClassification",
        lambda: transformers.SwinConfig(**SWIN, **CLASSES),
        "logits",
    ),
    "Swin with absolute positions": (
        "SwinForImageClassification",
        lambda: transformers.SwinConfig(
            **SWIN, **CLASSES, use_absolute_embeddings=True
        ),
        "logits",
    ),
    "Swin V2": (
        "Swinv2ForImageClassification",
        lambda: transformers.Swinv2Config(**SWIN, **CLASSES),
        "logits",
    ),
    "Swin V2 trunk, trained with other windows": (
        "Swinv2Model",
        lambda: transformers.Swinv2Config(
            **(SWIN | {"window_size": 8}), pretrained_window_sizes=[6, 0, 3]
        ),
        "pooler_output",
    ),
    "BiT": (
        "BitForImageClassification",
        lambda: transformers.BitConfig(**BIT, **CLASSES),
        "logits",
    ),
}
# What is read but written otherwise: a token without a head becomes a register.
ONE_WAY = {"DeiT"}


def make(layout):
    """A model of transformers with random weights, activations of size 1."""
    name, config, output = LAYOUTS[layout]
    model = getattr(transformers, name)(config()).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=generator)
            if key.endswith("logit_scale"):
                tensor.copy_(3 + noise)
            elif tensor.ndim > 1 and "token" not in key and "posit" not in key:
                tensor.copy_(noise * tensor[0].numel() ** -0.5)
            else:
                scale = key.endswith(("norm.weight", "lambda1")) or (
                    "norm" in key and key.endswith("weight")
                )
                tensor.copy_(float(scale) + 0.1 * noise)
    return model, output


def side_of(config):
    config = getattr(config, "vision_config", None) or config
    size = getattr(config, "image_size", SIDE)
    return tuple(size) if isinstance(size, (list, tuple)) else size


def theirs(model, image, output):
    with torch.no_grad():
        pixels = torch.from_numpy(np.array(image.transpose(0, 3, 1, 2), order="C"))
        return np.squeeze(getattr(model(pixels), output).numpy())


def ours(checkpoint, image):
    model = build_model(**checkpoint.model)
    return jax.jit(model.apply)({"params": checkpoint.params}, image)[0]


def both_kinds(side):
    return np.concatenate(
        [images(side, kind, 1) for kind in ("random", "nearly constant")]
    )


def assert_close(logits, expected):
    assert 0.05 < np.abs(expected).mean() < 10
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_of_transformers_runs_as_it_does_there(layout, tmp_path):
    model, output = make(layout)
    model.save_pretrained(tmp_path)
    checkpoint = huggingface.read(tmp_path)
    side = side_of(model.config)
    height, width = (side, side) if isinstance(side, int) else side
    if layout != "BiT":  # its config.json has no size
        assert checkpoint.image_shape == (height, width, 3)
    image = both_kinds(side)
    assert_close(ours(checkpoint, image), theirs(model, image, output))


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - ONE_WAY))
def test_transformers_opens_what_we_write(layout, tmp_path):
    model, output = make(layout)
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = huggingface.read(tmp_path / "theirs")
    huggingface.write(checkpoint, tmp_path / "ours")
    auto = transformers.AutoModel
    if output == "logits":
        auto = transformers.AutoModelForImageClassification
    opened, info = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["unexpected_keys"]
    # The probe and its head, of which that classifier has no use.
    missing = {name for name in info["missing_keys"] if "vision_model.head" not in name}
    assert not missing
    assert type(opened) is type(model)
    image = both_kinds(side_of(model.config))
    np.testing.assert_array_equal(
        theirs(opened.eval(), image, output), theirs(model, image, output)
    )
    again = huggingface.read(tmp_path / "ours")
    assert again.model == checkpoint.model
    assert_same_params(again, checkpoint)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_names_in_memory_are_read_as_those_on_disk(layout, tmp_path):
    model, _ = make(layout)
    model.save_pretrained(tmp_path / "disk")
    (tmp_path / "memory").mkdir()
    config = (tmp_path / "disk" / "config.json").read_text()
    (tmp_path / "memory" / "config.json").write_text(config)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    write_safetensors(tmp_path / "memory" / "model.safetensors", state)
    disk, memory = (huggingface.read(tmp_path / kind) for kind in ("disk", "memory"))
    assert memory.model == disk.model
    assert_same_params(memory, disk)


def test_the_image_tower_of_a_whole_siglip_is_read(tmp_path):
    whole = transformers.SiglipModel(siglip_config()).eval()
    whole.save_pretrained(tmp_path)
    checkpoint = huggingface.read(tmp_path)
    assert checkpoint.model["num_classes"] == 0
    image = images(SIDE, "random")
    expected = theirs(whole.vision_model, image, "pooler_output")
    np.testing.assert_allclose(ours(checkpoint, image), expected, rtol=0, atol=1e-4)


def test_sharded_weights_are_read(tmp_path):
    model, output = make("ViT")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    image = images(SIDE, "random")
    assert_close(ours(huggingface.read(tmp_path), image), theirs(model, image, output))


def assert_same_params(one, other):
    flat, wanted = trees.flatten(one.params), trees.flatten(other.params)
    assert set(flat) == set(wanted)
    for name, array in flat.items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


OURS = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "num_classes": 5}


# Models of ours: their fields, and the class that opens them.
WRITTEN = {
    "Google's, tanh and 1e-6": (
        {"name": "ViT-S/8", **OURS, "preset": "google-vit"},
        "ViTForImageClassification",
    ),
    "big_vision's mean": (
        {"name": "ViT-S/8", **OURS, "preset": "big-vision-vit", "pool": "mean"},
        "SiglipForImageClassification",
    ),
    "DINOv2, class token and mean": (
        {"name": "ViT-S/8", **OURS, "preset": "dinov2", "pool": "cls_mean"},
        "Dinov2ForImageClassification",
    ),
    "distilled": (
        {"name": "ViT-S/8", **OURS, "preset": "hf-vit", "distillation": True},
        "DeiTForImageClassificationWithTeacher",
    ),
    "BiT x3": (
        {
            "name": "BiT-R50x1",
            "num_classes": 5,
            "preset": "hf-bit",
            "stages": (1, 1),
            "width_factor": 3,
        },
        "BitForImageClassification",
    ),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_models_of_ours_run_in_transformers_as_here(case, tmp_path):
    fields, name = WRITTEN[case]
    params = random_params(build_model(**fields), SIDE)
    names = ("cat", "dog", "eel", "fox", "gnu")
    shape = (SIDE, SIDE, 3)
    ops = "decode|resize(32, antialias=True)|value_range(-1, 1)"
    checkpoint = Checkpoint(params, fields, shape, ops, names, loss="sigmoid")
    huggingface.write(checkpoint, tmp_path / "hf")
    opened = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "hf"
    ).eval()
    assert type(opened).__name__ == name
    assert tuple(opened.config.id2label[i] for i in range(5)) == names
    image = both_kinds(SIDE)
    assert_close(ours(checkpoint, image), theirs(opened, image, "logits"))
    again = huggingface.read(tmp_path / "hf")
    assert again.class_names == names
    assert again.loss == "sigmoid"
    assert (again.preprocessing, again.image_shape) == (
        'decode|resize(32, method="bilinear", antialias=True)|value_range(-1, 1)',
        shape,
    )
    assert_close(ours(again, image), ours(checkpoint, image))


def test_a_trunk_of_dinov2_with_folded_factors_is_opened(tmp_path):
    fields = {"name": "ViT-S/8", **OURS, "preset": "dinov2", "num_classes": 0}
    params = random_params(build_model(**fields), SIDE)
    checkpoint = Checkpoint(params, fields, (SIDE, SIDE, 3))
    huggingface.write(checkpoint, tmp_path / "hf")
    opened = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    assert type(opened).__name__ == "Dinov2Model"
    image = both_kinds(SIDE)
    assert_close(ours(checkpoint, image), theirs(opened, image, "pooler_output"))
    again = huggingface.read(tmp_path / "hf")
    scale = again.params["Transformer"]["encoderblock_1"]["LayerScale_1"]["scale"]
    np.testing.assert_array_equal(scale, np.ones(32, np.float32))


def test_larger_pictures_resize_the_positions_of_dinov2_as_there(tmp_path):
    for layout in ("DINOv2", "DINOv2 with registers"):
        model, output = make(layout)
        folder = tmp_path / layout
        model.save_pretrained(folder)
        processor = {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": 64},
            "crop_size": {"height": 48, "width": 48},
        }
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        checkpoint = huggingface.read(folder)
        assert checkpoint.image_shape == (48, 48, 3)
        image = images(48, "random")
        assert_close(ours(checkpoint, image), theirs(model, image, output))


# Op strings and the largest difference in levels that resizing makes. For a picture of
# 50 by 80, both round the longer side alike at these shorter ones; of a fraction of a
# half or more, ours is rounded up and theirs is cut off.
PROCESSORS = {
    "decode|resize(24, antialias=True)|value_range(-1, 1)": 1.01,
    'decode|resize((24, 16), method="bicubic", antialias=True)|value_range(0, 1)': 1.01,
    'decode|resize_small(32, method="bicubic", antialias=True)|central_crop(24)'
    '|normalize("imagenet")': 1.01,
    'decode|resize_small(29, method="bilinear", antialias=True)|central_crop(24)'
    '|normalize("clip")': 1.01,
    "decode|central_crop(24)|normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))": 1e-3,
}


@pytest.mark.parametrize("ops", PROCESSORS)
def test_the_processor_of_transformers_makes_our_pixels(ops, tmp_path):
    fields = {"name": "ViT-S/8", **OURS}
    params = random_params(build_model(**fields), 24)
    huggingface.write(Checkpoint(params, fields, (24, 24, 3), ops), tmp_path / "hf")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:50, :80]
    waves = 128 + 80 * np.sin(rows / 5)[..., None] * np.cos(columns / 7)[..., None]
    picture = np.clip(waves + rng.normal(0, 20, (50, 80, 3)), 0, 255).astype(np.uint8)
    theirs = processor(picture, return_tensors="np")["pixel_values"][0]
    theirs = theirs.transpose(1, 2, 0)
    mine = preprocess(picture, ops)
    assert mine.shape == theirs.shape
    std = np.asarray(processor.image_std)
    levels = np.abs(mine - theirs) * std * 255
    assert levels.max() <= PROCESSORS[ops]
    assert levels.mean() < 0.3


# As published beside checkpoints; sizes made small.
PUBLISHED = {
    "ViT of 4.x": ({"feature_extractor_type": "ViTFeatureExtractor", "size": 24}, 50),
    "DINOv2": (
        {
            "image_processor_type": "BitImageProcessor",
            "crop_size": {"height": 24, "width": 24},
            "do_center_crop": True,
            "image_mean": [0.485, 0.456, 0.406],
            "image_std": [0.229, 0.224, 0.225],
            "resample": 3,
            "size": {"shortest_edge": 27},
        },
        54,
    ),
    "DeiT": (
        {"image_processor_type": "DeiTImageProcessor", "size": 28, "crop_size": 24},
        50,
    ),
    "SigLIP": (
        {
            "image_processor_type": "SiglipImageProcessor",
            "size": {"height": 24, "width": 24},
        },
        50,
    ),
    "no scaling": (
        {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": 24, "width": 24},
            "do_rescale": False,
            "image_mean": [100.0, 110.0, 120.0],
            "image_std": [50.0, 60.0, 70.0],
        },
        50,
    ),
    "scaling alone": (
        {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": 24, "width": 24},
            "do_normalize": False,
        },
        50,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_our_ops_of_a_processor_make_its_pixels(name, tmp_path):
    content, height = PUBLISHED[name]
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(content))
    fields = {"name": "ViT-S/8", **OURS}
    params = random_params(build_model(**fields), 24)
    huggingface.write(Checkpoint(params, fields, (24, 24, 3)), tmp_path / "hf")
    path.rename(tmp_path / "hf" / path.name)
    ops = huggingface.read(tmp_path / "hf").preprocessing
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    noise = np.random.default_rng(0).integers(0, 256, (height, 80, 3), np.uint8)
    theirs = processor(noise, return_tensors="np")["pixel_values"][0]
    mine = preprocess(noise, ops)
    # Of one level, in the numbers of the result.
    level = 1 / 255 if content.get("do_rescale", True) else 1
    if content.get("do_normalize", True):
        level = level / np.asarray(processor.image_std)
    assert np.max(np.abs(mine - theirs.transpose(1, 2, 0)) / level) <= 1.01

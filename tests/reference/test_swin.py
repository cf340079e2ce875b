# SPDX-License-Identifier: Apache-2.0
"""Swin V1 and V2 with the same weights in timm and in transformers.

The mappings below are written for these tests alone; they share no code with the
converters, so that a mistake in one does not hide in the other.
"""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.models import build_model

pytestmark = pytest.mark.reference

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what these packages warn of is theirs
    timm = pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")

# Largest difference of a logit in float32 with logits of size 1.
LOGITS = 1e-4
# Of a gradient, relative to the largest of its parameter.
GRADIENTS = 1e-3

SMALL = {"width": 32, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}


def random_params(model, side, seed=0):
    """Random weights that keep activations of size 1 and leave no parameter at zero."""
    rng = np.random.default_rng(seed)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def draw(name, leaf):
        if name.endswith("kernel"):
            axes = leaf.shape[:1] if "/qkv/" in name else leaf.shape[:-1]
            values = rng.normal(0, np.prod(axes) ** -0.5, leaf.shape)
        elif name.endswith("logit_scale"):
            values = rng.uniform(1, 6, leaf.shape)  # on both sides of ln 100 = 4.6
        elif name.endswith("table"):
            values = rng.normal(0, 1, leaf.shape)
        else:
            values = rng.normal(float(name.endswith("scale")), 0.1, leaf.shape)
        return np.asarray(values, np.float32)

    return trees.map_with_name(draw, shapes)


def images(shape, kind, batch=2):
    noise = np.random.default_rng(1).normal(size=(batch, *shape, 3))
    pixels = noise if kind == "random" else 0.5 + 1e-3 * noise
    return pixels.astype(np.float32)


def timm_tensor(name, leaf):
    leaf = np.asarray(leaf)
    if name == "patch_embed/proj/kernel":
        leaf = leaf.transpose(3, 2, 0, 1)
    elif name.endswith("attn/proj/kernel"):
        leaf = leaf.reshape(-1, leaf.shape[-1]).T
    elif name.endswith("kernel"):
        leaf = leaf.reshape(leaf.shape[0], -1).T
    elif not name.endswith(("logit_scale", "table")):
        leaf = leaf.reshape(-1)
    return torch.from_numpy(np.array(leaf, order="C"))


def timm_state(params):
    state = {}
    for name, leaf in trees.flatten(params).items():
        key = re.sub(r"(layers|blocks|cpb_mlp)_(\d+)", r"\1.\2", name)
        key = key.replace("head/", "head/fc/").replace("/", ".")
        key = re.sub(r"\.(kernel|scale)$", ".weight", key)
        state[key] = timm_tensor(name, leaf)
    return state


def transformers_state(params):
    state = {}
    for key, tensor in timm_state(params).items():
        match = re.fullmatch(r"layers\.(\d)\.downsample\.(.*)", key)
        if match:
            key = f"layers.{int(match[1]) - 1}.downsample.{match[2]}"
        if key.startswith("head.fc."):
            state[key.replace("head.fc", "classifier")] = tensor
            continue
        prefix = "encoder." if key.startswith("layers.") else ""
        key = prefix + key
        key = key.replace("patch_embed.proj", "embeddings.patch_embeddings.projection")
        key = key.replace("patch_embed.norm", "embeddings.norm")
        key = re.sub(r"^norm\.", "layernorm.", key)
        key = key.replace("norm1", "layernorm_before").replace(
            "norm2", "layernorm_after"
        )
        if ".qkv." in key:
            for part, third in zip("qkv", tensor.chunk(3), strict=True):
                state[key.replace("attn.qkv", f"attention.{part}_proj")] = third
            continue
        key = key.replace("attn.proj", "attention.o_proj")
        key = key.replace("attn.relative", "attention.relative_position_bias.relative")
        state[key.replace("attn.", "attention.")] = tensor
    return state


def swin_v1_state(params):
    state = transformers_state(params)
    return {k if k.startswith("class") else f"swin.{k}": v for k, v in state.items()}


def swin_v2_state(params):
    names = {
        "q_proj": "self.query",
        "k_proj": "self.key",
        "v_proj": "self.value",
        "q_bias": "self.query.bias",
        "v_bias": "self.value.bias",
        "o_proj": "output.dense",
        "logit_scale": "self.logit_scale",
        "cpb_mlp": "self.continuous_position_bias_mlp",
    }
    state = {}
    for key, tensor in transformers_state(params).items():
        for ours, theirs in names.items():
            key = key.replace(f"attention.{ours}", f"attention.{theirs}")
        key = key.replace("mlp.fc1", "intermediate.dense")
        key = key.replace("mlp.fc2", "output.dense")
        state[key if key.startswith("class") else f"swinv2.{key}"] = tensor
    return state


def load(model, state):
    model.load_state_dict(state, strict=True)
    return model.eval()


def timm_model(params, model, size):
    name = "swin_tiny_patch4_window7_224"
    fields = {}
    if hasattr(model, "pretrained_window_size"):
        name = "swinv2_tiny_window8_256"
        fields["pretrained_window_sizes"] = model.pretrained_window_size or (0,) * len(
            model.depths
        )
    reference = timm.create_model(
        name,
        pretrained=False,
        img_size=size,
        embed_dim=model.width,
        depths=model.depths,
        num_heads=model.num_heads,
        window_size=model.window_size,
        **fields,
    )
    return load(reference, timm_state(params))


def transformers_model(params, model, size):
    fields = {
        "num_labels": 1000,
        "image_size": size,
        "embed_dim": model.width,
        "depths": list(model.depths),
        "num_heads": list(model.num_heads),
        "window_size": model.window_size,
    }
    if not hasattr(model, "pretrained_window_size"):
        config = transformers.SwinConfig(**fields)
        reference = transformers.SwinForImageClassification(config)
        return load(reference, swin_v1_state(params))
    windows = model.pretrained_window_size or (0,) * len(model.depths)
    config = transformers.Swinv2Config(pretrained_window_sizes=list(windows), **fields)
    reference = transformers.Swinv2ForImageClassification(config)
    return load(reference, swin_v2_state(params))


def torch_logits(reference, image):
    image = torch.from_numpy(np.array(image.transpose(0, 3, 1, 2), order="C"))
    output = reference(image)
    return output if isinstance(output, torch.Tensor) else output.logits


def difference(model, params, reference, image):
    logits, _ = jax.jit(model.apply)({"params": params}, image)
    with torch.no_grad():
        expected = torch_logits(reference, image).numpy()
    assert 0.3 < np.abs(expected).mean() < 3
    return np.abs(logits - expected).max()


# The row, its overrides, and the image. The two large ones keep a single block where
# windows are many.
CASES = {
    "v1": ("Swin-T", {}, 224),
    "v1 without shift in the last two stages": (
        "Swin-T",
        {"window_size": 4, "resolution": 64},
        64,
    ),
    "v2": ("SwinV2-T", {"resolution": 64, "window_size": 4}, 64),
    "v2 with shrunk windows": ("SwinV2-T", {"resolution": 64}, 64),
    "v2 with another window than in pre-training": (
        "SwinV2-B-w12to16",
        {"depths": (1, 2, 2, 2)},
        256,
    ),
    "v2 for 384 pixels": ("SwinV2-B-w12to24-384", {"depths": (1, 1, 1, 1)}, 384),
}


# transformers makes the tables of V1 for the whole window, even where it shrinks.
TRANSFORMERS = sorted(set(CASES) - {"v1 without shift in the last two stages"})


@pytest.mark.parametrize(
    ("case", "make"),
    [(case, timm_model) for case in CASES]
    + [(case, transformers_model) for case in TRANSFORMERS],
)
def test_logits_equal_the_reference(case, make):
    name, overrides, side = CASES[case]
    model = build_model(name, num_classes=1000, **{**SMALL, **overrides})
    params = random_params(model, side)
    reference = make(params, model, side)
    # Both kinds in one batch, so that each model is compiled once.
    kinds = [images((side, side), kind, 1) for kind in ("random", "nearly constant")]
    assert difference(model, params, reference, np.concatenate(kinds)) < LOGITS


def test_sides_of_an_image_may_differ():
    size = (64, 128)
    model = build_model("Swin-T", num_classes=1000, **SMALL)
    model = model.clone(window_size=4, resolution=size)
    params = random_params(model.clone(resolution=64), 64)
    # The last map has 2 rows and 4 columns, and its window too.
    table = params["layers_3"]["blocks_0"]["attn"]["relative_position_bias_table"]
    wide = np.random.default_rng(3).normal(size=(3 * 7, table.shape[1]))
    for block in params["layers_3"]:
        if block.startswith("blocks"):
            attention = params["layers_3"][block]["attn"]
            attention["relative_position_bias_table"] = wide.astype(np.float32)
    reference = timm_model(params, model, size)
    assert difference(model, params, reference, images(size, "random")) < LOGITS


TINY = {**SMALL, "depths": (1, 1), "num_heads": (1, 2)}
TINY |= {"window_size": 4, "resolution": 32}


@pytest.mark.parametrize("name", ["Swin-T", "SwinV2-T"])
def test_the_other_form_of_gelu_does_not_pass(name):
    model = build_model(name, num_classes=1000, **TINY)
    params = random_params(model, 32)
    reference = timm_model(params, model, 32)
    image = images((32, 32), "random")
    assert difference(model.clone(gelu="tanh"), params, reference, image) > LOGITS
    assert difference(model, params, reference, image) < LOGITS


@pytest.mark.parametrize("name", ["Swin-T", "SwinV2-T"])
def test_another_epsilon_does_not_pass_on_a_nearly_constant_image(name):
    model = build_model(name, num_classes=1000, **TINY)
    params = random_params(model, 32)
    # Small tokens, as a nearly constant image gives where its mean is projected away.
    params["patch_embed"]["proj"]["kernel"] *= 1e-2
    params["patch_embed"]["proj"]["bias"] *= 0
    reference = timm_model(params, model, 32)
    image = images((32, 32), "nearly constant")
    assert difference(model.clone(norm_eps=1e-6), params, reference, image) > LOGITS
    assert difference(model, params, reference, image) < LOGITS


def test_positions_relative_to_another_window_do_not_pass():
    model = build_model("SwinV2-T", num_classes=1000, **TINY)
    model = model.clone(pretrained_window_size=(12, 6))
    params = random_params(model, 32)
    reference = timm_model(params, model, 32)
    image = images((32, 32), "random")
    other = model.clone(pretrained_window_size=None)
    assert difference(other, params, reference, image) > 10 * LOGITS
    assert difference(model, params, reference, image) < LOGITS


@pytest.mark.parametrize("name", ["Swin-T", "SwinV2-T"])
def test_gradients_equal_the_reference(name):
    model = build_model(name, num_classes=1000, **{**TINY, "depths": (2, 2)})
    params = random_params(model, 32)
    image = images((32, 32), "random", batch=4)
    target = np.random.default_rng(2).normal(size=(4, 1000)).astype(np.float32)

    def loss(params):
        logits, _ = model.apply({"params": params}, image)
        return jnp.sum(logits * target)

    grads = timm_state(jax.device_get(jax.jit(jax.grad(loss))(params)))
    reference = timm_model(params, model, 32)
    (torch_logits(reference, image) * torch.from_numpy(target)).sum().backward()
    compared = dict(reference.named_parameters())
    assert set(compared) == set(grads)
    largest = max(float(grad.abs().max()) for grad in grads.values())
    for key, parameter in compared.items():
        expected, got = parameter.grad.reshape(-1), grads[key].reshape(-1)
        # That of logit_scale nearly cancels, and the rest of it is rounding.
        scale = max(float(expected.abs().max()), 1e-2 * largest)
        assert float((got - expected).abs().max()) < GRADIENTS * scale, key

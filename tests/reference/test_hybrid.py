# SPDX-License-Identifier: Apache-2.0
"""Hybrids of ResNet and ViT with the same weights in timm.

The mapping is written for these tests alone; it shares no code with the converters.
"""

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
    warnings.simplefilter("ignore")  # what this package warns of is its own
    timm = pytest.importorskip("timm")

# Largest difference of a logit in float32 with logits of size 1.
LOGITS = 1e-4
# Of a gradient, relative to the largest of its parameter.
GRADIENTS = 1e-3
# Added to the norms' biases for gradients, channels in turn: a ReLU that rounding puts
# on the other side of zero would change them by the whole of its share.
FAR_FROM_ZERO = (6.0, -6.0)

SIDE = 64
SIZES = {"width": 48, "depth": 2, "num_heads": 4, "mlp_dim": 192}
TIMM_SIZES = {"embed_dim": 48, "depth": 2, "num_heads": 4, "img_size": SIDE}
# Ours and timm's: the stem alone, form (i) with four stages, form (ii) with three.
NAMES = {
    "R+ViT-Ti/16": "vit_tiny_r_s16_p8_224",
    "R26+ViT-S/32": "vit_small_r26_s32_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
}


def hybrid(name, **overrides):
    return build_model(name, num_classes=1000, **SIZES, **overrides)


def random_params(model, seed=0):
    """Random weights; the ResNet's kernels are so small that every epsilon shows."""
    rng = np.random.default_rng(seed)
    image = jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def draw(name, leaf):
        if name.startswith(("conv_root", "block")) and name.endswith("kernel"):
            values = rng.normal(0, 3e-4, leaf.shape)
        elif name.endswith("kernel"):
            inputs = np.prod(leaf.shape[:-1])
            if leaf.ndim == 3 and not name.endswith("out/kernel"):
                inputs = leaf.shape[0]
            values = rng.normal(0, inputs**-0.5, leaf.shape)
        else:
            values = rng.normal(float(name.endswith("scale")), 0.1, leaf.shape)
        return np.asarray(values, np.float32)

    return trees.map_with_name(draw, shapes)


def without_kinks(params):
    """The weights with each ReLU open or closed for good, by its channel."""

    def move(name, leaf):
        if "gn" in name and name.endswith("bias"):
            return leaf + np.resize(np.float32(FAR_FROM_ZERO), leaf.shape)
        return leaf

    return trees.map_with_name(move, params)


def images(kind, batch=2):
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(batch, SIDE, SIDE, 3))
    pixels = noise if kind == "random" else 0.5 + 1e-3 * noise
    return pixels.astype(np.float32)


def to_torch(array):
    return torch.from_numpy(np.array(array, order="C"))


def dense(name, layer):
    kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
    return {
        f"{name}.weight": to_torch(kernel.reshape(-1, bias.size).T),
        f"{name}.bias": to_torch(bias.reshape(-1)),
    }


def conv(name, layer):
    return {
        f"{name}.weight": to_torch(np.asarray(layer["kernel"]).transpose(3, 2, 0, 1))
    }


def norm(name, layer):
    return {
        f"{name}.weight": to_torch(layer["scale"]),
        f"{name}.bias": to_torch(layer["bias"]),
    }


def resnet(params):
    stages = [name for name in params if name.startswith("block")]
    root = "patch_embed.backbone" + (".stem" if stages else "")
    state = conv(f"{root}.conv", params["conv_root"])
    state |= norm(f"{root}.norm", params["gn_root"])
    for stage in stages:
        for unit, layer in params[stage].items():
            s, j = int(stage[5:]) - 1, int(unit[4:]) - 1
            name = f"patch_embed.backbone.stages.{s}.blocks.{j}"
            for i in (1, 2, 3):
                state |= conv(f"{name}.conv{i}", layer[f"conv{i}"])
                state |= norm(f"{name}.norm{i}", layer[f"gn{i}"])
            if "conv_proj" in layer:
                state |= conv(f"{name}.downsample.conv", layer["conv_proj"])
                state |= norm(f"{name}.downsample.norm", layer["gn_proj"])
    return state


def timm_state(params):
    encoder = params["Transformer"]
    state = resnet(params)
    state |= conv("patch_embed.proj", params["embedding"])
    state["patch_embed.proj.bias"] = to_torch(params["embedding"]["bias"])
    state["cls_token"] = to_torch(params["cls"])
    state["pos_embed"] = to_torch(encoder["posembed_input"]["pos_embedding"])
    for i in range(SIZES["depth"]):
        block = encoder[f"encoderblock_{i}"]
        attention = block["MultiHeadDotProductAttention_0"]
        mlp = block["MlpBlock_0"]
        parts = [dense("x", attention[name]) for name in ("query", "key", "value")]
        for kind in ("weight", "bias"):
            state[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(
                [part[f"x.{kind}"] for part in parts]
            )
        state |= dense(f"blocks.{i}.attn.proj", attention["out"])
        state |= norm(f"blocks.{i}.norm1", block["LayerNorm_0"])
        state |= norm(f"blocks.{i}.norm2", block["LayerNorm_1"])
        state |= dense(f"blocks.{i}.mlp.fc1", mlp["Dense_0"])
        state |= dense(f"blocks.{i}.mlp.fc2", mlp["Dense_1"])
    state |= norm("norm", encoder["encoder_norm"])
    return state | dense("head", params["head"])


def timm_model(name, params):
    model = timm.create_model(
        NAMES[name], pretrained=False, num_classes=1000, **TIMM_SIZES
    )
    model.load_state_dict(timm_state(params), strict=True)
    return model.eval()


def torch_logits(model, image):
    return model(to_torch(np.asarray(image).transpose(0, 3, 1, 2)))


def difference(model, params, reference, image):
    logits, _ = jax.jit(model.apply)({"params": params}, image)
    with torch.no_grad():
        expected = torch_logits(reference, image).numpy()
    assert 0.3 < np.abs(expected).mean() < 3
    return np.abs(logits - expected).max()


@pytest.mark.parametrize("kind", ["random", "nearly constant"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_the_reference(name, kind):
    model = hybrid(name, preset="timm-hybrid")
    params = random_params(model)
    assert difference(model, params, timm_model(name, params), images(kind)) < LOGITS


@pytest.mark.parametrize(
    "wrong",
    [
        {"conv_eps": 1e-5, "conv_eps_form": "std"},
        {"conv_eps": 1e-10},
        {"group_norm_eps": 1e-3},
        {"gelu": "tanh"},
    ],
)
def test_other_numerics_do_not_pass(wrong):
    name = "R26+ViT-S/32"
    model = hybrid(name, preset="timm-hybrid", **wrong)
    params = random_params(model)
    reference = timm_model(name, params)
    assert difference(model, params, reference, images("random")) > LOGITS


@pytest.mark.parametrize("name", ["R+ViT-Ti/16", "R26+ViT-S/32"])
def test_gradients_equal_the_reference(name):
    model = hybrid(name, preset="timm-hybrid")
    params, image = without_kinks(random_params(model)), images("random", batch=3)
    target = np.random.default_rng(2).normal(size=(3, 1000)).astype(np.float32)

    def loss(params):
        logits, _ = model.apply({"params": params}, image)
        return jnp.sum(logits * target)

    grads = timm_state(jax.device_get(jax.jit(jax.grad(loss))(params)))
    reference = timm_model(name, params)
    (torch_logits(reference, image) * to_torch(target)).sum().backward()
    compared = dict(reference.named_parameters())
    assert set(compared) == set(grads)
    for key, parameter in compared.items():
        expected, got = parameter.grad.reshape(-1), grads[key].reshape(-1)
        scale = float(expected.abs().max())
        assert scale > 0, key
        assert float((got - expected).abs().max()) < GRADIENTS * scale, key

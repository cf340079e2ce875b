# SPDX-License-Identifier: Apache-2.0
"""Random weights, and their names and forms in timm and transformers.

The mappings are written for these tests alone; they share no code with the converters,
so that a mistake in one does not hide in the other.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees

torch = pytest.importorskip("torch")


def random_params(model, side, seed=0):
    """Random weights that keep activations of size 1 and leave no parameter at zero."""
    rng = np.random.default_rng(seed)
    height, width = (side, side) if isinstance(side, int) else side
    image = jax.ShapeDtypeStruct((1, height, width, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def draw(name, leaf):
        if name.endswith("kernel"):
            inputs = np.prod(leaf.shape[:-1])
            if leaf.ndim == 3 and not name.endswith("out/kernel"):
                inputs = leaf.shape[0]
            values = rng.normal(0, inputs**-0.5, leaf.shape)
        else:
            values = rng.normal(float(name.endswith("scale")), 0.1, leaf.shape)
        return np.asarray(values, np.float32)

    return trees.map_with_name(draw, shapes)


def images(side, kind, batch=2):
    height, width = (side, side) if isinstance(side, int) else side
    noise = np.random.default_rng(1).normal(size=(batch, height, width, 3))
    pixels = noise if kind == "random" else 0.5 + 1e-3 * noise
    return pixels.astype(np.float32)


def to_torch(array):
    return torch.from_numpy(np.array(array, order="C"))


def dense(name, layer):
    """A dense layer: torch keeps the transpose; heads flatten with the head first."""
    kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
    outputs = bias.size
    return {
        f"{name}.weight": to_torch(kernel.reshape(-1, outputs).T),
        f"{name}.bias": to_torch(bias.reshape(outputs)),
    }


def norm(name, layer):
    return {
        f"{name}.weight": to_torch(layer["scale"]),
        f"{name}.bias": to_torch(layer["bias"]),
    }


def stem(prefix, positions, conv, params):
    state = {
        f"{prefix}{conv}.weight": to_torch(
            np.asarray(params["embedding"]["kernel"]).transpose(3, 2, 0, 1)
        ),
        f"{prefix}{conv}.bias": to_torch(params["embedding"]["bias"]),
    }
    if "cls" in params:
        state[f"{prefix}cls_token"] = to_torch(params["cls"])
    if "posembed_input" in params["Transformer"]:
        table = params["Transformer"]["posembed_input"]["pos_embedding"]
        state[f"{prefix}{positions}"] = to_torch(table)
    return state


def blocks(params):
    encoder = params["Transformer"]
    depth = sum(name.startswith("encoderblock_") for name in encoder)
    for i in range(depth):
        block = encoder[f"encoderblock_{i}"]
        yield i, block, block["MultiHeadDotProductAttention_0"], block["MlpBlock_0"]


def packed(name, attention, parts):
    """Query, key and value as one layer, their outputs one after another."""
    layers = [dense("x", attention[part]) for part in parts]
    return {
        f"{name}.{kind}": torch.cat([layer[f"x.{kind}"] for layer in layers])
        for kind in ("weight", "bias")
    }


def timm_state(params, scale_names=("ls1.gamma", "ls2.gamma")):
    state = stem("", "pos_embed", "patch_embed.proj", params)
    for i, block, attention, mlp in blocks(params):
        name = f"blocks.{i}"
        state |= packed(f"{name}.attn.qkv", attention, ("query", "key", "value"))
        state |= dense(f"{name}.attn.proj", attention["out"])
        state |= norm(f"{name}.norm1", block["LayerNorm_0"])
        state |= norm(f"{name}.norm2", block["LayerNorm_1"])
        state |= dense(f"{name}.mlp.fc1", mlp["Dense_0"])
        state |= dense(f"{name}.mlp.fc2", mlp["Dense_1"])
        extra = {
            f"{name}.attn.q_norm": attention.get("query_ln"),
            f"{name}.attn.k_norm": attention.get("key_ln"),
        }
        for theirs, layer in extra.items():
            state |= norm(theirs, layer) if layer else {}
        for j, theirs in enumerate(scale_names):
            if f"LayerScale_{j}" in block:
                scale = block[f"LayerScale_{j}"]["scale"]
                state[f"{name}.{theirs}"] = to_torch(scale)
    state |= norm("norm", params["Transformer"]["encoder_norm"])
    tokens = {"dist": "dist_token", "registers": "reg_token"}
    state |= {tokens[ours]: to_torch(params[ours]) for ours in tokens if ours in params}
    for head in {"head", "head_dist"} & set(params):
        state |= dense(head, params[head])
    if "MAPHead_0" in params:
        state |= timm_map_head(params["MAPHead_0"])
    return state


def timm_map_head(head):
    attention, mlp = head["MultiHeadDotProductAttention_0"], head["MlpBlock_0"]
    return {
        "attn_pool.latent": to_torch(head["probe"]),
        **dense("attn_pool.q", attention["query"]),
        **packed("attn_pool.kv", attention, ("key", "value")),
        **dense("attn_pool.proj", attention["out"]),
        **norm("attn_pool.norm", head["LayerNorm_0"]),
        **dense("attn_pool.mlp.fc1", mlp["Dense_0"]),
        **dense("attn_pool.mlp.fc2", mlp["Dense_1"]),
    }


def split(name, attention, out):
    state = dense(f"{name}.{out}", attention["out"])
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
        state |= dense(f"{name}.{theirs}_proj", attention[ours])
    return state


def transformers_trunk(params, prefix):
    state = stem(
        f"{prefix}.embeddings.",
        "position_embeddings",
        "patch_embeddings.projection",
        params,
    )
    for i, block, attention, mlp in blocks(params):
        name = f"{prefix}.layers.{i}"
        state |= split(f"{name}.attention", attention, "o_proj")
        state |= norm(f"{name}.layernorm_before", block["LayerNorm_0"])
        state |= norm(f"{name}.layernorm_after", block["LayerNorm_1"])
        state |= dense(f"{name}.mlp.fc1", mlp["Dense_0"])
        state |= dense(f"{name}.mlp.fc2", mlp["Dense_1"])
    return state | norm(f"{prefix}.layernorm", params["Transformer"]["encoder_norm"])


def transformers_state(params):
    return transformers_trunk(params, "vit") | dense("classifier", params["head"])


def transformers_deit_state(params):
    state = transformers_trunk(params, "deit")
    state["deit.embeddings.distillation_token"] = to_torch(params["dist"])
    state |= dense("cls_classifier", params["head"])
    return state | dense("distillation_classifier", params["head_dist"])


def transformers_dinov2_state(params):
    """Of the model with registers and SwiGLU."""
    state = stem(
        "embeddings.", "position_embeddings", "patch_embeddings.projection", params
    )
    state["embeddings.register_tokens"] = to_torch(params["registers"])
    for i, block, attention, mlp in blocks(params):
        name = f"encoder.layer.{i}"
        state |= split(f"{name}.attention", attention, "o_proj")
        for j in (0, 1):
            state |= norm(f"{name}.norm{j + 1}", block[f"LayerNorm_{j}"])
            scale = to_torch(block[f"LayerScale_{j}"]["scale"])
            state[f"{name}.layer_scale{j + 1}.lambda1"] = scale
        both = dense("both", mlp["Dense_0"])
        for kind in ("weight", "bias"):
            gate, value = both[f"both.{kind}"].chunk(2)
            state[f"{name}.mlp.gate_proj.{kind}"] = gate
            state[f"{name}.mlp.up_proj.{kind}"] = value
        state |= dense(f"{name}.mlp.down_proj", mlp["Dense_1"])
    return state | norm("layernorm", params["Transformer"]["encoder_norm"])


def transformers_siglip_state(params):
    state = stem("embeddings.", "position_embedding.weight", "patch_embedding", params)
    state["embeddings.position_embedding.weight"].squeeze_(0)
    for i, block, attention, mlp in blocks(params):
        name = f"encoder.layers.{i}"
        state |= split(f"{name}.self_attn", attention, "out_proj")
        state |= norm(f"{name}.layer_norm1", block["LayerNorm_0"])
        state |= norm(f"{name}.layer_norm2", block["LayerNorm_1"])
        state |= dense(f"{name}.mlp.fc1", mlp["Dense_0"])
        state |= dense(f"{name}.mlp.fc2", mlp["Dense_1"])
    state |= norm("post_layernorm", params["Transformer"]["encoder_norm"])
    head = params["MAPHead_0"]
    attention, mlp = head["MultiHeadDotProductAttention_0"], head["MlpBlock_0"]
    state["head.probe"] = to_torch(head["probe"])
    for kind, tensor in packed("x", attention, ("query", "key", "value")).items():
        state[f"head.attention.in_proj_{kind.removeprefix('x.')}"] = tensor
    state |= dense("head.attention.out_proj", attention["out"])
    state |= norm("head.layernorm", head["LayerNorm_0"])
    state |= dense("head.mlp.fc1", mlp["Dense_0"])
    return state | dense("head.mlp.fc2", mlp["Dense_1"])

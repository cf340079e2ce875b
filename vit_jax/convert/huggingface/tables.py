# SPDX-License-Identifier: Apache-2.0
"""Our names beside those that transformers writes to disk, for ViT and its kin.

The names are those inside the trunk, and of the heads: a model with a classifier puts
a prefix before the names of its trunk, see `layouts.py`.
"""

from collections.abc import Sequence

from vit_jax.convert.rules import (
    CONV,
    DENSE,
    HEADS_BIAS,
    HEADS_IN,
    HEADS_OUT,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    Form,
    Rule,
    rule,
)

# A table of positions without the leading axis of 1.
ROWS = Form(lambda a, heads: (a[0][0],), lambda a, heads: (a[0][None],))

_BLOCK = "Transformer/encoderblock_{i}"
_ATTENTION = "MultiHeadDotProductAttention_0"
# Query, key and value, in the order that all keep.
PARTS = ("query", "key", "value")


def dense(ours: str, theirs: str, kernel: Form = DENSE) -> list[Rule]:
    """Rules of a layer with kernel and bias."""
    return [
        rule(f"{ours}/kernel", f"{theirs}.weight", kernel),
        rule(f"{ours}/bias", f"{theirs}.bias", SAME),
    ]


def norm(ours: str, theirs: str) -> list[Rule]:
    """Rules of a norm."""
    return [
        rule(f"{ours}/scale", f"{theirs}.weight", SAME),
        rule(f"{ours}/bias", f"{theirs}.bias", SAME),
    ]


def _attention(theirs: Sequence[str], out: str) -> list[Rule]:
    """Rules of a block's attention; `theirs` are query, key and value."""
    ours = f"{_BLOCK}/{_ATTENTION}"
    rules = dense(f"{ours}/out", out, HEADS_IN)
    for part, name in zip(PARTS, theirs, strict=True):
        rules.append(rule(f"{ours}/{part}/kernel", f"{name}.weight", HEADS_OUT))
        rules.append(rule(f"{ours}/{part}/bias", f"{name}.bias", HEADS_BIAS))
    return rules


def _nested_attention() -> list[Rule]:
    inner = [f"encoder.layer.{{i}}.attention.attention.{part}" for part in PARTS]
    return _attention(inner, "encoder.layer.{i}.attention.output.dense")


def _tokens() -> list[Rule]:
    """Rules of the embeddings and the last norm of ViT, DeiT and DINOv2."""
    return [
        *dense("embedding", "embeddings.patch_embeddings.projection", CONV),
        rule("registers", "embeddings.register_tokens", SAME),
        rule("cls", "embeddings.cls_token", SAME),
        rule(
            "Transformer/posembed_input/pos_embedding",
            "embeddings.position_embeddings",
            SAME,
        ),
        *norm("Transformer/encoder_norm", "layernorm"),
    ]


def vit() -> list[Rule]:
    """Rules of ViT, also of a trunk with its pooler."""
    layer = "encoder.layer.{i}"
    return [
        *_tokens(),
        *_nested_attention(),
        *norm(f"{_BLOCK}/LayerNorm_0", f"{layer}.layernorm_before"),
        *norm(f"{_BLOCK}/LayerNorm_1", f"{layer}.layernorm_after"),
        *dense(f"{_BLOCK}/MlpBlock_0/Dense_0", f"{layer}.intermediate.dense"),
        *dense(f"{_BLOCK}/MlpBlock_0/Dense_1", f"{layer}.output.dense"),
        *dense("pre_logits", "pooler.dense"),
        *dense("head", "classifier"),
    ]


def deit() -> list[Rule]:
    """Rules of DeiT with a class and a distillation token and a head for each."""
    return [
        rule("dist", "embeddings.distillation_token", SAME),
        *(each for each in vit() if not each.ours[0].startswith(("head", "pre_"))),
        *dense("head", "cls_classifier"),
        *dense("head_dist", "distillation_classifier"),
    ]


def dinov2(gated: bool = False) -> list[Rule]:
    """Rules of DINOv2 with and without registers; `gated` is its other MLP."""
    layer, mlp = "encoder.layer.{i}", f"{_BLOCK}/MlpBlock_0"
    names = ("weights_in", "weights_out") if gated else ("fc1", "fc2")
    return [
        *_tokens(),
        *_nested_attention(),
        *norm(f"{_BLOCK}/LayerNorm_0", f"{layer}.norm1"),
        *norm(f"{_BLOCK}/LayerNorm_1", f"{layer}.norm2"),
        rule(f"{_BLOCK}/LayerScale_0/scale", f"{layer}.layer_scale1.lambda1", SAME),
        rule(f"{_BLOCK}/LayerScale_1/scale", f"{layer}.layer_scale2.lambda1", SAME),
        *dense(f"{mlp}/Dense_0", f"{layer}.mlp.{names[0]}"),
        *dense(f"{mlp}/Dense_1", f"{layer}.mlp.{names[1]}"),
        *dense("head", "classifier"),
    ]


def siglip() -> list[Rule]:
    """Rules of the image tower of SigLIP."""
    layer, head = "encoder.layers.{i}", f"MAPHead_0/{_ATTENTION}"
    mine = [f"{layer}.self_attn.{part[0]}_proj" for part in PARTS]
    parts = {kind: [f"{head}/{p}/{kind}" for p in PARTS] for kind in ("kernel", "bias")}
    return [
        *dense("embedding", "embeddings.patch_embedding", CONV),
        rule(
            "Transformer/posembed_input/pos_embedding",
            "embeddings.position_embedding.weight",
            ROWS,
        ),
        *_attention(mine, f"{layer}.self_attn.out_proj"),
        *norm(f"{_BLOCK}/LayerNorm_0", f"{layer}.layer_norm1"),
        *norm(f"{_BLOCK}/LayerNorm_1", f"{layer}.layer_norm2"),
        *dense(f"{_BLOCK}/MlpBlock_0/Dense_0", f"{layer}.mlp.fc1"),
        *dense(f"{_BLOCK}/MlpBlock_0/Dense_1", f"{layer}.mlp.fc2"),
        *norm("Transformer/encoder_norm", "post_layernorm"),
        rule("MAPHead_0/probe", "head.probe", SAME),
        rule(parts["kernel"], "head.attention.in_proj_weight", QKV_KERNEL),
        rule(parts["bias"], "head.attention.in_proj_bias", QKV_BIAS),
        *dense(f"{head}/out", "head.attention.out_proj", HEADS_IN),
        *norm("MAPHead_0/LayerNorm_0", "head.layernorm"),
        *dense("MAPHead_0/MlpBlock_0/Dense_0", "head.mlp.fc1"),
        *dense("MAPHead_0/MlpBlock_0/Dense_1", "head.mlp.fc2"),
        *dense("head", "classifier"),
    ]

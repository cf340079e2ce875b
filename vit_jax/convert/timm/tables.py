# SPDX-License-Identifier: Apache-2.0
"""Our names beside those of timm, one table a family, and of official Swin files.

The forms say how the arrays change, see `rules.py`.
"""

import math
from collections.abc import Mapping, Sequence

from vit_jax.convert.rules import (
    CONV,
    DENSE,
    HEADS_BIAS,
    HEADS_IN,
    HEADS_OUT,
    JOINT_QKV_BIAS,
    JOINT_QKV_KERNEL,
    KV_BIAS,
    KV_KERNEL,
    QKV_BIAS,
    QKV_KERNEL,
    SAME,
    Form,
    Rule,
    rule,
)

# The head of BiT is a convolution of 1 x 1: (in, out) is (out, in, 1, 1).
_HEAD_CONV = Form(
    lambda a, heads: (a[0].T[:, :, None, None],),
    lambda a, heads: (a[0].reshape(a[0].shape[:2]).T,),
)
# A grid of absolute positions is (1, h, w, c) here and (1, h * w, c) there. Of a grid
# that is not square the rows are not told; see `swin.py`.
_FLAT_GRID = Form(
    lambda a, heads: (a[0].reshape(1, -1, a[0].shape[-1]),),
    lambda a, heads: (a[0].reshape(1, math.isqrt(a[0].shape[1]), -1, a[0].shape[-1]),),
)


def _dense(ours: str, theirs: str, kernel: Form = DENSE) -> list[Rule]:
    return [
        rule(f"{ours}/kernel", f"{theirs}.weight", kernel),
        rule(f"{ours}/bias", f"{theirs}.bias", SAME),
    ]


def _conv(ours: str, theirs: str) -> Rule:
    return rule(f"{ours}/kernel", f"{theirs}.weight", CONV)


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [
        rule(f"{ours}/scale", f"{theirs}.weight", SAME),
        rule(f"{ours}/bias", f"{theirs}.bias", SAME),
    ]


def _packed(ours: str, parts: Sequence[str], theirs: str) -> list[Rule]:
    """Projections that timm keeps as one layer, their outputs one after another."""
    kernel, bias = {1: (HEADS_OUT, HEADS_BIAS), 2: (KV_KERNEL, KV_BIAS)}.get(
        len(parts), (QKV_KERNEL, QKV_BIAS)
    )
    return [
        rule([f"{ours}/{part}/kernel" for part in parts], f"{theirs}.weight", kernel),
        rule([f"{ours}/{part}/bias" for part in parts], f"{theirs}.bias", bias),
    ]


def _encoder() -> list[Rule]:
    """All of a Transformer but the embedding of patches."""
    block, attention = "Transformer/encoderblock_{i}", "MultiHeadDotProductAttention_0"
    return [
        rule("cls", "cls_token", SAME),
        rule("Transformer/posembed_input/pos_embedding", "pos_embed", SAME),
        *_norm(f"{block}/LayerNorm_0", "blocks.{i}.norm1"),
        *_packed(
            f"{block}/{attention}", ("query", "key", "value"), "blocks.{i}.attn.qkv"
        ),
        rule(
            f"{block}/{attention}/out/kernel", "blocks.{i}.attn.proj.weight", HEADS_IN
        ),
        rule(f"{block}/{attention}/out/bias", "blocks.{i}.attn.proj.bias", SAME),
        *_norm(f"{block}/LayerNorm_1", "blocks.{i}.norm2"),
        *_dense(f"{block}/MlpBlock_0/Dense_0", "blocks.{i}.mlp.fc1"),
        *_dense(f"{block}/MlpBlock_0/Dense_1", "blocks.{i}.mlp.fc2"),
        *_norm("Transformer/encoder_norm", "norm"),
        *_map_head(),
        *_dense("head", "head"),
    ]


def _map_head() -> list[Rule]:
    ours, attention = "MAPHead_0", "MAPHead_0/MultiHeadDotProductAttention_0"
    return [
        rule(f"{ours}/probe", "attn_pool.latent", SAME),
        *_packed(attention, ("query",), "attn_pool.q"),
        *_packed(attention, ("key", "value"), "attn_pool.kv"),
        rule(f"{attention}/out/kernel", "attn_pool.proj.weight", HEADS_IN),
        rule(f"{attention}/out/bias", "attn_pool.proj.bias", SAME),
        *_norm(f"{ours}/LayerNorm_0", "attn_pool.norm"),
        *_dense(f"{ours}/MlpBlock_0/Dense_0", "attn_pool.mlp.fc1"),
        *_dense(f"{ours}/MlpBlock_0/Dense_1", "attn_pool.mlp.fc2"),
    ]


def _vit() -> list[Rule]:
    block = "Transformer/encoderblock_{i}"
    attention = f"{block}/MultiHeadDotProductAttention_0"
    return [
        *_dense("embedding", "patch_embed.proj", CONV),
        *_encoder(),
        rule("dist", "dist_token", SAME),
        rule("registers", "reg_token", SAME),
        rule(f"{block}/LayerScale_0/scale", "blocks.{i}.ls1.gamma", SAME),
        rule(f"{block}/LayerScale_1/scale", "blocks.{i}.ls2.gamma", SAME),
        *_norm(f"{attention}/query_ln", "blocks.{i}.attn.q_norm"),
        *_norm(f"{attention}/key_ln", "blocks.{i}.attn.k_norm"),
        *_norm("pool_norm", "fc_norm"),
        *_dense("head_dist", "head_dist"),
    ]


def _hybrid(stem: str) -> list[Rule]:
    ours = "block{s+1}/unit{j+1}"
    theirs = "patch_embed.backbone.stages.{s}.blocks.{j}"
    return [
        _conv("conv_root", f"patch_embed.backbone{stem}.conv"),
        *_norm("gn_root", f"patch_embed.backbone{stem}.norm"),
        *(_conv(f"{ours}/conv{n}", f"{theirs}.conv{n}") for n in (1, 2, 3)),
        *(
            each
            for n in (1, 2, 3)
            for each in _norm(f"{ours}/gn{n}", f"{theirs}.norm{n}")
        ),
        _conv(f"{ours}/conv_proj", f"{theirs}.downsample.conv"),
        *_norm(f"{ours}/gn_proj", f"{theirs}.downsample.norm"),
        *_dense("embedding", "patch_embed.proj", CONV),
        *_encoder(),
    ]


def _bit() -> list[Rule]:
    ours, theirs = "block{s+1}/unit{j+1:02}", "stages.{s}.blocks.{j}"
    return [
        _conv("root_block/conv_root", "stem.conv"),
        *(_conv(f"{ours}/conv{n}", f"{theirs}.conv{n}") for n in (1, 2, 3)),
        *(
            each
            for n in (1, 2, 3)
            for each in _norm(f"{ours}/gn{n}", f"{theirs}.norm{n}")
        ),
        _conv(f"{ours}/conv_proj", f"{theirs}.downsample.conv"),
        *_norm("norm-pre-head", "norm"),
        *_dense("head", "head.fc", _HEAD_CONV),
    ]


def _mixer() -> list[Rule]:
    ours, theirs = "MixerBlock_{i}", "blocks.{i}"
    return [
        *_dense("stem", "stem.proj", CONV),
        *_norm(f"{ours}/LayerNorm_0", f"{theirs}.norm1"),
        *_norm(f"{ours}/LayerNorm_1", f"{theirs}.norm2"),
        *_dense(f"{ours}/token_mixing/Dense_0", f"{theirs}.mlp_tokens.fc1"),
        *_dense(f"{ours}/token_mixing/Dense_1", f"{theirs}.mlp_tokens.fc2"),
        *_dense(f"{ours}/channel_mixing/Dense_0", f"{theirs}.mlp_channels.fc1"),
        *_dense(f"{ours}/channel_mixing/Dense_1", f"{theirs}.mlp_channels.fc2"),
        *_norm("pre_head_layer_norm", "norm"),
        *_dense("head", "head"),
    ]


def _swin(official: bool) -> list[Rule]:
    """Both versions; the authors merge patches at the end of a stage."""
    ours, theirs = "layers_{l}/blocks_{b}", "layers.{l}.blocks.{b}"
    merging = "layers.{l-1}.downsample" if official else "layers.{l}.downsample"
    return [
        *_dense("patch_embed/proj", "patch_embed.proj", CONV),
        *_norm("patch_embed/norm", "patch_embed.norm"),
        *_norm("layers_{l}/downsample/norm", f"{merging}.norm"),
        rule(
            "layers_{l}/downsample/reduction/kernel",
            f"{merging}.reduction.weight",
            DENSE,
        ),
        *_norm(f"{ours}/norm1", f"{theirs}.norm1"),
        rule(f"{ours}/attn/qkv/kernel", f"{theirs}.attn.qkv.weight", JOINT_QKV_KERNEL),
        rule(f"{ours}/attn/proj/kernel", f"{theirs}.attn.proj.weight", HEADS_IN),
        rule(f"{ours}/attn/proj/bias", f"{theirs}.attn.proj.bias", SAME),
        *_norm(f"{ours}/norm2", f"{theirs}.norm2"),
        *_dense(f"{ours}/mlp/fc1", f"{theirs}.mlp.fc1"),
        *_dense(f"{ours}/mlp/fc2", f"{theirs}.mlp.fc2"),
        *_norm("norm", "norm"),
        *_dense("head", "head" if official else "head.fc"),
    ]


def _swin_v1(official: bool) -> list[Rule]:
    ours, theirs = "layers_{l}/blocks_{b}/attn", "layers.{l}.blocks.{b}.attn"
    table = "relative_position_bias_table"
    return [
        *_swin(official),
        rule(f"{ours}/qkv/bias", f"{theirs}.qkv.bias", JOINT_QKV_BIAS),
        rule(f"{ours}/{table}", f"{theirs}.{table}", SAME),
    ]


def _swin_v2(official: bool) -> list[Rule]:
    ours, theirs = "layers_{l}/blocks_{b}/attn", "layers.{l}.blocks.{b}.attn"
    return [
        *_swin(official),
        rule(f"{ours}/q_bias", f"{theirs}.q_bias", HEADS_BIAS),
        rule(f"{ours}/v_bias", f"{theirs}.v_bias", HEADS_BIAS),
        rule(f"{ours}/logit_scale", f"{theirs}.logit_scale", SAME),
        *_dense(f"{ours}/cpb_mlp_0", f"{theirs}.cpb_mlp.0"),
        rule(f"{ours}/cpb_mlp_2/kernel", f"{theirs}.cpb_mlp.2.weight", DENSE),
    ]


# By family of `vit_jax.models.FAMILIES`.
TIMM: Mapping[str, Sequence[Rule]] = {
    "vit": _vit(),
    "hybrid": _hybrid(".stem"),
    # A hybrid with no stage of the ResNet: the stem is the whole of it.
    "hybrid-root": _hybrid(""),
    "bit": _bit(),
    "mixer": _mixer(),
    "swin": _swin_v1(official=False),
    "swin-v2": _swin_v2(official=False),
}
# Files of microsoft/Swin-Transformer. Its grid of absolute positions is flat.
OFFICIAL_SWIN: Mapping[str, Sequence[Rule]] = {
    "swin": [
        *_swin_v1(official=True),
        rule("absolute_pos_embed", "absolute_pos_embed", _FLAT_GRID),
    ],
    "swin-v2": _swin_v2(official=True),
}

# SPDX-License-Identifier: Apache-2.0
"""Our names beside those that transformers writes to disk, for Swin, BiT and hybrids.

See `tables.py`, which has ViT.
"""

import math

import numpy as np

from vit_jax.convert.huggingface.tables import PARTS, dense, norm, vit
from vit_jax.convert.rules import (
    CONV,
    DENSE,
    HEADS_BIAS,
    HEADS_IN,
    SAME,
    Arrays,
    Form,
    Rule,
    rule,
)

# Ours keeps query, key and value as one, (d, 3, m, e) and (3, m, e); theirs apart.
SPLIT_KERNEL = Form(
    lambda a, heads: tuple(
        a[0][:, i].reshape(a[0].shape[0], -1).T for i in range(a[0].shape[1])
    ),
    lambda a, heads: (
        np.stack([p.T.reshape(p.shape[1], heads, -1) for p in a], axis=1),
    ),
)
SPLIT_BIAS = Form(
    lambda a, heads: tuple(part.reshape(-1) for part in a[0]),
    lambda a, heads: (np.stack([part.reshape(heads, -1) for part in a]),),
)


def _to_square(arrays: Arrays, heads: int) -> Arrays:
    del heads
    rows, width = arrays[0].shape[1:]
    side = math.isqrt(rows)
    return (arrays[0].reshape(1, side, side, width),)


# A table of positions on its grid, (1, h, w, d), is (1, h * w, d).
GRID = Form(lambda a, heads: (a[0].reshape(1, -1, a[0].shape[-1]),), _to_square)


def _swin_of_both() -> list[Rule]:
    block, theirs = "layers_{l}/blocks_{i}", "encoder.layers.{l}.blocks.{i}"
    merging = "encoder.layers.{l-1}.downsample"
    weights = [f"{theirs}.attention.self.{part}.weight" for part in PARTS]
    return [
        *dense("patch_embed/proj", "embeddings.patch_embeddings.projection", CONV),
        *norm("patch_embed/norm", "embeddings.norm"),
        rule(f"{block}/attn/qkv/kernel", weights, SPLIT_KERNEL),
        *dense(f"{block}/attn/proj", f"{theirs}.attention.output.dense", HEADS_IN),
        *norm(f"{block}/norm1", f"{theirs}.layernorm_before"),
        *norm(f"{block}/norm2", f"{theirs}.layernorm_after"),
        *dense(f"{block}/mlp/fc1", f"{theirs}.intermediate.dense"),
        *dense(f"{block}/mlp/fc2", f"{theirs}.output.dense"),
        rule(
            "layers_{l}/downsample/reduction/kernel",
            f"{merging}.reduction.weight",
            DENSE,
        ),
        *norm("layers_{l}/downsample/norm", f"{merging}.norm"),
        *norm("norm", "layernorm"),
        *dense("head", "classifier"),
    ]


def swin() -> list[Rule]:
    """Rules of Swin."""
    ours = "layers_{l}/blocks_{i}/attn"
    theirs = "encoder.layers.{l}.blocks.{i}.attention.self"
    table = "relative_position_bias_table"
    biases = [f"{theirs}.{part}.bias" for part in PARTS]
    return [
        *_swin_of_both(),
        rule("absolute_pos_embed", "embeddings.position_embeddings", GRID),
        rule(f"{ours}/qkv/bias", biases, SPLIT_BIAS),
        rule(f"{ours}/{table}", f"{theirs}.{table}", SAME),
    ]


def swin_v2() -> list[Rule]:
    """Rules of Swin V2, whose key has no bias."""
    ours = "layers_{l}/blocks_{i}/attn"
    theirs = "encoder.layers.{l}.blocks.{i}.attention.self"
    positions = f"{theirs}.continuous_position_bias_mlp"
    return [
        *_swin_of_both(),
        rule(f"{ours}/q_bias", f"{theirs}.query.bias", HEADS_BIAS),
        rule(f"{ours}/v_bias", f"{theirs}.value.bias", HEADS_BIAS),
        rule(f"{ours}/logit_scale", f"{theirs}.logit_scale", SAME),
        *dense(f"{ours}/cpb_mlp_0", f"{positions}.0"),
        rule(f"{ours}/cpb_mlp_2/kernel", f"{positions}.2.weight", DENSE),
    ]


def _units(ours: str, theirs: str) -> list[Rule]:
    rules = [rule(f"{ours}/conv_proj/kernel", f"{theirs}.downsample.conv.weight", CONV)]
    for i in (1, 2, 3):
        rules.append(rule(f"{ours}/conv{i}/kernel", f"{theirs}.conv{i}.weight", CONV))
        rules += norm(f"{ours}/gn{i}", f"{theirs}.norm{i}")
    return rules


def bit() -> list[Rule]:
    """Rules of BiT."""
    return [
        rule("root_block/conv_root/kernel", "embedder.convolution.weight", CONV),
        *_units("block{s+1}/unit{j+1:02}", "encoder.stages.{s}.layers.{j}"),
        *norm("norm-pre-head", "norm"),
        *dense("head", "classifier.1"),
    ]


def hybrid() -> list[Rule]:
    """Rules of the hybrid that version 4 had."""
    bit = "embeddings.patch_embeddings.backbone.bit"
    unit = f"{bit}.encoder.stages.{{s}}.layers.{{j}}"
    return [
        rule("conv_root/kernel", f"{bit}.embedder.convolution.weight", CONV),
        *norm("gn_root", f"{bit}.embedder.norm"),
        *_units("block{s+1}/unit{j+1}", unit),
        *norm("block{s+1}/unit{j+1}/gn_proj", f"{unit}.downsample.norm"),
        *vit(),
    ]

# SPDX-License-Identifier: Apache-2.0
"""The number of heads, which packed projections do not tell."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from vit_jax.convert.rules import Heads
from vit_jax.errors import UserError
from vit_jax.models import catalog


def heads_of(table: str, params: Mapping[str, np.ndarray], told: Any) -> Heads:
    """Returns the heads of attention, which packed projections do not tell."""
    if table in ("mixer", "bit"):
        return None
    if table.startswith("swin"):
        return swin_heads(table, params)
    width = params["blocks.0.attn.proj.weight"].shape[0]
    if "blocks.0.attn.q_norm.weight" in params:
        return width // params["blocks.0.attn.q_norm.weight"].shape[0]
    if told is not None:
        return told
    depth = 0
    while f"blocks.{depth}.norm1.weight" in params:
        depth += 1
    own = (width, depth, params["blocks.0.mlp.fc2.weight"].shape[1])
    for size in catalog.VIT_SIZES.values():
        if own == (size["width"], size["depth"], size["mlp_dim"]):
            return size["num_heads"]
    if width % 64:
        raise UserError(
            f"the number of heads of a ViT of width {width} is not in its tensors; put "
            "timm's config.json with num_heads in model_args beside the file"
        )
    logging.info("heads of the ViT of width %d: %d, of width 64", width, width // 64)
    return width // 64


def swin_heads(table: str, params: Mapping[str, np.ndarray]) -> list[int]:
    """Returns the heads of each stage; `table` is "swin" or "swin-v2".

    Raises:
      UserError: The array that tells them is missing.
    """
    heads = []
    while f"layers.{len(heads)}.blocks.0.attn.qkv.weight" in params:
        attention = f"layers.{len(heads)}.blocks.0.attn"
        if table == "swin-v2":
            heads.append(params[f"{attention}.logit_scale"].shape[0])
        elif (bias := f"{attention}.relative_position_bias_table") in params:
            heads.append(params[bias].shape[1])
        else:
            raise UserError(
                f"the file has no {bias}, which tells the number of heads; it is "
                "incomplete"
            )
    return heads

# SPDX-License-Identifier: Apache-2.0
"""Learning rates that fall from the head to the first layer."""

import re
from collections.abc import Sequence
from typing import Any

from vit_jax import trees
from vit_jax.errors import UserError

# The number of a block, in the names of each family.
_BLOCKS = (
    re.compile(r"(?:.*/)?encoderblock_(\d+)/.*"),
    re.compile(r"MixerBlock_(\d+)/.*"),
    re.compile(r"layers_(\d+)/blocks_(\d+)/.*"),
    re.compile(r"block(\d+)/unit(\d+)/.*"),
)
_AFTER = re.compile(
    r"(head|head_dist|patch_head|pre_logits|pool_norm|MAPHead_0|norm|norm-pre-head|"
    r"pre_head_layer_norm|Transformer/encoder_norm)/.*"
)
_MERGING = re.compile(r"layers_(\d+)/downsample/.*")


def decay_rules(params: Any, decay: float) -> Sequence[tuple[str, float]]:
    """Returns `lr_rules` for a layer-wise decay of the learning rate.

    With L blocks, what comes after the last one has the factor 1, block i of 0...L-1
    has `decay ** (L - i)`, and what comes before the first has `decay ** (L + 1)`, as
    in BEiT (arXiv:2106.08254, appendix H) and its followers. The convolutions of a
    hybrid come before the first block of its transformer; patch merging of Swin counts
    to the block behind it.

    Args:
      params: The parameters or their shapes.
      decay: Factor from one block to the one below, in 0 < decay <= 1.

    Returns:
      One rule a parameter.

    Raises:
      UserError: A decay out of range, or blocks that are stacked in one array.
    """
    if not 0 < decay <= 1:
        raise UserError(f"layer_decay={decay} must lie in 0 < layer_decay <= 1")
    names = list(trees.flatten(params))
    if any("encoderblock/" in name for name in names):
        raise UserError(
            "layer_decay needs a learning rate for each block, but mesh.scan keeps all "
            "blocks in one array; set mesh.scan to False"
        )
    places = {name: place for name in names if (place := _place(name, names))}
    order = {place: i for i, place in enumerate(sorted(set(places.values())))}
    depth = len(order)

    def factor(name: str) -> float:
        if name in places:
            return decay ** (depth - order[places[name]])
        return 1.0 if _AFTER.fullmatch(name) else decay ** (depth + 1)

    return tuple((re.escape(name), factor(name)) for name in names)


def _place(name: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """Returns where a parameter's block stands among the blocks, or None."""
    hybrid = any(other.startswith("Transformer/") for other in names)
    for pattern in _BLOCKS[:1] if hybrid else _BLOCKS:
        if match := pattern.fullmatch(name):
            return tuple(int(number) for number in match.groups())
    if match := _MERGING.fullmatch(name):
        return (int(match[1]), 0)
    return None

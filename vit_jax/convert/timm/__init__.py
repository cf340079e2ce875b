# SPDX-License-Identifier: Apache-2.0
"""State dicts of timm: ViT, DeiT, hybrids, BiT, Mixer, Swin V1 and V2."""

from vit_jax.convert.timm.names import timm_call, timm_name
from vit_jax.convert.timm.reading import described, matches, read
from vit_jax.convert.timm.writing import metadata, notes, tensors

__all__ = [
    "described",
    "matches",
    "metadata",
    "notes",
    "read",
    "tensors",
    "timm_call",
    "timm_name",
]

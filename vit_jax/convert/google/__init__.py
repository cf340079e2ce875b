# SPDX-License-Identifier: Apache-2.0
"""Google's `.npz` files: ViT, hybrids, MLP-Mixer, BiT, and those of big_vision."""

from vit_jax.convert.google.files import matches, read, tensors

__all__ = ["matches", "read", "tensors"]

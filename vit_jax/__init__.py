# SPDX-License-Identifier: Apache-2.0
"""Vision Transformers in JAX: pretrain, fine-tune, evaluate and ship."""

__version__ = "0.1.0"

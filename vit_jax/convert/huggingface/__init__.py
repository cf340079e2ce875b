# SPDX-License-Identifier: Apache-2.0
"""Folders of Hugging Face's transformers: config.json and model.safetensors.

- `layouts.py`: each `model_type`; `tables.py` and `maps.py`: their names and ours.
- `config.py`: what config.json tells; `entries.py`: what is written into it.
- `target.py`: what transformers can hold of our models.
- `processor.py`: preprocessor_config.json and our op strings.
"""

from vit_jax.convert.huggingface.reading import matches, read
from vit_jax.convert.huggingface.writing import tensors, write

__all__ = ["matches", "read", "tensors", "write"]

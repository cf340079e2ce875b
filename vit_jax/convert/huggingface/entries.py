# SPDX-License-Identifier: Apache-2.0
"""The entries of config.json of transformers for a model of ours."""

from collections.abc import Sequence
from typing import Any

from flax import linen as nn

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert.huggingface.config import LOSSES, both
from vit_jax.convert.huggingface.layouts import LAYOUTS, Tensors
from vit_jax.convert.huggingface.target import image_size, mlp_ratio

_ACTIVATIONS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}


def config_of(
    checkpoint: Checkpoint, kind: str, model: Any, arrays: Tensors
) -> dict[str, Any]:
    """Returns the content of config.json.

    Args:
      checkpoint: What is written.
      kind: The `model_type`.
      model: The checkpoint's model.
      arrays: Its arrays, for their dtype.
    """
    layout = LAYOUTS[kind]
    architecture = (layout.heads if model.num_classes else layout.trunks)[0]
    entries = _sizes(kind, model, checkpoint.image_shape)
    if kind == "siglip":
        inner = entries | {"model_type": "siglip_vision_model"}
        entries = {"vision_config": inner}
    dtypes = {array.dtype.name for array in arrays.values()}
    config = {
        "architectures": [architecture],
        "model_type": kind,
        "dtype": dtypes.pop() if len(dtypes) == 1 else "float32",
        **entries,
    }
    if model.num_classes:
        config |= _labels(checkpoint.class_names, model.num_classes)
        config["problem_type"] = LOSSES[checkpoint.loss]
    return config


def _labels(names: Sequence[str] | None, classes: int) -> dict[str, Any]:
    """Returns the entries of a config.json that name the classes."""
    names = names or [f"LABEL_{i}" for i in range(classes)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _sizes(kind: str, model: nn.Module, image: Sequence[int]) -> dict[str, Any]:
    """Returns the entries of a config.json that say sizes and numerics.

    Args:
      kind: The `model_type`.
      model: A model that the layout can hold.
      image: Height, width and channels of its images.
    """
    fields: Any = model
    if kind == "bit":
        width = 64 * fields.width_factor
        stages = len(fields.stages)
        return {
            "num_channels": image[2],
            "embedding_size": width,
            "hidden_sizes": [width * 4 * 2**i for i in range(stages)],
            "depths": list(fields.stages),
            "layer_type": "preactivation",
            "global_padding": None,
            "embedding_dynamic_padding": False,
            "output_stride": max(32, 2 ** (stages + 1)),
        }
    size = image_size(fields, image)
    entries = {
        "num_channels": image[2],
        "image_size": _listed(size),
        "patch_size": _listed(fields.patch_size),
        "hidden_act": _ACTIVATIONS[fields.gelu],
        "layer_norm_eps": fields.norm_eps,
    }
    if kind in ("swin", "swinv2"):
        return entries | _swin_entries(kind, fields)
    entries |= {
        "hidden_size": fields.width,
        "num_hidden_layers": fields.depth,
        "num_attention_heads": fields.num_heads,
    }
    if kind.startswith("siglip"):
        use_head = {"vision_use_head": fields.pool == "map"}
        return entries | {"intermediate_size": fields.mlp_dim} | use_head
    entries["qkv_bias"] = True
    if kind.startswith("dinov2"):
        gated = fields.mlp == "swiglu"
        entries |= {"mlp_ratio": mlp_ratio(fields), "use_swiglu_ffn": gated}
        if kind == "dinov2_with_registers":
            entries["num_register_tokens"] = fields.num_registers
        return entries
    entries["intermediate_size"] = fields.mlp_dim
    if fields.representation_size:
        entries["pooler_output_size"] = fields.representation_size
    return entries


def _swin_entries(kind: str, fields: Any) -> dict[str, Any]:
    stages = len(fields.depths)
    entries = {
        "embed_dim": fields.width,
        "depths": list(fields.depths),
        "num_heads": list(fields.num_heads),
        "window_size": both(fields.window_size)[0],
        "mlp_ratio": float(fields.mlp_ratio),
        "qkv_bias": True,
        "use_absolute_embeddings": getattr(fields, "absolute_positions", False),
        "drop_path_rate": fields.drop_path_rate,
    }
    if kind == "swinv2":
        before = fields.pretrained_window_size or 0
        sizes = [before] * stages if isinstance(before, int) else list(before)
        entries["pretrained_window_sizes"] = sizes
    return entries


def _listed(size: Any) -> int | list[int]:
    rows, columns = both(size)
    return rows if rows == columns else [rows, columns]

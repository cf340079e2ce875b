# SPDX-License-Identifier: Apache-2.0
"""A tiny model, its files, and a config to train it: as little as shows the case."""

import pathlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax.checkpoints import native
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.models import build_model

SIDE = 8
MODEL = {
    **{"name": "ViT-Ti/4", "preset": "google-vit"},
    **{"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32},
}
OPS = f"decode|resize({SIDE})|value_range(-1, 1)"


def checkpoint(
    model: dict[str, Any] | None = None, side: int = SIDE, **description: Any
) -> Checkpoint:
    """Random weights of a model with three classes."""
    fields = {"num_classes": 3, **(MODEL if model is None else model)}
    image = jax.ShapeDtypeStruct((1, side, side, 3), "float32")
    init = build_model(**fields).init
    shapes = jax.eval_shape(init, jax.random.key(0), image)["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(np.float32), shapes
    )
    return Checkpoint(
        params, fields, (side, side, 3), **{"preprocessing": OPS, **description}
    )


def write(folder: pathlib.Path, made: Checkpoint | None = None) -> str:
    """Writes a file of ours and returns its path."""
    path = folder / "tiny.safetensors"
    native.write(checkpoint() if made is None else made, path)
    return str(path)


def config(dataset: str, **sections: Any) -> ConfigDict:
    """A config without evaluators; a dictionary changes a section, else a value."""
    fields: dict[str, Any] = {
        "seed": 0,
        "total_steps": 1,
        "log_steps": 1,
        "checkpoint_steps": None,
        "data": {"dataset": dataset, "split": "train", "batch_size": 8, "ops": OPS},
        "model": MODEL,
        "loss": {"name": "softmax"},
        "optimizer": {"name": "sgd", "lr": 0.1, "schedule": "constant"},
        "evaluators": {},
    }
    for name, value in sections.items():
        old = fields.get(name)
        merged = isinstance(value, dict) and isinstance(old, dict)
        fields[name] = {**old, **value} if merged else value
    return ConfigDict(fields)

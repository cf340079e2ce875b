# SPDX-License-Identifier: Apache-2.0
"""Weights saved by `torch.save`, `.pth` and `.bin`, read where torch is installed.

Such a file is a pickle, which can run code, so that torch alone reads it, by its
loader that refuses everything but tensors and plain containers.
"""

import importlib
import io
import pickle
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from absl import logging

from vit_jax.checkpoints.recognise import ZIP_DAMAGE
from vit_jax.errors import UserError

# Names under which training scripts keep the weights, averaged ones first, as
# everywhere in this package.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "module")


def read(file: io.BufferedIOBase, origin: str) -> dict[str, np.ndarray]:
    """Reads the tensors of a file, out of the dictionaries that wrap them.

    Args:
      file: The open file.
      origin: The file's name, for errors.

    Returns:
      The tensors by name, as NumPy arrays; bfloat16 stays bfloat16.

    Raises:
      UserError: torch is not installed, or refuses the file, or finds no tensors.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError as err:
        raise UserError(
            f"{origin} was written by torch, which is not installed; where it is, make "
            f"a file of it that needs no torch: {recipe(origin)}"
        ) from err
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as err:
        reason = " ".join(str(err).split())[:150]
        raise UserError(
            f"{origin} holds other Python objects than tensors, which can run code and "
            f"are not loaded ({reason}); if you trust it: "
            f"{recipe(origin, weights_only=False)}"
        ) from err
    except (*ZIP_DAMAGE, KeyError) as err:
        reason = " ".join(str(err).split())[:150]
        raise UserError(
            f"torch cannot read {origin} ({reason}); it is damaged, or a program and "
            "not weights: download it again, or save the model's state_dict()"
        ) from err
    return _arrays(_unwrap(loaded, torch.Tensor, origin), torch, origin)


def recipe(origin: str, *, weights_only: bool = True) -> str:
    """Returns the command that makes a safetensors file of a file of torch."""
    load = f"torch.load({origin!r}, map_location='cpu', weights_only={weights_only})"
    tensors = "{k: v.clone().contiguous() for k, v in d.items() if hasattr(v, 'shape')}"
    return (
        'python -c "import torch, safetensors.torch as s; '
        f"d = {load}; d = d.get('model', d.get('state_dict', d)); "
        f"s.save_file({tensors}, 'model.safetensors')\""
    )


def _unwrap(loaded: Any, tensor: type, origin: str) -> Mapping[str, Any]:
    """Returns the dictionary of tensors, which others may hold."""
    inside = []
    while isinstance(loaded, Mapping):
        key = next((k for k in WRAPPERS if isinstance(loaded.get(k), Mapping)), None)
        if key is None:
            break
        inside.append(key)
        loaded = loaded[key]
    if inside:
        logging.info("%s: took the tensors in %s", origin, "/".join(inside))
    entries = loaded if isinstance(loaded, Mapping) else {}
    found = {str(k): v for k, v in entries.items() if isinstance(v, tensor)}
    others = [str(key) for key in entries if key not in found]
    if not found:
        holds = ", ".join(others[:8]) if others else f"a {type(loaded).__name__}"
        raise UserError(
            f"{origin} has no tensors at its top or under {', '.join(WRAPPERS)}; it "
            f"holds {holds}: save the model's state_dict()"
        )
    if others:
        logging.info("%s: left out what is no tensor: %s", origin, ", ".join(others))
    return found


def _arrays(tensors: Mapping[str, Any], torch: Any, origin: str) -> dict[str, Any]:
    arrays = {}
    for name, tensor in tensors.items():
        plain = tensor.detach()
        try:
            if plain.dtype == torch.bfloat16:
                bits = plain.contiguous().view(torch.int16).numpy()
                arrays[name] = bits.view(ml_dtypes.bfloat16)
            else:
                arrays[name] = plain.numpy()
        except (TypeError, RuntimeError) as err:
            raise UserError(
                f"{name} in {origin} is a {tensor.layout} tensor of {tensor.dtype}, "
                "which NumPy does not have; save it as dense float32"
            ) from err
    return arrays

# SPDX-License-Identifier: Apache-2.0
"""Model zoo: `build_model(name, num_classes=...)`, `list_models()`, `FAMILIES`.

What every model promises is in README.md beside this file.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from flax import linen as nn

from vit_jax.errors import UserError, unknown
from vit_jax.models import catalog, presets
from vit_jax.models.axial import AxialViT
from vit_jax.models.bit import BiT
from vit_jax.models.hybrid import Hybrid
from vit_jax.models.layers.remat import kept_names
from vit_jax.models.mixer import Mixer
from vit_jax.models.swin import Swin
from vit_jax.models.swin_v2 import SwinV2
from vit_jax.models.vit import ViT

FAMILIES: Mapping[str, type[nn.Module]] = {
    "vit": ViT,
    "hybrid": Hybrid,
    "bit": BiT,
    "mixer": Mixer,
    "swin": Swin,
    "swin-v2": SwinV2,
    "axial-vit": AxialViT,
}


def build_model(
    name: str, *, num_classes: int, preset: str | None = None, **overrides: Any
) -> nn.Module:
    """Builds a model: the row of its name, then the preset, then the overrides.

    Args:
      name: Such as "ViT-B/16"; see `list_models`. A ViT, Axial-ViT or Mixer takes
        any patch size.
      num_classes: Number of logits; 0 gives features.
      preset: Key of `presets.PRESETS`; None takes that of the row.
      **overrides: Fields of the family, such as `depth=4`, `pool="mean"` or
        `dtype="bfloat16"`.

    Returns:
      A module for which `logits, out = model.apply({"params": params}, image,
      train=False)`.

    Raises:
      UserError: An unknown name, preset, field or value, or a preset of another family.
    """
    variant = catalog.find(name)
    numerics = presets.find(preset or variant.preset)
    if numerics.family != variant.family:
        raise UserError(
            f"preset {preset!r} is for the family {numerics.family!r}, but {name} is "
            f"of the family {variant.family!r}; leave preset out for the usual one"
        )
    family = FAMILIES[variant.family]
    _check_overrides(family, overrides)
    given = {key: _hashable(value) for key, value in overrides.items()}
    fields = {**variant.fields, **numerics.fields, **given}
    return family(num_classes=num_classes, **fields)


def list_models() -> list[str]:
    """Returns the names of the catalogue, in its order."""
    return [variant.name for variant in catalog.VARIANTS]


def _check_overrides(family: type[nn.Module], overrides: Mapping[str, Any]) -> None:
    hints = typing.get_type_hints(family)
    known = [f.name for f in dataclasses.fields(family) if f.name in hints]
    known = [name for name in known if name not in ("name", "parent", "num_classes")]
    for key, value in overrides.items():
        if key not in known:
            raise unknown("model field", key, known)
        choices = _choices(hints[key])
        if choices and value not in choices:
            raise unknown(f"{key}", str(value), [str(choice) for choice in choices])
        if key == "remat":
            kept_names(str(value))


def _choices(hint: Any) -> tuple[Any, ...]:
    """Returns the values that a field is limited to, or none if it is not."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    inner = typing.get_args(hint)
    if len(inner) == 2 and inner[1] is type(None):
        choices = _choices(inner[0])
        return (*choices, None) if choices else ()
    return ()


def _hashable(value: Any) -> Any:
    """Turns the lists of config files into tuples, which modules need as fields."""
    return tuple(value) if isinstance(value, list) else value

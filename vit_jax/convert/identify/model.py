# SPDX-License-Identifier: Apache-2.0
"""From parameters to the model that has them: `identify`.

Names and shapes decide, never the name of a file: a ViT-B/16 may hold patches of 32
pixels. What they do not tell is what the caller says in `fields`, else what preset and
row say:

- ViT and hybrid: `pool="none"`, which has the parameters of "mean"; a mean beside a
  class token (`class_token=True`), unless there is a norm after the pooling; without
  any array of positions, which of "sincos2d" (taken if nothing else is said),
  "rotary2d" and "none"; for grids that are not square, the size of the images.
- BiT: the size of the images. Swin: `window_kind` and `pad`.
- Swin V2: window and resolution, and `pretrained_window_size`.
- Every field that is no size, such as `norm_eps`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.convert.identify import sizes
from vit_jax.convert.identify.parameters import parameter_shapes
from vit_jax.convert.identify.shapes import Fields, Pair, Shapes
from vit_jax.errors import UserError
from vit_jax.models import FAMILIES, build_model, catalog, presets
from vit_jax.models.layers.patches import pair

# Fields that one number or a pair may say.
_PAIRS = ("patch_size", "window_size", "resolution")

# Families whose sizes go with any patch size: the first word of names, and the sizes.
_ANY_PATCH = {
    "vit": ("ViT", catalog.VIT_SIZES),
    "axial-vit": ("Axial-ViT", catalog.VIT_SIZES),
    "mixer": ("Mixer", catalog.MIXER_SIZES),
}


def identify(
    params: Mapping[str, Any],
    *,
    preset: str | None,
    image_shape: tuple[int, int, int] | None = None,
    fields: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], tuple[int, int, int]]:
    """Returns the model that has these parameters and no others.

    Args:
      params: Anything with a `shape` by slash-joined name, blocks not stacked.
      preset: Key of `presets.PRESETS`; None takes that of the row that is found.
      image_shape: (height, width, channels) of the images where they are known; else
        they follow from the positions, on a square grid, or from the row.
      fields: Fields of the model that are known from elsewhere, such as metadata.

    Returns:
      Keyword arguments of `build_model` (the nearest row of the catalogue and every
      field that differs from it), and the shape of the images.

    Raises:
      UserError: Parameters of no model, or of another one than `preset` or `fields`
        say.
    """
    shapes = {name: tuple(leaf.shape) for name, leaf in params.items()}
    family = sizes.family_of(shapes)
    if preset is not None:
        check_family(preset, family)
    told = {key: _plain(key, value) for key, value in (fields or {}).items()}
    size = None if image_shape is None else image_shape[:2]
    if size is None and told.get("resolution") is not None:
        size = pair(told["resolution"])

    defaults = _defaults(family)
    said = told if size is None else {"resolution": size, **told}
    found, _ = sizes.describe(family, shapes, {**defaults, **said}, size)
    row = _nearest(family, {**told, **found}, size, preset)
    numerics = presets.find(preset or row.preset)
    base = {**defaults, **row.fields, **numerics.fields}
    found, size_found = sizes.describe(family, shapes, {**base, **said}, size)
    for key, value in told.items():
        if key in found and _plain(key, found[key]) != value:
            raise UserError(
                f"the description says {key} {value!r}, but the arrays are those of "
                f"{found[key]!r}; they do not belong together"
            )

    given = {**told, **found}
    size = size_found or size
    if size is None:
        size = pair(given.get("resolution") or _usual_size(row, given))
    if size[0] != size[1] and "resolution" in base:
        given.setdefault("resolution", size)
    differing = {
        key: value
        for key, value in given.items()
        if key not in base or value != base[key]
    }
    model = {
        "name": row.name,
        "num_classes": shapes.get("head/bias", (0,))[0],
        "preset": preset or row.preset,
        **differing,
    }
    shape = (*size, sizes.channels(family, shapes))
    _check(shapes, model, shape)
    return model, shape


def check_family(preset: str, family: str) -> None:
    """Checks that a preset is for the family of the parameters.

    Raises:
      UserError: It is for another.
    """
    wanted = presets.find(preset).family
    if wanted != family:
        fitting = [name for name, p in presets.PRESETS.items() if p.family == family]
        raise UserError(
            f"preset {preset!r} is for the family {wanted!r}, but these parameters are "
            f"of the family {family!r}; use {' or '.join(fitting)}"
        )


def _defaults(family: str) -> Fields:
    return {
        field.name: field.default
        for field in dataclasses.fields(FAMILIES[family])
        if field.default is not dataclasses.MISSING
        and field.name not in ("name", "parent")
    }


def _nearest(
    family: str, given: Fields, size: Pair | None, preset: str | None
) -> catalog.Variant:
    """Returns the row with the fewest fields that differ, of these the first.

    Rows that differ in nothing that is given are told apart by the size of the images
    and the preset.
    """
    rows = [row for row in catalog.VARIANTS if row.family == family]
    patch = given.get("patch_size")
    if family in _ANY_PATCH and isinstance(patch, int):
        prefix, names = _ANY_PATCH[family]
        rows = [catalog.find(f"{prefix}-{name}/{patch}") for name in names]

    keys = {key for row in rows for key in row.fields} & set(given)

    def distance(row: catalog.Variant) -> tuple[int, int, int, float]:
        fields = {**_defaults(family), **row.fields}
        differing = sum(given[key] != fields.get(key) for key in keys)
        # A model that differs in everything is rather a small row than a large one.
        width = given.get("width", row.fields.get("width", 1))
        return (
            differing,
            int(size is not None and size != pair(row.resolution)),
            int(preset is not None and row.preset != preset),
            abs(row.fields.get("width", 1) / width - 1),
        )

    return min(rows, key=distance)


def _usual_size(row: catalog.Variant, given: Fields) -> int | Pair:
    """Returns the row's side of images, as near as patches divide it."""
    if row.family not in ("vit", "axial-vit"):
        return row.resolution
    patch = pair(given["patch_size"])
    rows, columns = (max(1, round(row.resolution / side)) * side for side in patch)
    return rows, columns


def _plain(key: str, value: Any) -> Any:
    """Returns a value as the module has it: tuples, and one number for a square."""
    if isinstance(value, list):
        value = tuple(value)
    if key in _PAIRS and isinstance(value, tuple) and value[0] == value[1]:
        return value[0]
    return value


def _check(shapes: Shapes, model: Fields, image_shape: tuple[int, int, int]) -> None:
    """Checks that the model has these parameters and no others.

    Raises:
      UserError: It has not, with the names that differ.
    """
    wanted = parameter_shapes(build_model(**model), image_shape)
    extra = [name for name in shapes if name not in wanted]
    missing = [name for name in wanted if name not in shapes]
    other = [
        f"{name} {shapes[name]} instead of {shape}"
        for name, shape in wanted.items()
        if shapes.get(name, shape) != shape
    ]
    if not (extra or missing or other):
        return
    parts = [
        f"{len(names)} {what}: {', '.join(names[:4])}{', ...' * (len(names) > 4)}"
        for what, names in (
            ("it has no place for", extra),
            ("that it needs are missing", missing),
            ("of another shape", other),
        )
        if names
    ]
    raise UserError(
        f"the nearest model is {model['name']}, but the arrays differ from its own, "
        f"{'; '.join(parts)}; this is another kind of model or an incomplete file"
    )

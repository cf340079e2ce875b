# SPDX-License-Identifier: Apache-2.0
"""Putting the weights of a checkpoint into a model that is not quite the same.

Another resolution, patch size, window or number of classes, with a report of each
array that did not go in as it was. What does not fit is an error, never left out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from vit_jax.checkpoints import class_rows
from vit_jax.checkpoints.class_rows import Grid
from vit_jax.checkpoints.fit import fit
from vit_jax.checkpoints.report import Entry, Report
from vit_jax.errors import UserError, nearest

Head = Literal["keep", "reset"]

_HEADS = ("head/", "head_dist/")
_PRE_LOGITS = "pre_logits/"
# Of the prediction of masked patches.
_PATCHES = ("patch_head/", "mask_embedding")


def adapt(
    loaded: Mapping[str, np.ndarray],
    target: Mapping[str, Any],
    *,
    position_resize: str,
    head: Head = "keep",
    reset: Sequence[str] = (),
    grids: tuple[Grid | None, Grid | None] = (None, None),
) -> tuple[dict[str, Any], Report]:
    """Makes parameters of a model from a checkpoint's.

    Args:
      loaded: Arrays of the checkpoint by slash-joined name.
      target: Arrays of the model, or their `jax.ShapeDtypeStruct`, by name.
      position_resize: How the checkpoint's origin resizes tables, one of
        `vit_jax.resample.Method`, or "none".
      head: What becomes of a head that does not fit, because there are other classes
        or `pre_logits` is dropped: "reset" starts it anew, "keep" refuses.
      reset: Patterns of whole names of arrays that start anew in any case.
      grids: Rows and columns of patches that the position tables of checkpoint and
        model are for; None is a square.

    Returns:
      By name, in the order and with the dtypes of `target`, the checkpoint's arrays
      or, for what starts anew, `target`'s own leaf; and what became of each.

    Raises:
      UserError: Arrays that are missing, left over or of a shape that nothing fits, or
        a pattern that is no regular expression.
    """
    named, unused = _matching(reset, {**target, **loaded})
    anew = dict.fromkeys(named, "named in reset")
    anew |= _heads_anew(loaded, target, anew, head)
    kept = {name: array for name, array in loaded.items() if name not in anew}
    dropped = {name: why for name, why in anew.items() if name not in target}
    if not _has_pre_logits(target):
        dropped |= {
            name: "the model has no such layer"
            for name in kept
            if name.startswith(_PRE_LOGITS)
        }
    if not any(name.startswith(_PATCHES) for name in target):
        dropped |= {
            name: "the model predicts no patches"
            for name in kept
            if name.startswith(_PATCHES)
        }
    kept = {name: array for name, array in kept.items() if name not in dropped}
    _check_names(kept, [name for name in target if name not in anew])
    _check_mixer(kept, target)
    kept, folded = class_rows.settle(kept, target, *grids)

    result: dict[str, Any] = {}
    entries: list[Entry] = []
    misfits: list[str] = []
    for name, leaf in target.items():
        if name in anew:
            result[name] = leaf
            entries.append(Entry(name, "re-initialised", anew[name]))
            continue
        array = kept[name]
        fitted = fit(name, array, tuple(leaf.shape), position_resize, grids)
        if fitted is None:
            misfits.append(f"{name} {array.shape}, model {tuple(leaf.shape)}")
            continue
        result[name] = fitted.array.astype(leaf.dtype, copy=False)
        cast = "" if array.dtype == leaf.dtype else f"{array.dtype} -> {leaf.dtype}"
        details = filter(None, (folded.get(name), fitted.detail, cast))
        alone = name in folded and fitted.action == "taken"
        action = "folded" if alone else fitted.action
        entries.append(Entry(name, action, "; ".join(details)))
    if misfits:
        raise UserError(
            f"{len(misfits)} arrays of the checkpoint do not fit the model: "
            f"{_some(misfits)}; choose the model and the fields that the checkpoint is "
            "of, or name what shall start anew in reset"
        )
    entries += [Entry(name, "dropped", why) for name, why in dropped.items()]
    return result, Report(tuple(entries), tuple(unused))


def _matching(
    patterns: Sequence[str], names: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Returns the names that patterns match, and the patterns that match none."""
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as err:
        raise UserError(
            f"reset holds a bad regular expression: {err.pattern!r} ({err.msg}); write "
            "it as Python's re module wants it, such as 'head/.*'"
        ) from err
    names = list(names)
    found = {p.pattern: [name for name in names if p.fullmatch(name)] for p in compiled}
    unused = [pattern for pattern, matched in found.items() if not matched]
    return [name for matched in found.values() for name in matched], unused


def _heads_anew(
    loaded: Mapping[str, np.ndarray],
    target: Mapping[str, Any],
    anew: Mapping[str, str],
    head: Head,
) -> dict[str, str]:
    """Returns why heads start anew, by name; kernel and bias do so together."""
    found: dict[str, str] = {}
    for prefix in _HEADS:
        old, new = (
            {n: tuple(a.shape) for n, a in side.items() if n.startswith(prefix)}
            for side in (loaded, target)
        )
        names = [name for name in {**new, **old} if name not in anew]
        if names and (why := _why_anew(prefix, loaded, target, old, new)):
            if head == "keep":
                raise UserError(
                    f"{prefix[:-1]} does not fit: {why}; allow a new head (reset) or "
                    "give the model the classes of the checkpoint"
                )
            found |= dict.fromkeys(names, why)
    return found


def _why_anew(
    prefix: str,
    loaded: Mapping[str, Any],
    target: Mapping[str, Any],
    old: Mapping[str, tuple[int, ...]],
    new: Mapping[str, tuple[int, ...]],
) -> str:
    if old != new:
        return f"{_classes(prefix, old)} -> {_classes(prefix, new)}"
    before, after = _has_pre_logits(loaded), _has_pre_logits(target)
    if before and not after:
        return "it was trained on pre_logits, which the model does not have"
    return ""


def _has_pre_logits(names: Iterable[str]) -> bool:
    return any(name.startswith(_PRE_LOGITS) for name in names)


def _classes(prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    kernel = shapes.get(f"{prefix}kernel")
    if kernel is None:
        return "no head"
    return f"{kernel[-1]} classes on {kernel[0]} features"


def _check_names(loaded: Iterable[str], wanted: Iterable[str]) -> None:
    here, there = dict.fromkeys(loaded), dict.fromkeys(wanted)
    missing = [name for name in there if name not in here]
    extra = [name for name in here if name not in there]
    if not missing and not extra:
        return
    parts = []
    for names, others, what in (
        (missing, extra, "lacks"),
        (extra, missing, "has, and the model has not,"),
    ):
        if names:
            near = {name: nearest(name, others, 1) for name in names[:5]}
            shown = [f"{n} (near {c[0]})" if c else n for n, c in near.items()]
            parts.append(f"it {what} {_some(shown, len(names))}")
    raise UserError(
        f"the checkpoint is of another model: {' and '.join(parts)}; choose the model "
        "and the fields that it is of, or name what shall start anew in reset"
    )


def _check_mixer(loaded: Mapping[str, np.ndarray], target: Mapping[str, Any]) -> None:
    name = "MixerBlock_0/token_mixing/Dense_0/kernel"
    if name in loaded and name in target:
        old, new = loaded[name].shape[0], target[name].shape[0]
        if old != new:
            raise UserError(
                f"this Mixer mixes {old} patches and cannot take {new}: its weights "
                "are made for one number; keep the size of images and patches"
            )


def _some(items: Sequence[str], count: int | None = None) -> str:
    count = len(items) if count is None else count
    more = f" and {count - 5} more" if count > 5 else ""
    return ", ".join(items[:5]) + more

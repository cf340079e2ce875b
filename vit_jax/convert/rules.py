# SPDX-License-Identifier: Apache-2.0
"""Renaming of parameters as tables of rules that work in both directions.

A rule pairs names of ours with names of theirs and says how the arrays change. Names
are templates: `{i}` stands for a number, the same on both sides, and `{i-1}` for that
number less one, so `("layers_{i}/downsample/...", "layers.{i-1}.downsample...")`;
`{i+1:02}` is written with two digits. A table is a list of rules. Every array must be
explained by exactly one rule; what is left over is an error, never dropped.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vit_jax.errors import UserError, nearest

Arrays = tuple[np.ndarray, ...]
# Heads of attention: one number, or one for each stage of Swin.
Heads = int | Sequence[int] | None


@dataclasses.dataclass(frozen=True)
class Form:
    """How arrays change between us and them; each direction undoes the other.

    Attributes:
      to_theirs: Our arrays in the order of the rule, and the heads, to theirs.
      to_ours: The inverse.
    """

    to_theirs: Callable[[Arrays, int], Arrays]
    to_ours: Callable[[Arrays, int], Arrays]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One line of a table.

    Attributes:
      ours: Templates of our names, slash-joined.
      theirs: Templates of their names.
      form: How the arrays change.
      stage: The placeholder that picks the number of heads where each stage has its
        own.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    form: Form
    stage: str = "l"


def rule(ours: str | Sequence[str], theirs: str | Sequence[str], form: Form) -> Rule:
    """Makes a rule; one name may be given without its sequence."""
    return Rule(_sequence(ours), _sequence(theirs), form)


def to_ours(
    rules: Sequence[Rule], tensors: Mapping[str, np.ndarray], heads: Heads, what: str
) -> dict[str, np.ndarray]:
    """Renames and reshapes their arrays into ours.

    Args:
      rules: The table.
      tensors: Their arrays by name.
      heads: Heads of attention, or of each stage's; None where there are none.
      what: What the arrays are, for the error text, such as "timm ViT".

    Returns:
      Our arrays by slash-joined name.

    Raises:
      UserError: Arrays that no rule explains, or a rule with some of its arrays only.
    """
    return _apply(rules, tensors, heads, what, forward=False)


def to_theirs(
    rules: Sequence[Rule], params: Mapping[str, np.ndarray], heads: Heads, what: str
) -> dict[str, np.ndarray]:
    """Renames and reshapes our arrays into theirs, the inverse of `to_ours`.

    Raises:
      UserError: Arrays that no rule explains, or a rule with some of its arrays only.
    """
    return _apply(rules, params, heads, what, forward=True)


def _apply(
    rules: Sequence[Rule],
    arrays: Mapping[str, np.ndarray],
    heads: Heads,
    what: str,
    forward: bool,
) -> dict[str, np.ndarray]:
    result: dict[str, np.ndarray] = {}
    explained: set[str] = set()
    for each in rules:
        sources = each.ours if forward else each.theirs
        targets = each.theirs if forward else each.ours
        change = each.form.to_theirs if forward else each.form.to_ours
        for numbers in _matches(sources[0], arrays):
            names = [fill(template, numbers) for template in sources]
            missing = [name for name in names if name not in arrays]
            if missing:
                raise UserError(
                    f"{what}: {names[0]} is there, but not {', '.join(missing)}, which "
                    "belong to it; the file is incomplete"
                )
            explained.update(names)
            group = tuple(arrays[name] for name in names)
            count = _heads_of(each, heads, numbers)
            values = change(group, count)
            for template, value in zip(targets, values, strict=True):
                # safetensors and others refuse arrays that are views.
                result[fill(template, numbers)] = np.asarray(value, order="C")
    _refuse_unexplained(rules, arrays, explained, what, forward)
    return result


def fill(template: str, numbers: Mapping[str, int]) -> str:
    """Puts numbers into a template: `fill("a{i-1}", {"i": 2})` is "a1"."""
    # No nested function: with checked annotations one would be checked at every call.
    return _PLACE.sub(
        lambda match: f"{numbers[match[1]] + int(match[2] or 0):{match[3] or ''}}",
        template,
    )


_PLACE = re.compile(r"\{(\w)([+-]\d)?(?::(02))?\}")


def _matches(template: str, names: Mapping[str, object]) -> list[dict[str, int]]:
    """Returns the numbers of each name that a template fits, in the names' order."""
    places = [(match[1], int(match[2] or 0)) for match in _PLACE.finditer(template)]
    literals = _PLACE.split(template)[::4]
    pattern = re.compile(r"(\d+)".join(map(re.escape, literals)))
    found = []
    for name in names:
        if match := pattern.fullmatch(name):
            values = map(int, match.groups())
            found.append({k: v - d for (k, d), v in zip(places, values, strict=True)})
    return found


def _heads_of(each: Rule, heads: Heads, numbers: Mapping[str, int]) -> int:
    if heads is None:
        return 1
    return heads if isinstance(heads, int) else heads[numbers.get(each.stage, 0)]


def _refuse_unexplained(
    rules: Sequence[Rule],
    arrays: Mapping[str, np.ndarray],
    explained: set[str],
    what: str,
    forward: bool,
) -> None:
    left = [name for name in arrays if name not in explained]
    if not left:
        return
    known = {t for each in rules for t in (each.ours if forward else each.theirs)}
    lines = []
    for name in left[:5]:
        # Numbers of the name, put for the placeholders, make the two comparable.
        close = nearest(re.sub(r"\d+", "{i}", name), sorted(known))
        hint = f" (near {close[0]})" if close else ""
        lines.append(f"{name} {tuple(arrays[name].shape)}{hint}")
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    raise UserError(
        f"{what}: {len(left)} arrays are not explained: {'; '.join(lines)}{more}; this "
        "is another kind of model, or has parts that cannot be converted"
    )


def _sequence(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _reshaped(array: np.ndarray, *shape: int) -> np.ndarray:
    return array.reshape(shape)


def _pack(parts: Sequence[Form], theirs_axis: int = 0) -> Form:
    """Joins arrays that they keep as one, part after part along an axis."""

    def join(arrays: Arrays, heads: int) -> Arrays:
        changed = [
            form.to_theirs((array,), heads)[0]
            for form, array in zip(parts, arrays, strict=True)
        ]
        return (np.concatenate(changed, axis=theirs_axis),)

    def part(arrays: Arrays, heads: int) -> Arrays:
        pieces = np.split(arrays[0], len(parts), axis=theirs_axis)
        return tuple(
            form.to_ours((piece,), heads)[0]
            for form, piece in zip(parts, pieces, strict=True)
        )

    return Form(join, part)


# The same array.
SAME = Form(lambda a, heads: a, lambda a, heads: a)
# A dense kernel (in, out) is their weight (out, in).
DENSE = Form(lambda a, heads: (a[0].T,), lambda a, heads: (a[0].T,))
# A convolution's (h, w, in, out) is their (out, in, h, w).
CONV = Form(
    lambda a, heads: (a[0].transpose(3, 2, 0, 1),),
    lambda a, heads: (a[0].transpose(2, 3, 1, 0),),
)
# Kernel of query, key or value: (d, m, e) is (m * e, d).
HEADS_OUT = Form(
    lambda a, heads: (a[0].reshape(a[0].shape[0], -1).T,),
    lambda a, heads: (_reshaped(a[0].T, a[0].shape[1], heads, -1),),
)
# Bias of query, key or value: (m, e) is (m * e,).
HEADS_BIAS = Form(
    lambda a, heads: (a[0].reshape(-1),),
    lambda a, heads: (_reshaped(a[0], heads, -1),),
)
# Kernel of the projection after attention: (m, e, d) is (d, m * e).
HEADS_IN = Form(
    lambda a, heads: (a[0].reshape(-1, a[0].shape[-1]).T,),
    lambda a, heads: (_reshaped(a[0].T, heads, -1, a[0].shape[0]),),
)
# Query, key and value (or key and value) as one array, one after another in its rows.
QKV_KERNEL = _pack([HEADS_OUT] * 3)
QKV_BIAS = _pack([HEADS_BIAS] * 3)
KV_KERNEL = _pack([HEADS_OUT] * 2)
KV_BIAS = _pack([HEADS_BIAS] * 2)
# The same where we keep them as one, too (Swin): (d, 3, m, e) and (3, m, e).
JOINT_QKV_KERNEL = Form(
    lambda a, heads: (a[0].reshape(a[0].shape[0], -1).T,),
    lambda a, heads: (_reshaped(a[0].T, a[0].shape[1], 3, heads, -1),),
)
JOINT_QKV_BIAS = Form(
    lambda a, heads: (a[0].reshape(-1),),
    lambda a, heads: (_reshaped(a[0], 3, heads, -1),),
)

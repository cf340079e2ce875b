# SPDX-License-Identifier: Apache-2.0
"""Where each array of a state lies: rules of the user's own, or the usual ones.

The usual ones: `tensor` splits heads and hidden layers, as in Megatron-LM
(arXiv:1909.08053, section 3), so that a block needs one sum over devices after the
attention and one after the MLP; `fsdp` splits the largest axis of each kernel and
position table that it divides (arXiv:2004.13336, arXiv:1910.02054). What an axis of
the mesh does not divide is whole along it. Biases and the scales of norms, a thousandth
of a model, are not split by `fsdp`. Optimizer moments and averages end in the names of
their parameters, and so lie like them.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.sharding.mesh import AXES

Axes = str | tuple[str, ...] | None
Rules = Sequence[tuple[str, Sequence[str | Sequence[str] | None]]]
REPLICATED: Rules = ((".*", ()),)

_ATTENTION = r"(.*/)?MultiHeadDotProductAttention_\d+/"
_MLP = r"(.*/)?(MlpBlock_\d+|token_mixing|channel_mixing)/"

# Axes of the mesh for the last axes of an array: a scanned model has one more in front.
TENSOR_RULES: Rules = (
    # ViT, hybrids, and the pooling head of both: (d, m, e), (m, e), (m, e, d).
    (_ATTENTION + "(query|key|value)/kernel", (None, "tensor", None)),
    (_ATTENTION + "(query|key|value)/bias", ("tensor", None)),
    (_ATTENTION + "out/kernel", ("tensor", None, None)),
    (_MLP + "Dense_0/kernel", (None, "tensor")),
    (_MLP + "Dense_0/bias", ("tensor",)),
    (_MLP + "Dense_1/kernel", ("tensor", None)),
    # Swin: (d, 3, m, e), (3, m, e), (m, e), (m, e, d), and a table of each head.
    ("(.*/)?attn/qkv/kernel", (None, None, "tensor", None)),
    ("(.*/)?attn/qkv/bias", (None, "tensor", None)),
    ("(.*/)?attn/[qv]_bias", ("tensor", None)),
    ("(.*/)?attn/proj/kernel", ("tensor", None, None)),
    ("(.*/)?attn/(relative_position_bias_table|cpb_mlp_2/kernel)", (None, "tensor")),
    ("(.*/)?attn/logit_scale", ("tensor", None, None)),
    ("(.*/)?mlp/fc1/kernel", (None, "tensor")),
    ("(.*/)?mlp/fc1/bias", ("tensor",)),
    ("(.*/)?mlp/fc2/kernel", ("tensor", None)),
    # ResNets: the channels between the 3x3 and the last 1x1 convolution of a unit.
    (r"(.*/)?unit\d+/conv2/kernel", (None, None, None, "tensor")),
    (r"(.*/)?unit\d+/gn3/(scale|bias)", ("tensor",)),
    (r"(.*/)?unit\d+/conv3/kernel", (None, None, "tensor", None)),
    (".*", ()),
)


def tree_shardings(
    tree: Any, mesh: Mesh, rules: Rules | None = None, *, over_data: bool = False
) -> Any:
    """Gives each leaf of a tree its sharding.

    Args:
      tree: A state or any part of it; moments and averages end in the same names as
        the parameters, so that one rule `.*NAME` serves them all.
      mesh: The device mesh.
      rules: Pairs of a regular expression for the whole slash-joined name and the
        mesh axis, several of them or None for each array axis. None takes the usual
        rules, see the top of this file.
      over_data: Whether `data` splits what `fsdp` would split, too.

    Raises:
      UserError: Of the user's own rules: an axis that the mesh lacks or that does not
        divide the array's, more axes than an array has, or a leaf that no rule matches.
        Of the usual ones: a `tensor` axis that divides nothing.
    """
    own = rules is not None
    if own:
        _check_axes(rules)
    wrapped = [(p, PartitionSpec(*map(_hashable, s))) for p, s in rules or TENSOR_RULES]
    matched = trees.match_rules(tree, wrapped, "sharding")
    place = _checked if own else _fitted
    spread = ("data",) if over_data else ()
    if not own:
        spread = ("fsdp", *spread)

    def sharding(path: Any, leaf: Any, spec: PartitionSpec) -> NamedSharding:
        name = trees.path_name(path)
        axes = place(name, leaf.shape, tuple(spec), mesh)
        axes = _spread(name, leaf.shape, axes, spread, mesh)
        while len(axes) > (len(spec) if own else 0) and axes[-1] is None:
            axes.pop()
        return NamedSharding(mesh, PartitionSpec(*axes))

    placed = jax.tree_util.tree_map_with_path(sharding, tree, matched)
    if not own and mesh.shape["tensor"] > 1:
        _check_tensor(placed, mesh)
    return placed


def _check_axes(rules: Rules) -> None:
    for pattern, spec in rules:
        for entry in spec:
            for axis in (entry,) if isinstance(entry, str) else entry or ():
                if axis not in AXES:
                    raise UserError(
                        f"config.mesh.rules: {pattern!r} names the axis {axis!r}; "
                        f"allowed are {', '.join(AXES)} and None"
                    )


def _check_tensor(placed: Any, mesh: Mesh) -> None:
    if not any("tensor" in leaf.spec for leaf in jax.tree.leaves(placed)):
        raise UserError(
            f"config.mesh tensor={mesh.shape['tensor']} divides neither the heads nor "
            "the hidden layers of the model; use a divisor of the number of heads"
        )


def _hashable(entry: str | Sequence[str] | None) -> Axes:
    return entry if isinstance(entry, str) or entry is None else tuple(entry)


def _one_or_several(names: tuple[str, ...]) -> Axes:
    return names[0] if len(names) == 1 else names


def _parts(axes: Axes, mesh: Mesh) -> int:
    names = (axes,) if isinstance(axes, str) else axes or ()
    return math.prod(mesh.shape[name] for name in names)


def _checked(
    name: str, shape: tuple[int, ...], spec: tuple[Axes, ...], mesh: Mesh
) -> list[Axes]:
    """Returns the axes of a rule of the user's own for all axes of an array."""
    if len(spec) > len(shape):
        raise UserError(
            f"config.mesh.rules: {spec} is for arrays of {len(spec)} axes, but {name} "
            f"has the shape {shape}; put a rule for it in front"
        )
    for size, axes in zip(shape, spec, strict=False):
        if size % _parts(axes, mesh):
            raise UserError(
                f"config.mesh.rules: {axes!r} has {_parts(axes, mesh)} devices, which "
                f"do not divide an axis of {size} of {name} {shape}; put a rule for it "
                "in front, or choose a mesh that divides it"
            )
    return [*spec, *[None] * (len(shape) - len(spec))]


def _fitted(
    name: str, shape: tuple[int, ...], spec: tuple[Axes, ...], mesh: Mesh
) -> list[Axes]:
    """Returns the axes of a usual rule for an array, as far as they divide it."""
    del name
    free = len(shape) - len(spec)
    if free < 0:  # such as the factored moments of Adafactor
        return [None] * len(shape)
    axes = [*[None] * free, *spec]
    return [
        a
        if a is not None and _parts(a, mesh) > 1 and size % _parts(a, mesh) == 0
        else None
        for size, a in zip(shape, axes, strict=True)
    ]


def _spread(
    name: str,
    shape: tuple[int, ...],
    axes: list[Axes],
    over: tuple[str, ...],
    mesh: Mesh,
) -> list[Axes]:
    """Splits the largest axis that is whole; over fewer mesh axes if need be."""
    # The layers of a scanned model are no axis of an array: the loop takes them apart.
    first = 1 if "encoderblock/" in name else 0
    over = tuple(axis for axis in over if mesh.shape[axis] > 1)
    if len(shape) - first < 2 or name.endswith(("bias", "scale")):
        return axes
    while len(over) > 0:
        parts = _parts(over, mesh)
        free = [
            i
            for i in range(first, len(shape))
            if axes[i] is None and shape[i] % parts == 0
        ]
        if free:
            largest = max(free, key=lambda i: _preference(shape, i, parts))
            axes[largest] = _one_or_several(over)
            return axes
        over = over[:-1]
    return axes


def _preference(shape: tuple[int, ...], axis: int, parts: int) -> tuple[bool, int]:
    """Returns what makes an axis good to split: whole tiles, and then its size.

    A TPU's memory holds tiles of 8 x 128 of the last two axes, and fills up parts.
    """
    tile = {len(shape) - 1: 128, len(shape) - 2: 8}.get(axis, 1)
    return shape[axis] // parts % tile == 0, shape[axis]

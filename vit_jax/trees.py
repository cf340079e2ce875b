# SPDX-License-Identifier: Apache-2.0
"""Parameter trees seen as flat dictionaries with slash-joined names.

A name such as `Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel` is what rules,
checkpoints, converters and error messages speak of.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from vit_jax.errors import UserError

T = TypeVar("T")


def path_name(path: Sequence[Any]) -> str:
    """Returns the slash-joined name of a key path of `jax.tree_util`."""
    return jax.tree_util.keystr(tuple(path), simple=True, separator="/")


def flatten(tree: Any) -> dict[str, Any]:
    """Returns the leaves of any pytree by slash-joined name, in tree order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {path_name(path): leaf for path, leaf in leaves}


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested dictionary whose `flatten` is `flat`.

    Raises:
      UserError: A name that is a leaf and, for another leaf, a folder.
    """
    folders = {
        name[:end] for name in flat for end, mark in enumerate(name) if mark == "/"
    }
    for name in flat:
        if name in folders:
            raise UserError(
                f"{name!r} is both an array and a folder of arrays; rename one of them"
            )
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def map_with_name(function: Callable[[str, Any], T], tree: Any) -> Any:
    """Applies `function(name, leaf)` to each leaf and keeps the structure."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: function(path_name(path), leaf), tree
    )


def match_rules(tree: Any, rules: Sequence[tuple[str, T]], what: str) -> Any:
    """Gives each leaf the value of the first rule whose pattern matches its name.

    Args:
      tree: Any pytree of named leaves.
      rules: Pairs of a regular expression, which must match the whole slash-joined
        name, and a value.
      what: What the rules decide, for the error text, such as "weight decay".

    Returns:
      A tree of the same structure that holds the values.

    Raises:
      UserError: A leaf that no rule matches, or a pattern that is no regular
        expression.
    """
    try:
        compiled = [(re.compile(pattern), value) for pattern, value in rules]
    except re.error as err:
        raise UserError(
            f"the rules for {what} hold a bad regular expression: {err.pattern!r} "
            f"({err.msg}); write it as Python's re module wants it"
        ) from err
    orphans: list[str] = []

    def first_match(name: str, leaf: Any) -> T | None:
        del leaf
        for pattern, value in compiled:
            if pattern.fullmatch(name):
                return value
        orphans.append(name)
        return None

    matched = map_with_name(first_match, tree)
    if orphans:
        shown = ", ".join(orphans[:5]) + (", ..." if len(orphans) > 5 else "")
        raise UserError(
            f"{len(orphans)} parameters match no rule for {what}: {shown}; "
            "add a last rule ('.*', value) for the rest"
        )
    return matched

# SPDX-License-Identifier: Apache-2.0
"""What the backward pass keeps of a block; it computes the rest again.

`remat` is "none" (everything is kept), "dots" (the results of dense layers), "full"
(the block's input alone), or "names:" with some of `NAMES`, such as
"names:attention,mlp": the input and the arrays of these names. For a ViT of width d
whose MLP has a hidden width of 4 d, a token's input takes d numbers of a block, `qkv`
3 d, `attention` d and `mlp` 4 d.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from vit_jax.errors import UserError, unknown

Remat = str

NAMES = ("qkv", "attention", "mlp")
"""Arrays of a block that have a name: queries, keys and values; what attention adds;
the hidden layer of an MLP before its activation."""

_PREFIX = "names:"


def rematerialize(
    step: Callable[..., Any],
    keep: Remat,
    *,
    names: Sequence[str] = NAMES,
    looped: bool = False,
) -> Callable[..., Any]:
    """Returns a step that keeps less for its backward pass.

    Args:
      step: A function whose first argument is a module; the others are arrays or None.
      keep: See the top of this file.
      names: Those that the step has.
      looped: Whether the step is the body of a loop, where the compiler cannot undo
        the change by finding the same computation twice.

    Raises:
      UserError: See `kept_names`.
    """
    kept = kept_names(keep, names)
    if keep == "none":
        return step
    policies = jax.checkpoint_policies
    policy = policies.nothing_saveable
    if keep == "dots":
        policy = policies.dots_with_no_batch_dims_saveable
    elif kept:
        policy = policies.save_only_these_names(*kept)
    return nn.remat(step, policy=policy, prevent_cse=not looped)


def kept_names(keep: Remat, names: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Returns the names in a value of `remat`; none where it is a single word.

    Args:
      keep: See the top of this file.
      names: Those that are allowed.

    Raises:
      UserError: It is none of the forms, or has an unknown name.
    """
    if keep in ("none", "dots", "full"):
        return ()
    if not keep.startswith(_PREFIX):
        known = ("none", "dots", "full", _PREFIX + ",".join(names))
        raise unknown("remat", keep, known)
    kept = tuple(name.strip() for name in keep.removeprefix(_PREFIX).split(","))
    if kept == ("",):
        raise UserError(
            f"remat={keep!r} names nothing; write {_PREFIX}{','.join(names)} or some "
            "of these, or full to keep none of them"
        )
    for name in kept:
        if name not in names:
            raise unknown(f"name in remat={keep!r}:", name, names)
    return kept


def named(x: Array, name: str) -> Array:
    """Gives an array one of `NAMES`; its values stay."""
    return checkpoint_name(x, name)

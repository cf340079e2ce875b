# SPDX-License-Identifier: Apache-2.0
"""What the backward pass keeps of a block; it computes the rest again."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from flax import linen as nn

# Everything, the results of its dense layers, or its input alone.
Remat = Literal["none", "dots", "full"]


def rematerialize(
    step: Callable[..., Any], keep: Remat, *, looped: bool = False
) -> Callable[..., Any]:
    """Returns a step that keeps less for its backward pass.

    Args:
      step: A function whose first argument is a module; the others are arrays or None.
      keep: See `Remat`.
      looped: Whether the step is the body of a loop, where the compiler cannot undo
        the change by finding the same computation twice.
    """
    if keep == "none":
        return step
    policy = jax.checkpoint_policies.nothing_saveable
    if keep == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return nn.remat(step, policy=policy, prevent_cse=not looped)

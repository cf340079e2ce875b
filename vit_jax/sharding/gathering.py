# SPDX-License-Identifier: Apache-2.0
"""Parameters that lie in parts and are put together for each step.

Under plain data parallelism every device holds, reads and writes all parameters and
moments though each could do with a part (arXiv:2004.13336). Here each device updates
its part, casts it to the dtype of the computation while it is small, and all devices
gather the result: half the bytes of gathering float32, and those of the update are
divided by the number of devices.
"""

import dataclasses
import re
from typing import Any

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from vit_jax import trees
from vit_jax.sharding.rules import Rules, tree_shardings

# Kernels that the layers themselves cast before they use them. Norms, heads, position
# tables and the standardised kernels of ResNets are used in float32.
_CAST = re.compile(
    r"(.*/)?(query|key|value|out|Dense_\d+|qkv|fc1|fc2|proj|embedding|stem|pre_logits"
    r"|reduction)/kernel"
)


@dataclasses.dataclass(frozen=True)
class Gathering:
    """How parameters get from where they lie to where they are used, and back.

    Attributes:
      parts: The shardings at rest.
      whole: The shardings in the step.
      dtypes: Of the parameters in the step.
    """

    parts: Any
    whole: Any
    dtypes: Any

    def gather(self, params: Any) -> Any:
        """Returns the parameters that a step computes with."""
        cast = jax.tree.map(lambda p, dtype: p.astype(dtype), params, self.dtypes)
        cast = jax.lax.with_sharding_constraint(cast, self.parts)
        return jax.lax.with_sharding_constraint(cast, self.whole)

    def scatter(self, grads: Any, params: Any) -> Any:
        """Returns the gradients in the parts and dtypes of the parameters."""
        parts = jax.lax.with_sharding_constraint(grads, self.parts)
        return jax.tree.map(lambda g, p: g.astype(p.dtype), parts, params)


def make_gathering(
    params: Any,
    mesh: Mesh,
    rules: Rules | None,
    dtype: DTypeLike,
    *,
    over_data: bool,
) -> Gathering | None:
    """Makes the way of parameters that are split at rest.

    What `data` splits is put together at once, before the step; what `fsdp` splits is
    left to the compiler, which puts it together where a layer uses it.

    Args:
      params: The parameters or their shapes.
      mesh: The device mesh.
      rules: See `tree_shardings`.
      dtype: Of the computation.
      over_data: See `tree_shardings`.

    Returns:
      The way, or None where the devices hold whole parameters.
    """
    if mesh.shape["fsdp"] == 1 and not (over_data and mesh.shape["data"] > 1):
        return None
    return Gathering(
        parts=tree_shardings(params, mesh, rules, over_data=over_data),
        whole=tree_shardings(params, mesh, rules),
        dtypes=trees.map_with_name(
            lambda name, leaf: dtype if _CAST.fullmatch(name) else leaf.dtype, params
        ),
    )

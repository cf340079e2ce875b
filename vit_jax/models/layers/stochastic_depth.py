# SPDX-License-Identifier: Apache-2.0
"""Stochastic depth: residual branches that training skips, example by example."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float


class StochasticDepth(nn.Module):
    """Drops a residual branch for some examples of a batch (arXiv:1603.09382).

    In training, each example's branch is zero with probability `rate` and divided by
    1 - `rate` otherwise, so that its mean is the branch of evaluation. Draws from the
    stream `drop_path`.

    Attributes:
      rate: Probability of dropping, 0 <= rate < 1; None is 0. It may be an array, as a
        loop over layers has it.
    """

    rate: float | Float[Array, ""] | None

    @nn.compact
    def __call__(
        self, x: Float[Array, "b ..."], *, train: bool
    ) -> Float[Array, "b ..."]:
        """Returns the branch, thinned out in training."""
        rate = self.rate
        if not train or rate is None or (isinstance(rate, float) and rate == 0.0):
            return x
        keep = 1.0 - rate
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        kept = jax.random.bernoulli(self.make_rng("drop_path"), keep, shape)
        return jnp.where(kept, x / jnp.asarray(keep, x.dtype), jnp.zeros_like(x))


def linear_rates(last: float, depth: int) -> list[float]:
    """Returns the drop rate of each block: from 0 for the first to `last`."""
    return [last * i / max(depth - 1, 1) for i in range(depth)]

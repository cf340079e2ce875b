# SPDX-License-Identifier: Apache-2.0
"""Pooling of tokens by attention; the other poolings are one line in each family."""

from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layers.attention import MultiHeadAttention
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norms import LayerNorm

Pool = Literal["cls", "mean", "map", "none"]
# A ViT may also have class token and mean side by side, as linear probes of DINOv2 do
# (arXiv:2304.07193).
ViTPool = Literal[Pool, "cls_mean"]


class MapHead(nn.Module):
    """Multi-head attention pooling: a learned probe attends to all tokens.

    y = attention(probe, tokens), then y + MLP(LN(y)), as in big_vision (Appendix of
    arXiv:2106.04560 describes it).

    Attributes:
      num_heads: Number of heads.
      mlp_dim: Width of the hidden layer of the MLP.
      norm_eps: Epsilon of the layer norm.
      gelu: Form of the activation.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    num_heads: int
    mlp_dim: int
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "b n d"]
    ) -> tuple[Float[Array, "b d"], Float[Array, "b m 1 n"] | None]:
        """Returns the pooled tokens and the attention probabilities of the probe."""
        b, _, d = x.shape
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        probe = self.param(
            "probe", nn.initializers.xavier_uniform(), (1, 1, d), self.param_dtype
        )
        probe = jnp.broadcast_to(probe.astype(x.dtype), (b, 1, d))
        y, weights = MultiHeadAttention(
            self.num_heads,
            form="plain",  # with one query there is little to keep
            name="MultiHeadDotProductAttention_0",
            **dtypes,
        )(probe, x, train=False)
        z = LayerNorm(self.norm_eps, name="LayerNorm_0", **dtypes)(y)
        z = Mlp(self.mlp_dim, gelu=self.gelu, name="MlpBlock_0", **dtypes)(
            z, train=False
        )
        return (y + z)[:, 0], weights

# SPDX-License-Identifier: Apache-2.0
"""The Transformer encoder: right half of Figure 1 of arXiv:2010.11929.

Sub-modules carry the names of Google's files.
"""

import functools
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layers.attention import MultiHeadAttention
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.positions import AddPositions, PositionKind
from vit_jax.models.layers.stochastic_depth import StochasticDepth, linear_rates

Outputs = dict[str, Array]


class EncoderBlock(nn.Module):
    """x + MSA(LN(x)), then x + MLP(LN(x)): Eqs. 2 and 3.

    Attributes:
      num_heads: Number of heads.
      mlp_dim: Width of the hidden layer of the MLP.
      dropout_rate: After every dense layer except those of query, key and value.
      attention_dropout_rate: Of the attention probabilities.
      drop_path_rate: Of the two residual branches.
      norm_eps: Epsilon of the layer norms.
      gelu: Form of the activation.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    num_heads: int
    mlp_dim: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "b n d"], *, train: bool, return_attention: bool = False
    ) -> tuple[Float[Array, "b n d"], Outputs]:
        """Returns the tokens, and `attention`, `mlp`, `output`: branches and sum."""
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = functools.partial(LayerNorm, self.norm_eps, **dtypes)
        drop_path = functools.partial(StochasticDepth, self.drop_path_rate)
        out = {}

        y = norm(name="LayerNorm_0")(x)
        y, weights = MultiHeadAttention(
            self.num_heads,
            self.attention_dropout_rate,
            name="MultiHeadDotProductAttention_0",
            **dtypes,
        )(y, y, train=train)
        y = nn.Dropout(self.dropout_rate, deterministic=not train)(y)
        out["attention"] = y
        x = x + drop_path()(y, train=train)

        y = norm(name="LayerNorm_1")(x)
        y = Mlp(
            self.mlp_dim, self.dropout_rate, self.gelu, name="MlpBlock_0", **dtypes
        )(y, train=train)
        out["mlp"] = y
        out["output"] = x = x + drop_path()(y, train=train)

        if return_attention:
            out["attention_weights"] = weights
        return x, out


class Encoder(nn.Module):
    """Positions, class token, `depth` blocks and the last layer norm.

    Attributes:
      depth: Number of blocks.
      num_heads: See `EncoderBlock`, like all that is not listed here.
      drop_path_rate: Of the last block; block i has i / (depth - 1) of it.
      positions: See `AddPositions`.
      class_position: See `AddPositions`.
      grid: See `AddPositions`.
      position_stddev: See `AddPositions`.
    """

    depth: int
    num_heads: int
    mlp_dim: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    positions: PositionKind = "learned"
    class_position: bool = True
    grid: tuple[int, int] | None = None
    position_stddev: float | None = 0.02
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "b h w d"],
        cls: Float[Array, "1 1 d"] | None,
        *,
        train: bool,
        return_attention: bool = False,
    ) -> tuple[Float[Array, "b n d"], Outputs]:
        """Returns the encoded tokens, and `block00/...` of every block."""
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        out = {}
        x = AddPositions(
            self.positions,
            self.class_position,
            self.grid,
            self.position_stddev,
            name="posembed_input",
            **dtypes,
        )(tokens, cls)
        x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)
        for i, rate in enumerate(linear_rates(self.drop_path_rate, self.depth)):
            x, block_out = EncoderBlock(
                num_heads=self.num_heads,
                mlp_dim=self.mlp_dim,
                dropout_rate=self.dropout_rate,
                attention_dropout_rate=self.attention_dropout_rate,
                drop_path_rate=rate,
                norm_eps=self.norm_eps,
                gelu=self.gelu,
                name=f"encoderblock_{i}",
                **dtypes,
            )(x, train=train, return_attention=return_attention)
            out.update({f"block{i:02d}/{key}": y for key, y in block_out.items()})
        return LayerNorm(self.norm_eps, name="encoder_norm", **dtypes)(x), out

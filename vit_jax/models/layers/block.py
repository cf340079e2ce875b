# SPDX-License-Identifier: Apache-2.0
"""One block of the Transformer encoder, with the names of Google's files."""

import functools
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layers.attend import Form
from vit_jax.models.layers.attention import MultiHeadAttention
from vit_jax.models.layers.layer_scale import LayerScale
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.remat import named
from vit_jax.models.layers.stochastic_depth import StochasticDepth
from vit_jax.models.layers.swiglu import SwiGlu

Outputs = dict[str, Array]
MlpKind = Literal["mlp", "swiglu"]


class EncoderBlock(nn.Module):
    """x + MSA(LN(x)), then x + MLP(LN(x)): Eqs. 2 and 3.

    Attributes:
      num_heads: Number of heads.
      mlp_dim: Width of the hidden layer of the MLP.
      dropout_rate: After every dense layer except those of query, key and value.
      attention_dropout_rate: Of the attention probabilities.
      norm_eps: Epsilon of the layer norms.
      gelu: Form of the activation.
      mlp: "mlp" or the gated "swiglu".
      layer_scale: First value of the factors of both branches, see `LayerScale`; None
        is no factors.
      qk_norm: See `MultiHeadAttention`.
      relative_after: See `MultiHeadAttention`.
      attention: See `MultiHeadAttention.form`.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    num_heads: int
    mlp_dim: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    mlp: MlpKind = "mlp"
    layer_scale: float | None = None
    qk_norm: bool = False
    relative_after: int | None = None
    attention: Form = "auto"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b n d"],
        drop_path_rate: float | Float[Array, ""] | None = None,
        *,
        angles: Float[np.ndarray, "n f"] | None = None,
        train: bool,
        return_attention: bool = False,
    ) -> tuple[Float[Array, "b n d"], Outputs]:
        """Returns the tokens, and `attention`, `mlp`, `output`: branches and sum.

        Args:
          x: The tokens.
          drop_path_rate: Of the two residual branches; None drops none.
          angles: See `MultiHeadAttention`.
          train: Whether dropout and stochastic depth are on.
          return_attention: Whether `attention_weights` are in the second result.
        """
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = functools.partial(LayerNorm, self.norm_eps, **dtypes)
        drop_path = functools.partial(StochasticDepth, drop_path_rate)
        out = {}

        y = norm(name="LayerNorm_0")(x)
        y, weights = MultiHeadAttention(
            self.num_heads,
            self.attention_dropout_rate,
            self.qk_norm,
            self.norm_eps,
            self.relative_after,
            self.attention,
            name="MultiHeadDotProductAttention_0",
            **dtypes,
        )(y, y, train=train, angles=angles, return_attention=return_attention)
        y = named(y, "attention")
        y = nn.Dropout(self.dropout_rate, deterministic=not train)(y)
        out["attention"] = y = self._scale(y, "LayerScale_0")
        x = x + drop_path()(y, train=train)

        y = norm(name="LayerNorm_1")(x)
        if self.mlp == "swiglu":
            mlp = SwiGlu(self.mlp_dim, self.dropout_rate, name="MlpBlock_0", **dtypes)
        else:
            mlp = Mlp(
                self.mlp_dim, self.dropout_rate, self.gelu, name="MlpBlock_0", **dtypes
            )
        out["mlp"] = y = self._scale(mlp(y, train=train), "LayerScale_1")
        out["output"] = x = x + drop_path()(y, train=train)

        if return_attention:
            out["attention_weights"] = weights
        return x, out

    def _scale(self, branch: Array, name: str) -> Array:
        if self.layer_scale is None:
            return branch
        return LayerScale(self.layer_scale, self.param_dtype, name=name)(branch)

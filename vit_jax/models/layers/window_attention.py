# SPDX-License-Identifier: Apache-2.0
"""Attention within windows: scaled products with a table, and cosines without.

Section 3.2 of arXiv:2103.14030; Sections 3.2 and 3.3 of arXiv:2111.09883.
"""

import functools
import math

import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layers.attend import mix, scores
from vit_jax.models.layers.dense import DenseGeneral
from vit_jax.models.layers.hierarchy import KERNEL_INIT
from vit_jax.models.layers.remat import named
from vit_jax.models.layers.windows import Pair, WindowKind, Windows, log_coordinates


class WindowAttention(nn.Module):
    """softmax(q k^T / sqrt(e) + B) v in each window (Eq. 4); B is read from a table.

    Attributes:
      num_heads: Number of heads, a divisor of the width.
      window: Rows and columns of a window.
      shifted: Whether the windows of this block are shifted.
      window_kind: Which windows.
      relative_positions: Whether there is a table.
      attention_dropout_rate: Of the attention probabilities.
      dropout_rate: Of the result.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    num_heads: int
    window: Pair
    shifted: bool
    window_kind: WindowKind = "shifted"
    relative_positions: bool = True
    attention_dropout_rate: float = 0.0
    dropout_rate: float = 0.0
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "b h w d"], *, train: bool
    ) -> tuple[Float[Array, "b h w d"], Float[Array, "b g m q n"]]:
        """Returns the map, and the attention probabilities of each group of tokens."""
        _, h, w, d = x.shape
        head_width = d // self.num_heads
        windows = Windows((h, w), self.window, self.window_kind, self.shifted)
        dense = functools.partial(
            DenseGeneral,
            kernel_init=KERNEL_INIT,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )

        qkv = dense((3, self.num_heads, head_width), name="qkv")(windows.split(x))
        qkv = named(qkv, "qkv")
        query, key, value = windows.spread(*jnp.moveaxis(qkv, 2, 0))
        table = None
        if self.relative_positions:
            offsets = (2 * self.window[0] - 1) * (2 * self.window[1] - 1)
            table = self.param(
                "relative_position_bias_table",
                KERNEL_INIT,
                (offsets, self.num_heads),
                self.param_dtype,
            )
        logits = scores(query * head_width**-0.5, key)
        weights = nn.softmax(windows.biased(logits, table))  # (b, g, m, q, n)

        dropout = functools.partial(nn.Dropout, deterministic=not train)
        dropped = dropout(self.attention_dropout_rate)(weights)
        y = mix(dropped.reshape(logits.shape).astype(self.dtype), value)
        y = dense(d, axis=(-2, -1), name="proj")(y)
        return windows.join(dropout(self.dropout_rate)(y)), weights


class CosineAttention(nn.Module):
    """softmax(cos(q, k) / tau + B) v in each window (Eq. 2); B is computed.

    As in the authors' code: 1 / tau = exp(min(logit_scale, ln 100)), one for each head,
    and B = 16 sigmoid(MLP(offset)). The key has no bias.

    Attributes:
      num_heads: Number of heads, a divisor of the width.
      window: Rows and columns of a window.
      shifted: Whether the windows of this block are shifted.
      pretrained_window: Rows and columns of the window that the weights were trained
        with.
      window_kind: Which windows.
      attention_dropout_rate: Of the attention probabilities.
      dropout_rate: Of the result.
      dtype: Of the computation; lengths and positions are float32 in any case.
      param_dtype: Of the parameters.
    """

    num_heads: int
    window: Pair
    shifted: bool
    pretrained_window: Pair
    window_kind: WindowKind = "shifted"
    attention_dropout_rate: float = 0.0
    dropout_rate: float = 0.0
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "b h w d"], *, train: bool
    ) -> tuple[Float[Array, "b h w d"], Float[Array, "b g m q n"]]:
        """Returns the map, and the attention probabilities of each group of tokens."""
        _, h, w, d = x.shape
        heads = (self.num_heads, d // self.num_heads)
        windows = Windows((h, w), self.window, self.window_kind, self.shifted)
        dense = functools.partial(
            DenseGeneral,
            kernel_init=KERNEL_INIT,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )

        qkv = dense((3, *heads), use_bias=False, name="qkv")(windows.split(x))
        qkv = named(qkv, "qkv")
        query, key, value = windows.spread(*jnp.moveaxis(qkv, 2, 0))
        query = unit(query + self._vector("q_bias", heads)) * self._scale()
        value = value + self._vector("v_bias", heads)
        logits = scores(query.astype(self.dtype), unit(key).astype(self.dtype))
        biased = windows.biased(logits, self._positions())
        weights = nn.softmax(biased)  # (b, g, m, q, n)

        dropout = functools.partial(nn.Dropout, deterministic=not train)
        dropped = dropout(self.attention_dropout_rate)(weights)
        y = mix(dropped.reshape(logits.shape).astype(self.dtype), value)
        y = dense(d, axis=(-2, -1), name="proj")(y)
        return windows.join(dropout(self.dropout_rate)(y)), weights

    def _vector(self, name: str, heads: Pair) -> Float[Array, "1 1 m e"]:
        bias = self.param(name, nn.initializers.zeros, heads, self.param_dtype)
        return bias.astype(self.dtype)[None, None]

    def _scale(self) -> Float[Array, "1 1 m 1"]:
        """Returns 1 / tau."""
        scale = self.param(
            "logit_scale",
            nn.initializers.constant(math.log(10)),
            (self.num_heads, 1, 1),
            self.param_dtype,
        )
        scale = jnp.minimum(scale.astype(jnp.float32), math.log(100))
        return jnp.exp(scale).reshape(1, 1, -1, 1)

    def _positions(self) -> Float[Array, "r m"]:
        """Returns the bias of each offset: continuous relative positions."""
        dense = functools.partial(
            nn.Dense,
            kernel_init=KERNEL_INIT,
            dtype=jnp.float32,
            param_dtype=self.param_dtype,
        )
        x = jnp.asarray(log_coordinates(self.window, self.pretrained_window))
        x = nn.relu(dense(512, name="cpb_mlp_0")(x))
        x = dense(self.num_heads, use_bias=False, name="cpb_mlp_2")(x)
        return 16 * nn.sigmoid(x)


def unit(x: Float[Array, "*b e"]) -> Float[Array, "*b e"]:
    """Returns float32 vectors of length 1; one shorter than 1e-12 is x / 1e-12."""
    x = x.astype(jnp.float32)
    square = jnp.sum(jnp.square(x), axis=-1, keepdims=True)
    return x * lax.rsqrt(jnp.maximum(square, 1e-24))

# SPDX-License-Identifier: Apache-2.0
"""Attention along the rows of a map and along its columns, and the encoder of it.

Appendix D.6 of arXiv:2010.11929, after arXiv:1912.12180.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layers.attend import Form
from vit_jax.models.layers.attention import MultiHeadAttention
from vit_jax.models.layers.block import Outputs
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.positions import PositionTable
from vit_jax.models.layers.remat import Remat, named
from vit_jax.models.layers.stack import run_blocks
from vit_jax.models.layers.stochastic_depth import StochasticDepth
from vit_jax.models.layers.windows import Pair, Windows
from vit_jax.resample import Method

Axis = Literal["row", "column"]
AXES: tuple[Axis, ...] = ("row", "column")
AxialPositions = Literal["learned", "learned2d", "sincos2d", "none"]


class AxisBlock(nn.Module):
    """x + MSA(LN(x)) along one axis of the map, then x + MLP(LN(x)).

    Attributes:
      axis: Whether the tokens of a row attend to each other, or those of a column.
      num_heads: Number of heads.
      mlp_dim: Width of the hidden layer of the MLP.
      dropout_rate: After every dense layer except those of query, key and value.
      attention_dropout_rate: Of the attention probabilities.
      norm_eps: Epsilon of the layer norms.
      gelu: Form of the activation.
      attention: See `MultiHeadAttention.form`.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    axis: Axis
    num_heads: int
    mlp_dim: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    attention: Form = "auto"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b h w d"],
        drop_path_rate: float | Float[Array, ""] | None = None,
        *,
        train: bool,
        return_attention: bool = False,
    ) -> tuple[Float[Array, "b h w d"], Outputs]:
        """Returns the map, and `attention`, `mlp`, `output`: branches and sum.

        Args:
          x: The map of tokens.
          drop_path_rate: Of the two residual branches; None drops none.
          train: Whether dropout and stochastic depth are on.
          return_attention: Whether `attention_weights` are in the second result.
        """
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = functools.partial(LayerNorm, self.norm_eps, **dtypes)
        drop_path = functools.partial(StochasticDepth, drop_path_rate)
        _, h, w, _ = x.shape
        lines = lines_of((h, w), self.axis)
        out = {}

        y = lines.split(norm(name="LayerNorm_0")(x))  # (b g, n, d)
        y, weights = MultiHeadAttention(
            self.num_heads,
            self.attention_dropout_rate,
            norm_eps=self.norm_eps,
            form=self.attention,
            name="MultiHeadDotProductAttention_0",
            **dtypes,
        )(y, y, train=train, return_attention=return_attention)
        y = named(lines.join(y), "attention")
        y = nn.Dropout(self.dropout_rate, deterministic=not train)(y)
        out["attention"] = y
        x = x + drop_path()(y, train=train)

        y = norm(name="LayerNorm_1")(x)
        mlp = Mlp(
            self.mlp_dim, self.dropout_rate, self.gelu, name="MlpBlock_0", **dtypes
        )
        out["mlp"] = y = mlp(y, train=train)
        out["output"] = x = x + drop_path()(y, train=train)

        if return_attention and weights is not None:
            shape = (-1, lines.groups, *weights.shape[1:])
            out["attention_weights"] = weights.reshape(shape)  # (b, g, m, q, n)
        return x, out


def lines_of(grid: Pair, axis: Axis) -> Windows:
    """Returns the rows or the columns of a map as windows that lie side by side."""
    h, w = grid
    return Windows((h, w), (1, w) if axis == "row" else (h, 1), "fixed")


class AxialBlock(nn.Module):
    """Attention along rows and an MLP, then attention along columns and an MLP.

    Attributes:
      half: Makes an `AxisBlock` of a name and an axis.
    """

    half: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b h w d"],
        drop_path_rate: float | Float[Array, ""] | None = None,
        *,
        train: bool,
        return_attention: bool = False,
    ) -> tuple[Float[Array, "b h w d"], Outputs]:
        """Returns the map, and `row/...`, `column/...` and `output`."""
        run: dict[str, Any] = {"train": train, "return_attention": return_attention}
        x, rows = self.half(axis="row", name="row")(x, drop_path_rate, **run)
        x, columns = self.half(axis="column", name="column")(x, drop_path_rate, **run)
        out = {f"row/{key}": y for key, y in rows.items()}
        out |= {f"column/{key}": y for key, y in columns.items() if key != "output"}
        return x, {**out, "output": x}


class AxialEncoder(nn.Module):
    """Positions, `depth` axial blocks and the last layer norm; see `AxialViT`."""

    depth: int
    half: Callable[..., nn.Module]
    positions: AxialPositions
    grid: Pair | None
    resize_positions: Method | None
    position_stddev: float | None
    dropout_rate: float
    drop_path_rate: float
    norm_eps: float
    scan: bool
    remat: Remat
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(
        self, x: Float[Array, "b h w d"], *, train: bool, return_attention: bool
    ) -> tuple[Float[Array, "b h w d"], Outputs]:
        """Returns the encoded map, and `block00/...` of every block."""
        _, h, w, d = x.shape
        if self.positions != "none":
            table = PositionTable(
                self.positions,
                class_position=False,
                grid=self.grid,
                resize=self.resize_positions,
                stddev=self.position_stddev,
                param_dtype=self.param_dtype,
                name="posembed_input",
            )((h, w), d)
            x = x + table.reshape(1, h, w, d).astype(x.dtype)
        x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)

        def step(
            block: AxialBlock, x: Array, rate: Any, table: None
        ) -> tuple[Array, Outputs]:
            del table  # positions are added once
            return block(x, rate, train=train, return_attention=return_attention)

        x, out = run_blocks(
            step,
            functools.partial(AxialBlock, self.half),
            x,
            depth=self.depth,
            drop_path_rate=self.drop_path_rate,
            scan=self.scan,
            remat=self.remat,
        )
        norm = LayerNorm(
            self.norm_eps, self.dtype, self.param_dtype, name="encoder_norm"
        )
        return norm(x), out

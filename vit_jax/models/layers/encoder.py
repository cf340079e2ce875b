# SPDX-License-Identifier: Apache-2.0
"""The Transformer encoder: right half of Figure 1 of arXiv:2010.11929.

Sub-modules carry the names of Google's files.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.layers.attend import Form
from vit_jax.models.layers.block import EncoderBlock, MlpKind, Outputs
from vit_jax.models.layers.layout import image_by_image
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.positions import (
    ADDED,
    Injection,
    PositionKind,
    PositionTable,
    to_sequence,
)
from vit_jax.models.layers.remat import Remat
from vit_jax.models.layers.rotary import rotary_angles
from vit_jax.models.layers.stack import run_blocks
from vit_jax.resample import Method


class Encoder(nn.Module):
    """Positions, tokens before the patches, `depth` blocks and the last layer norm.

    Attributes:
      depth: Number of blocks.
      num_heads: See `EncoderBlock`, like all that is not listed here.
      drop_path_rate: Of the last block; block i has i / (depth - 1) of it.
      positions: See `PositionTable`, `rotary_angles` and `RelativeScores`.
      class_position: See `PositionTable`.
      grid: See `PositionTable`.
      position_stddev: See `PositionTable`.
      position_injection: Whether positions are added once, or before every layer from
        a table of its own or from one table.
      resize_positions: See `PositionTable`.
      attention: See `MultiHeadAttention.form`.
      final_norm: Whether the last layer norm is there.
      scan: Whether the blocks are one loop of the program, which then compiles as fast
        as one block. Their parameters are stacked, `encoderblock/...` with a leading
        axis for the layer: see `models/stacking.py`.
      remat: What the backward pass keeps of each block; it computes the rest again.
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
    position_injection: Injection = "stem"
    resize_positions: Method | None = None
    mlp: MlpKind = "mlp"
    layer_scale: float | None = None
    qk_norm: bool = False
    attention: Form = "auto"
    final_norm: bool = True
    scan: bool = False
    remat: Remat = "none"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: Float[Array, "b h w d"],
        prefix: Float[Array, "1 t d"] | None,
        *,
        registers: Float[Array, "1 r d"] | None = None,
        train: bool,
        return_attention: bool = False,
    ) -> tuple[Float[Array, "b n d"], Outputs]:
        """Returns the encoded tokens, and `block00/...` of every block.

        Args:
          tokens: Patches on their grid.
          prefix: Tokens that come first, such as the class token.
          registers: Tokens between these and the patches, which have no position.
          train: Whether dropout and stochastic depth are on.
          return_attention: Whether `block00/attention_weights` are there.

        Raises:
          UserError: See `PositionTable`, or an injection of positions that are not
            added to the tokens.
        """
        _, h, w, d = tokens.shape
        x = to_sequence(tokens, prefix, registers)
        before = x.shape[1] - h * w
        tables = self._tables((h, w), d, prefix, before)
        if self.position_injection == "stem" and tables is not None:
            x, tables = x + tables.astype(x.dtype), None
        x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)

        angles = None
        if self.positions == "rotary2d":
            angles = rotary_angles(h, w, d // self.num_heads, prefix_tokens=before)

        # In a loop the compiler keeps images together by itself; there, or where blocks
        # are computed again, it would gather the images of all devices for this. And an
        # exported program, which does not train, is to hold nothing of one compiler.
        plain = self.scan or self.remat != "none" or not train
        placed = (lambda x: x) if plain else image_by_image

        def step(
            block: EncoderBlock, x: Array, rate: Any, table: Array | None
        ) -> tuple[Array, Outputs]:
            if table is not None:
                x = x + table[None].astype(x.dtype)
            x, block_out = block(
                placed(x),
                rate,
                angles=angles,
                train=train,
                return_attention=return_attention,
            )
            return placed(x), block_out

        x, out = run_blocks(
            step,
            self._make_block(before),
            x,
            tables,
            depth=self.depth,
            drop_path_rate=self.drop_path_rate,
            scan=self.scan,
            remat=self.remat,
        )
        if not self.final_norm:
            return x, out
        norm = LayerNorm(
            self.norm_eps, self.dtype, self.param_dtype, name="encoder_norm"
        )
        return norm(x), out

    def _tables(
        self, grid: tuple[int, int], width: int, prefix: Array | None, before: int
    ) -> Array | None:
        if self.positions not in ADDED:
            if self.position_injection != "stem":
                raise UserError(
                    f"position_injection={self.position_injection!r} is for positions "
                    f"that are added to the tokens, {', '.join(ADDED)}, not for "
                    f"{self.positions!r}; leave it at 'stem'"
                )
            return None
        first = 0 if prefix is None else prefix.shape[1]
        return PositionTable(
            self.positions,
            self.class_position,
            self.depth if self.position_injection == "every_layer" else 1,
            self.grid,
            self.resize_positions,
            self.position_stddev,
            self.param_dtype,
            name="posembed_input",
        )(grid, width, prefix=first, registers=before - first)

    def _make_block(self, before: int) -> Callable[..., EncoderBlock]:
        return functools.partial(
            EncoderBlock,
            num_heads=self.num_heads,
            mlp_dim=self.mlp_dim,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            norm_eps=self.norm_eps,
            gelu=self.gelu,
            mlp=self.mlp,
            layer_scale=self.layer_scale,
            qk_norm=self.qk_norm,
            attention=self.attention,
            relative_after=before if self.positions == "relative" else None,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )

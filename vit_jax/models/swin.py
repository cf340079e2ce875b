# SPDX-License-Identifier: Apache-2.0
"""Swin Transformer: Figure 3 of arXiv:2103.14030.

Its sizes are rows of `catalog.py`, its numerics rows of `presets.py`. What V2 has too
is in `layers`: `pyramid.py` (sizes of maps), `hierarchy.py` (stages, merging) and
`windows.py` (who sees whom).
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from vit_jax.errors import UserError
from vit_jax.models.layers.encoder import Outputs
from vit_jax.models.layers.head import classify
from vit_jax.models.layers.hierarchy import (
    KERNEL_INIT,
    PatchEmbedding,
    PatchMerging,
    Stage,
)
from vit_jax.models.layers.mlp import Activation, Gelu, Mlp, activate
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.patches import Size, check_image, pair
from vit_jax.models.layers.pyramid import Pyramid, check_heads
from vit_jax.models.layers.remat import Remat, named
from vit_jax.models.layers.stochastic_depth import StochasticDepth, linear_rates
from vit_jax.models.layers.window_attention import WindowAttention
from vit_jax.models.layers.windows import Pair, WindowKind


class SwinBlock(nn.Module):
    """x + W-MSA(LN(x)), then x + MLP(LN(x)): Eq. 3.

    Attributes:
      num_heads: See `WindowAttention`, like all that is not listed here.
      mlp_ratio: Width of the hidden layer of the MLP, relative to that of the tokens.
      dropout_rate: After every dense layer except that of query, key and value.
      drop_path_rate: Of the two residual branches.
      norm_eps: Epsilon of the layer norms.
      gelu: Form of the activation.
    """

    num_heads: int
    window: Pair
    shifted: bool
    window_kind: WindowKind = "shifted"
    relative_positions: bool = True
    mlp_ratio: int = 4
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-5
    gelu: Gelu = "erf"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "b h w d"], *, train: bool, return_attention: bool
    ) -> tuple[Float[Array, "b h w d"], Outputs]:
        """Returns the map, and `attention`, `mlp`, `output`: branches and sum."""
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = functools.partial(LayerNorm, self.norm_eps, **dtypes)
        drop_path = functools.partial(StochasticDepth, self.drop_path_rate)
        out = {}

        y, weights = WindowAttention(
            self.num_heads,
            self.window,
            self.shifted,
            self.window_kind,
            self.relative_positions,
            self.attention_dropout_rate,
            self.dropout_rate,
            name="attn",
            **dtypes,
        )(norm(name="norm1")(x), train=train)
        out["attention"] = y = named(y, "attention")
        x = x + drop_path()(y, train=train)

        y = Mlp(
            self.mlp_ratio * x.shape[-1],
            self.dropout_rate,
            self.gelu,
            names=("fc1", "fc2"),
            kernel_init=KERNEL_INIT,
            bias_init=nn.initializers.zeros,
            name="mlp",
            **dtypes,
        )(norm(name="norm2")(x), train=train)
        out["mlp"] = y
        out["output"] = x = x + drop_path()(y, train=train)

        if return_attention:
            out["attention_weights"] = weights
        return x, out


class Swin(nn.Module):
    """Swin Transformer, with the parameter names of timm in snake case.

    Returns `(logits, out)`. `out` holds, by name:

    - `stem` (b, h, w, d): the embedded patches after their layer norm.
    - `stage0/block00/attention`, `stage0/block00/mlp`: what the two branches of a block
      add; `stage0/block00/output`: the map after it. The same for every block of every
      stage, with (b, h / 2^i, w / 2^i, 2^i d) in stage i.
    - `stage0/output`: the map after a stage, which is that after its last block.
    - `stage0/block00/attention_weights` (b, g, m, q, n): attention probabilities in g
      groups of tokens; only with `return_attention=True`. Groups are windows in raster
      order, of the map after the shift if the block has one; with "sliding" windows,
      rows of the map.
    - `encoded` (b, h, w, 8d): the last map after the last layer norm.
    - `pre_logits` (b, 8d): its mean, or what `representation_size` makes of it.
    - `logits` (b, k), float32.

    Attributes:
      num_classes: Number of logits; 0 gives `pre_logits` as logits.
      representation_size: Width of a dense layer before the head; None has none.
      representation_activation: What follows that layer.
      head_bias: First value of the head's bias.
      width: Width of the tokens in the first stage; each stage doubles it.
      depths: Number of blocks of each stage.
      num_heads: Heads of each stage.
      window_size: Side of a window in tokens, or (rows, columns); no larger than the
        map that a stage has for images of `resolution`.
      resolution: Side, or (height, width), of the images that the windows are fitted
        to. Images of another size get the same windows.
      patch_size: Side of a patch in pixels, or (height, width).
      mlp_ratio: Width of the hidden layer of each MLP, relative to that of the tokens.
      window_kind: "shifted" in every second block, "fixed" without shifts, or
        "sliding" with a window around each query; Tables 4 and 6 have top-1 81.3,
        80.2 and 81.4 for Swin-T.
      relative_positions: Whether each head has a table of relative positions.
      absolute_positions: Whether a learned table is added to the embedded patches.
      pad: Whether images and maps of any size are padded at the bottom and right; else
        a size that does not divide is refused. Nobody attends to padding.
      dropout_rate: After every dense layer of the blocks except that of query, key and
        value, and after the patch embedding. Stream `dropout`.
      attention_dropout_rate: Of the attention probabilities.
      drop_path_rate: Stochastic depth of the last block; grows linearly from 0 at the
        first. Stream `drop_path`.
      norm_eps: Epsilon of every layer norm.
      gelu: Form of the activation.
      remat: See `layers/remat.py`.
      dtype: Of the computation; softmax, norms and logits are float32 in any case.
      param_dtype: Of the parameters.
    """

    num_classes: int
    width: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window_size: Size
    resolution: Size
    patch_size: Size = 4
    mlp_ratio: int = 4
    window_kind: WindowKind = "shifted"
    relative_positions: bool = True
    absolute_positions: bool = False
    pad: bool = False
    representation_size: int | None = None
    representation_activation: Activation = "tanh"
    head_bias: float = 0.0
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-5
    gelu: Gelu = "erf"
    remat: Remat = "none"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        image: Num[Array | np.ndarray, "b h w c"],
        *,
        train: bool = False,
        return_attention: bool = False,
    ) -> tuple[Float[Array, "b k"], Outputs]:
        """Returns the logits and the named intermediates of the class docstring.

        Args:
          image: Pixels in the range that the preset states.
          train: Whether dropout and stochastic depth are on.
          return_attention: Whether `out` holds the attention probabilities too.

        Raises:
          UserError: Pixels that are integers; without `pad`, a size that does not
            divide; stages or heads that do not go together; a grid of patches that the
            absolute positions are not made for.
        """
        check_image(image, 1)
        pyramid = Pyramid(
            pair(self.resolution),
            pair(self.patch_size),
            pair(self.window_size),
            len(self.depths),
            tiled=self.window_kind != "sliding",
        )
        check_heads(self.width, self.depths, self.num_heads)
        _, height, width, _ = image.shape
        if not self.pad:
            pyramid.check((height, width))
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm: dict[str, Any] = {"norm_eps": self.norm_eps, **dtypes}
        out = {}

        x = PatchEmbedding(self.width, pyramid.patch, name="patch_embed", **norm)(image)
        out["stem"] = x
        if self.absolute_positions:
            x = x + self._positions(pyramid.grid, x)
        x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)

        block = functools.partial(
            SwinBlock,
            window_kind=self.window_kind,
            relative_positions=self.relative_positions,
            mlp_ratio=self.mlp_ratio,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            gelu=self.gelu,
            **norm,
        )
        merging = functools.partial(PatchMerging, norm_first=True, **norm)
        rates = iter(linear_rates(self.drop_path_rate, sum(self.depths)))
        for i, (depth, heads, window) in enumerate(
            zip(self.depths, self.num_heads, pyramid.windows, strict=True)
        ):
            blocks = [
                functools.partial(
                    block, heads, window, j % 2 == 1, drop_path_rate=next(rates)
                )
                for j in range(depth)
            ]
            x, stage_out = Stage(
                merging if i else None, blocks, self.remat, name=f"layers_{i}"
            )(x, train=train, return_attention=return_attention)
            out.update({f"stage{i}/{key}": y for key, y in stage_out.items()})
            out[f"stage{i}/output"] = x

        out["encoded"] = x = LayerNorm(self.norm_eps, name="norm", **dtypes)(x)
        x = jnp.mean(x, axis=(1, 2))
        if self.representation_size is not None:
            x = nn.Dense(self.representation_size, name="pre_logits", **dtypes)(x)
            x = activate(x, self.representation_activation, self.gelu)
        out["pre_logits"] = x
        out["logits"] = logits = classify(
            x,
            self.num_classes,
            bias=self.head_bias,
            kernel_init=KERNEL_INIT,
            param_dtype=self.param_dtype,
        )
        return logits, out

    def _positions(self, grid: Pair, x: Array) -> Array:
        if x.shape[1:3] != grid:
            raise UserError(
                f"the absolute positions are made for a grid of {grid[0]}x{grid[1]} "
                f"patches, but the image has {x.shape[1]}x{x.shape[2]}; feed images of "
                "the size of resolution, or leave absolute_positions out"
            )
        table = self.param(
            "absolute_pos_embed", KERNEL_INIT, (1, *x.shape[1:]), self.param_dtype
        )
        return table.astype(x.dtype)

# SPDX-License-Identifier: Apache-2.0
"""Swin Transformer V2: Figure 1 of arXiv:2111.09883.

Its sizes are rows of `catalog.py`, its numerics rows of `presets.py`. Stages and
windows are those of V1; norms, attention and positions are not.
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
from vit_jax.models.layers.window_attention import CosineAttention
from vit_jax.models.layers.windows import Pair, WindowKind


class SwinV2Block(nn.Module):
    """x + LN(W-MSA(x)), then x + LN(MLP(x)): residual post-norm.

    The scales of both norms start at 0, so that a new block is the identity. A norm on
    the main branch, after the sum, is the paper's for its largest models.

    Attributes:
      num_heads: See `CosineAttention`, like all that is not listed here.
      mlp_ratio: Width of the hidden layer of the MLP, relative to that of the tokens.
      dropout_rate: After every dense layer except that of query, key and value.
      drop_path_rate: Of the two residual branches.
      main_norm: Whether there is a norm on the main branch.
      norm_eps: Epsilon of the layer norms.
      gelu: Form of the activation.
    """

    num_heads: int
    window: Pair
    shifted: bool
    pretrained_window: Pair
    window_kind: WindowKind = "shifted"
    mlp_ratio: int = 4
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    main_norm: bool = False
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
        zeros = nn.initializers.zeros
        drop_path = functools.partial(StochasticDepth, self.drop_path_rate)
        out = {}

        y, weights = CosineAttention(
            self.num_heads,
            self.window,
            self.shifted,
            self.pretrained_window,
            self.window_kind,
            self.attention_dropout_rate,
            self.dropout_rate,
            name="attn",
            **dtypes,
        )(x, train=train)
        y = named(y, "attention")
        out["attention"] = y = norm(scale_init=zeros, name="norm1")(y)
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
        )(x, train=train)
        out["mlp"] = y = norm(scale_init=zeros, name="norm2")(y)
        x = x + drop_path()(y, train=train)
        if self.main_norm:
            x = norm(name="norm3")(x)
        out["output"] = x

        if return_attention:
            out["attention_weights"] = weights
        return x, out


class SwinV2(nn.Module):
    """Swin Transformer V2, with the parameter names of timm in snake case.

    Returns `(logits, out)`. `out` holds, by name:

    - `stem` (b, h, w, d): the embedded patches after their layer norm.
    - `stage0/block00/attention`, `stage0/block00/mlp`: what the two branches of a block
      add, after their norm; `stage0/block00/output`: the map after it. The same for
      every block of every stage, with (b, h / 2^i, w / 2^i, 2^i d) in stage i.
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
      pretrained_window_size: Side of the windows that the weights were trained with,
        one for each stage or one for all, where it is not `window_size`: positions are
        relative to it. None is the own window of each stage.
      patch_size: Side of a patch in pixels, or (height, width).
      mlp_ratio: Width of the hidden layer of each MLP, relative to that of the tokens.
      window_kind: "shifted" in every second block, "fixed" without shifts, or
        "sliding" with a window around each query.
      extra_norm_every: Puts a norm on the main branch after every so many blocks of a
        stage; None is without.
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
    pretrained_window_size: int | tuple[int, ...] | None = None
    patch_size: Size = 4
    mlp_ratio: int = 4
    window_kind: WindowKind = "shifted"
    extra_norm_every: int | None = None
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
            divide; stages, heads or pre-training windows that do not go together.
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
        x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)

        block = functools.partial(
            SwinV2Block,
            window_kind=self.window_kind,
            mlp_ratio=self.mlp_ratio,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            gelu=self.gelu,
            **norm,
        )
        merging = functools.partial(PatchMerging, norm_first=False, **norm)
        rates = iter(linear_rates(self.drop_path_rate, sum(self.depths)))
        every = self.extra_norm_every or 0
        pretrained = self._pretrained_windows(pyramid.windows)
        for i, depth in enumerate(self.depths):
            sizes = {"num_heads": self.num_heads[i], "window": pyramid.windows[i]}
            sizes["pretrained_window"] = pretrained[i]
            blocks = [
                functools.partial(
                    block,
                    shifted=j % 2 == 1,
                    main_norm=bool(every) and (j + 1) % every == 0,
                    drop_path_rate=next(rates),
                    **sizes,
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

    def _pretrained_windows(self, windows: list[Pair]) -> list[Pair]:
        given = self.pretrained_window_size
        if given is None:
            return windows
        sides = (given,) * len(windows) if isinstance(given, int) else given
        if len(sides) != len(windows):
            raise UserError(
                f"pretrained_window_size has {len(sides)} numbers for {len(windows)} "
                "stages; give one for each, or a single one for all"
            )
        return [(side, side) for side in sides]

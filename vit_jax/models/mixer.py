# SPDX-License-Identifier: Apache-2.0
"""MLP-Mixer: Figure 1 of arXiv:2105.01601. No attention, no positions.

Its sizes are rows of `catalog.py`, its numerics rows of `presets.py`.
"""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from vit_jax.errors import UserError
from vit_jax.models.layers.encoder import Outputs
from vit_jax.models.layers.head import classify
from vit_jax.models.layers.mlp import Gelu, Mlp
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.patches import Size, check_image, pair, patch_grid
from vit_jax.models.layers.remat import Remat, rematerialize
from vit_jax.models.layers.stochastic_depth import StochasticDepth, linear_rates


class MixerBlock(nn.Module):
    """An MLP across the tokens of each channel, then one across channels (Eq. 1).

    Attributes:
      token_mlp_dim: Width of the hidden layer of the first.
      mlp_dim: Width of the hidden layer of the second.
      dropout_rate: See `Mlp`.
      drop_path_rate: Of the two residual branches.
      norm_eps: Epsilon of the layer norms.
      gelu: Form of the activation.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    token_mlp_dim: int
    mlp_dim: int
    dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, x: Float[Array, "b n d"], *, train: bool
    ) -> tuple[Float[Array, "b n d"], Outputs]:
        """Returns the tokens, and `token_mixing`, `channel_mixing`, `output`."""
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = functools.partial(LayerNorm, self.norm_eps, **dtypes)
        drop_path = functools.partial(StochasticDepth, self.drop_path_rate)
        mlp = functools.partial(
            Mlp, dropout_rate=self.dropout_rate, gelu=self.gelu, **dtypes
        )
        out = {}

        y = norm(name="LayerNorm_0")(x).swapaxes(1, 2)  # (b, d, n)
        y = mlp(self.token_mlp_dim, name="token_mixing")(y, train=train)
        out["token_mixing"] = y = y.swapaxes(1, 2)
        x = x + drop_path()(y, train=train)

        y = norm(name="LayerNorm_1")(x)
        y = mlp(self.mlp_dim, name="channel_mixing")(y, train=train)
        out["channel_mixing"] = y
        out["output"] = x = x + drop_path()(y, train=train)
        return x, out


class Mixer(nn.Module):
    """MLP-Mixer, with the parameter names of Google's files.

    The MLP across tokens is made for one number of them, so a Mixer keeps the size of
    image that it was initialised with. Returns `(logits, out)`. `out` holds, by name:

    - `stem` (b, h, w, d): the embedded patches on their grid.
    - `block00/token_mixing`, `block00/channel_mixing` (b, n, d): what the two branches
      of a block add; `block00/output` (b, n, d): the tokens after it. The same for
      every block.
    - `encoded` (b, n, d): the tokens after the last layer norm.
    - `pre_logits` (b, d): their mean.
    - `logits` (b, k), float32.

    Attributes:
      num_classes: Number of logits; 0 gives `pre_logits` as logits.
      patch_size: Side of a patch in pixels, or (height, width).
      width: Width of the tokens, d.
      depth: Number of blocks.
      token_mlp_dim: Width of the hidden layer of each MLP across tokens.
      mlp_dim: Width of the hidden layer of each MLP across channels.
      resolution: Side, or (height, width), of the images that the model is made for;
        None takes those that initialise it.
      dropout_rate: In each MLP, after the GELU and after the second layer. Stream
        `dropout`. Google's code has none.
      drop_path_rate: Stochastic depth of the last block; grows linearly from 0 at the
        first. Stream `drop_path`.
      norm_eps: Epsilon of every layer norm.
      gelu: Form of the activation.
      remat: See `layers/remat.py`.
      head_bias: First value of the head's bias; its kernel starts at 0.
      dtype: Of the computation; norms and logits are float32 in any case.
      param_dtype: Of the parameters.
    """

    num_classes: int
    patch_size: Size
    width: int
    depth: int
    token_mlp_dim: int
    mlp_dim: int
    resolution: Size | None = None
    dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    remat: Remat = "none"
    head_bias: float = 0.0
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
          return_attention: Refused: there is no attention.

        Raises:
          UserError: Pixels that are integers, a size that the patch does not divide or
            that the model is not made for, or attention is asked for.
        """
        if return_attention:
            raise UserError(
                "a Mixer has no attention; leave return_attention out, or take a ViT"
            )
        check_image(image, self.patch_size)
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        out = {}

        patch = pair(self.patch_size)
        out["stem"] = tokens = nn.Conv(
            self.width, patch, patch, padding="VALID", name="stem", **dtypes
        )(image)
        b, h, w, d = tokens.shape
        self._check_grid((h, w))
        x = tokens.reshape(b, h * w, d)

        def step(block: nn.Module, x: Array) -> tuple[Array, Outputs]:
            return block(x, train=train)

        for i, rate in enumerate(linear_rates(self.drop_path_rate, self.depth)):
            block = MixerBlock(
                token_mlp_dim=self.token_mlp_dim,
                mlp_dim=self.mlp_dim,
                dropout_rate=self.dropout_rate,
                drop_path_rate=rate,
                norm_eps=self.norm_eps,
                gelu=self.gelu,
                name=f"MixerBlock_{i}",
                **dtypes,
            )
            x, block_out = rematerialize(step, self.remat, names=("mlp",))(block, x)
            out.update({f"block{i:02d}/{key}": y for key, y in block_out.items()})
        norm = LayerNorm(self.norm_eps, name="pre_head_layer_norm", **dtypes)
        x = out["encoded"] = norm(x)
        x = out["pre_logits"] = jnp.mean(x, axis=1)

        out["logits"] = logits = classify(
            x, self.num_classes, bias=self.head_bias, param_dtype=self.param_dtype
        )
        return logits, out

    def _check_grid(self, grid: tuple[int, int]) -> None:
        """Compares the patches of the image with those of the model, as far as known.

        Raises:
          UserError: They differ.
        """
        made_for = grid
        if self.resolution is not None:
            made_for = patch_grid(self.resolution, self.patch_size)
        tokens = math.prod(made_for)
        block = self.variables.get("params", {}).get("MixerBlock_0")
        if block is not None:
            tokens = block["token_mixing"]["Dense_0"]["kernel"].shape[0]
        if made_for == grid and tokens == math.prod(grid):
            return
        known = tokens == math.prod(made_for)
        text = f"a grid of {made_for[0]}x{made_for[1]}" if known else f"{tokens}"
        raise UserError(
            f"the MLPs across tokens are made for {text} patches, but the image has "
            f"{grid[0]}x{grid[1]}; a Mixer cannot change its resolution: feed images "
            "of the size that it was trained with, or train one for this size"
        )

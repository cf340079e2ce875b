# SPDX-License-Identifier: Apache-2.0
"""The Vision Transformer: left half of Figure 1 of arXiv:2010.11929.

Its sizes are rows of `catalog.py`, its numerics rows of `presets.py`. The right half of
the figure, the encoder, is in `layers/encoder.py`.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from vit_jax.models.layers.encoder import Encoder, Outputs
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.patches import Size, check_image, pair, patch_grid
from vit_jax.models.layers.pooling import MapHead, Pool
from vit_jax.models.layers.positions import PositionKind


class ViT(nn.Module):
    """Vision Transformer, with the parameter names of Google's files.

    Returns `(logits, out)`. `out` holds, by name:

    - `stem` (b, h, w, d): the embedded patches on their grid.
    - `block00/attention`, `block00/mlp` (b, n, d): what the two branches of a block
      add; `block00/output` (b, n, d): the tokens after it. The same for every block.
    - `block00/attention_weights` (b, m, n, n): its attention probabilities, and
      `map_head/attention_weights` (b, m, 1, n); only with `return_attention=True`.
    - `encoded` (b, n, d): the tokens after the last layer norm, class token first.
    - `pre_logits`: what the head sees, (b, d), or (b, n, d) with `pool="none"`.
    - `logits` (b, k) or (b, n, k), float32.

    Dropout is placed as in the paper's code: the paper's "every dense layer" does not
    include the one that `representation_size` asks for.

    Attributes:
      num_classes: Number of logits; 0 gives `pre_logits` as logits.
      patch_size: Side of a patch in pixels, or (height, width).
      width: Width of the tokens, d.
      depth: Number of encoder blocks.
      num_heads: Heads of each block.
      mlp_dim: Width of the hidden layer of each MLP.
      resolution: Side, or (height, width), of the images that the position table is
        made for; None takes the images that initialise the model. Give it for grids
        that are not square: a table alone does not tell 2x8 from 4x4.
      pool: What the head sees: the class token, the mean over all tokens, the tokens
        pooled by attention, or every token. Only "cls" has a class token.
      positions: "learned" table, fixed "sincos2d", or "none".
      class_position: Whether a learned table has a row for the class token.
      position_stddev: Of the first values of the table; None is 1 / sqrt(width).
      representation_size: Width of a dense layer with tanh before the head, as in the
        paper's pre-training; None leaves it out, as in fine-tuning.
      dropout_rate: After every dense layer of the encoder except those of query, key
        and value, and after adding positions. Stream `dropout`.
      attention_dropout_rate: Of the attention probabilities. The paper has none.
      drop_path_rate: Stochastic depth of the last block; grows linearly from 0 at the
        first. Stream `drop_path`.
      norm_eps: Epsilon of every layer norm.
      gelu: Form of the activation.
      head_bias: First value of the head's bias; its kernel starts at 0.
      dtype: Of the computation; softmax, norms and logits are float32 in any case.
      param_dtype: Of the parameters.
    """

    num_classes: int
    patch_size: Size
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    resolution: Size | None = None
    pool: Pool = "cls"
    positions: PositionKind = "learned"
    class_position: bool = True
    position_stddev: float | None = 0.02
    representation_size: int | None = None
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
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
    ) -> tuple[Float[Array, "b *n k"], Outputs]:
        """Returns the logits and the named intermediates of the class docstring.

        Args:
          image: Pixels in the range that the preset states.
          train: Whether dropout and stochastic depth are on.
          return_attention: Whether `out` holds the attention probabilities too.

        Raises:
          UserError: Pixels that are integers, a size that the patch does not divide,
            or a grid of patches that the position table is not made for.
        """
        check_image(image, self.patch_size)
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        out = {}

        patch = pair(self.patch_size)
        out["stem"] = tokens = nn.Conv(
            self.width, patch, patch, padding="VALID", name="embedding", **dtypes
        )(image)

        cls = None
        if self.pool == "cls":
            cls = self.param(
                "cls", nn.initializers.zeros, (1, 1, self.width), self.param_dtype
            )
        x, encoder_out = self._encoder()(
            tokens, cls, train=train, return_attention=return_attention
        )
        out.update(encoder_out)
        out["encoded"] = x

        if self.pool == "cls":
            x = x[:, 0]
        elif self.pool == "mean":
            x = jnp.mean(x, axis=1)
        elif self.pool == "map":
            x, weights = MapHead(
                self.num_heads,
                self.mlp_dim,
                self.norm_eps,
                self.gelu,
                name="MAPHead_0",
                **dtypes,
            )(x)
            if return_attention:
                out["map_head/attention_weights"] = weights

        if self.representation_size is not None:
            x = nn.Dense(self.representation_size, name="pre_logits", **dtypes)(x)
            x = jnp.tanh(x)
        out["pre_logits"] = x

        out["logits"] = logits = self._head(x)
        return logits, out

    def _encoder(self) -> Encoder:
        grid = None
        if self.resolution is not None:
            grid = patch_grid(self.resolution, self.patch_size)
        return Encoder(
            depth=self.depth,
            num_heads=self.num_heads,
            mlp_dim=self.mlp_dim,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            drop_path_rate=self.drop_path_rate,
            norm_eps=self.norm_eps,
            gelu=self.gelu,
            positions=self.positions,
            class_position=self.class_position,
            grid=grid,
            position_stddev=self.position_stddev,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="Transformer",
        )

    def _head(self, x: Array) -> Array:
        if not self.num_classes:
            return x.astype(jnp.float32)
        return nn.Dense(
            self.num_classes,
            kernel_init=nn.initializers.zeros,
            bias_init=nn.initializers.constant(self.head_bias),
            dtype=jnp.float32,
            param_dtype=self.param_dtype,
            name="head",
        )(x)

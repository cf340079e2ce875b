# SPDX-License-Identifier: Apache-2.0
"""Axial-ViT: Appendix D.6 of arXiv:2010.11929.

Its sizes are rows of `catalog.py`, its numerics rows of `presets.py`; its encoder is in
`layers/axial.py`. AxialResNet, the other model of that appendix, is not here.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from vit_jax.models.layers.attend import Form
from vit_jax.models.layers.axial import AxialEncoder, AxialPositions, AxisBlock
from vit_jax.models.layers.block import Outputs
from vit_jax.models.layers.head import classify
from vit_jax.models.layers.mlp import Activation, Gelu, activate
from vit_jax.models.layers.patches import Size, check_image, pair, patch_grid
from vit_jax.models.layers.remat import Remat
from vit_jax.resample import Method


class AxialViT(nn.Module):
    """Vision Transformer whose attention goes along rows, then along columns.

    Each block of ViT becomes two, with an MLP each, so that every token reaches every
    other in one block. Names of parameters are those of ViT, with `row` and `column` in
    each block. The appendix does not say where the head looks, and a class token would
    lie in no row and no column: it is the mean over the patches that is classified,
    which Appendix D.3 finds as good at a learning rate of its own.

    Returns `(logits, out)`. `out` holds, by name:

    - `stem` (b, h, w, d): the embedded patches on their grid.
    - `block00/row/attention`, `block00/row/mlp` (b, h, w, d): what the two branches of
      the first half of a block add, and `block00/row/output`, the map after it;
      `block00/column/attention`, `block00/column/mlp` of the second half; and
      `block00/output`, the map after the block. The same for every block.
    - `block00/row/attention_weights` (b, h, m, w, w) and
      `block00/column/attention_weights` (b, w, m, h, h): attention probabilities of
      each row and column; only with `return_attention=True`.
    - `encoded` (b, h, w, d): the map after the last layer norm.
    - `pre_logits` (b, d): its mean, or what `representation_size` makes of it.
    - `logits` (b, k), float32.

    With `scan` the outputs of blocks are the same, cut out of stacked ones.

    Attributes:
      num_classes: Number of logits; 0 gives `pre_logits` as logits.
      patch_size: Side of a patch in pixels, or (height, width).
      width: Width of the tokens, d.
      depth: Number of axial blocks, each of which attends twice.
      num_heads: Heads of each attention.
      mlp_dim: Width of the hidden layer of each MLP.
      resolution: Side, or (height, width), of the images that the position table is
        made for; None takes the images that initialise the model.
      positions: Added to the patches: "learned", "learned2d", "sincos2d" or "none"; see
        `PositionTable`.
      resize_positions: Method, of `vit_jax.resample`, by which a learned table is
        resized when an image has another grid; None refuses such images.
      position_stddev: Of the first values of the table; None is 1 / sqrt(width).
      representation_size: Width of a dense layer before the head; None has none.
      representation_activation: What follows that layer.
      dropout_rate: After every dense layer of the blocks except those of query, key
        and value, and after adding positions. Stream `dropout`.
      attention_dropout_rate: Of the attention probabilities.
      drop_path_rate: Stochastic depth of the last block; grows linearly from 0 at the
        first. Stream `drop_path`.
      norm_eps: Epsilon of every layer norm.
      gelu: Form of the activation.
      attention: See `ViT`.
      scan: See `ViT`.
      remat: See `layers/remat.py`.
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
    positions: AxialPositions = "learned"
    resize_positions: Method | None = None
    position_stddev: float | None = 0.02
    representation_size: int | None = None
    representation_activation: Activation = "tanh"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    attention: Form = "auto"
    scan: bool = False
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
          return_attention: Whether `out` holds the attention probabilities too.

        Raises:
          UserError: Pixels that are integers, a size that the patch does not divide, or
            a grid of patches that the position table is not made for.
        """
        check_image(image, self.patch_size)
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        out = {}

        patch = pair(self.patch_size)
        out["stem"] = tokens = nn.Conv(
            self.width, patch, patch, padding="VALID", name="embedding", **dtypes
        )(image)
        x, encoder_out = self._encoder()(
            tokens, train=train, return_attention=return_attention
        )
        out.update(encoder_out)
        out["encoded"] = x

        x = jnp.mean(x, axis=(1, 2))
        if self.representation_size is not None:
            x = nn.Dense(self.representation_size, name="pre_logits", **dtypes)(x)
            x = activate(x, self.representation_activation, self.gelu)
        out["pre_logits"] = x
        out["logits"] = logits = classify(
            x, self.num_classes, bias=self.head_bias, param_dtype=self.param_dtype
        )
        return logits, out

    def _encoder(self) -> AxialEncoder:
        grid = None
        if self.resolution is not None:
            grid = patch_grid(self.resolution, self.patch_size)
        half = functools.partial(
            AxisBlock,
            num_heads=self.num_heads,
            mlp_dim=self.mlp_dim,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            norm_eps=self.norm_eps,
            gelu=self.gelu,
            attention=self.attention,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        return AxialEncoder(
            depth=self.depth,
            half=half,
            positions=self.positions,
            grid=grid,
            resize_positions=self.resize_positions,
            position_stddev=self.position_stddev,
            dropout_rate=self.dropout_rate,
            drop_path_rate=self.drop_path_rate,
            norm_eps=self.norm_eps,
            scan=self.scan,
            remat=self.remat,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="Transformer",
        )

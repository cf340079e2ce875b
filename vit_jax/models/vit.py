# SPDX-License-Identifier: Apache-2.0
"""The Vision Transformer: left half of Figure 1 of arXiv:2010.11929.

Its sizes are rows of `catalog.py`, its numerics rows of `presets.py`. The right half of
the figure, the encoder, is in `layers/encoder.py`.
"""

import math
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num

from vit_jax.errors import UserError
from vit_jax.models.layers.attend import Form
from vit_jax.models.layers.block import MlpKind, Outputs
from vit_jax.models.layers.encoder import Encoder
from vit_jax.models.layers.head import classify
from vit_jax.models.layers.masking import replace_patches
from vit_jax.models.layers.mlp import Activation, Gelu, activate
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.patches import Size, check_image, pair, patch_grid
from vit_jax.models.layers.pooling import MapHead, ViTPool
from vit_jax.models.layers.positions import Injection, PositionKind
from vit_jax.models.layers.remat import Remat
from vit_jax.resample import Method


class ViT(nn.Module):
    """Vision Transformer, with the parameter names of Google's files.

    Returns `(logits, out)`. `out` holds, by name:

    - `stem` (b, h, w, d): the embedded patches on their grid.
    - `block00/attention`, `block00/mlp` (b, n, d): what the two branches of a block
      add; `block00/output` (b, n, d): the tokens after it. The same for every block.
    - `block00/attention_weights` (b, m, n, n): its attention probabilities, and
      `map_head/attention_weights` (b, m, 1, n); only with `return_attention=True`.
    - `encoded` (b, n, d): the tokens after the last layer norm, or after the last
      block with `pool_norm="after"`: class token, distillation token, registers,
      patches.
    - `pre_logits`: what the head sees, (b, d), or (b, n, d) with `pool="none"`; the
      mean of what the two heads see with `distillation`.
    - `logits` (b, k) or (b, n, k), float32. With `distillation` they are the mean of
      `logits_class` and `logits_distillation`.
    - `patch_predictions` (b, n, k), float32, with `patch_outputs`: of every patch.

    With `scan` the outputs of blocks are the same, cut out of stacked ones.

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
      pool: What the head sees: the class token, the mean over the patches, both side by
        side ("cls_mean"), the patches pooled by attention, or every patch.
      pool_norm: Whether the last layer norm comes before the pooling, for all tokens,
        or after it, as in timm's models with a mean.
      class_token: Whether there is a class token; None is where the head sees it only.
      distillation: Whether a second token and head learn from a teacher, as in DeiT
        (Section 4 of arXiv:2012.12877).
      num_registers: Learned tokens that nothing reads (arXiv:2309.16588).
      patch_outputs: How many numbers a second head, whose weights start at 0, predicts
        of every patch (Appendix B.1.2 of the paper); 0 has no such head.
      positions: "learned" table, "learned2d" for a table of rows and one of columns,
        fixed "sincos2d"; "rotary2d" or "relative" within the attention; or "none".
      position_injection: Whether positions are added once, or before every layer from
        a table of its own or one for all (Table 8 of the paper).
      resize_positions: Method, of `vit_jax.resample`, by which a learned table is
        resized when an image has another grid; None refuses such images.
      class_position: Whether a learned table has rows for class and distillation token.
      position_stddev: Of the first values of the table; None is 1 / sqrt(width).
      representation_size: Width of a dense layer with tanh before the head, as in the
        paper's pre-training; None leaves it out, as in fine-tuning.
      representation_activation: "gelu" instead of the tanh.
      dropout_rate: After every dense layer of the encoder except those of query, key
        and value, and after adding positions. Stream `dropout`.
      attention_dropout_rate: Of the attention probabilities. The paper has none.
      drop_path_rate: Stochastic depth of the last block; grows linearly from 0 at the
        first. Stream `drop_path`.
      norm_eps: Epsilon of every layer norm.
      gelu: Form of the activation.
      mlp: "mlp" or DINOv2's gated "swiglu", whose `mlp_dim` is half its first layer.
      layer_scale: First value of learned factors of the branches; None has none.
      qk_norm: Whether queries and keys are layer-normalised.
      attention: How softmax(q k^T) v is computed: "plain"; "short", by a kernel that
        keeps its products in the fast memory of a TPU; "flash", by one for TPUs from v4
        on; "fused", by cuDNN's on GPUs; "auto" takes the kernel that is made for the
        TPU and the sequence, and is plain elsewhere. See `layers/attend.py`.
      scan: Whether the blocks are a loop in the program, which compiles faster; their
        parameters are stacked, see `stacking.py`.
      remat: What the backward pass keeps of a block: everything ("none"), the results
        of dense layers ("dots"), its input ("full"), or arrays by name as well, such as
        "names:attention,mlp", see `layers/remat.py`; it computes the rest again.
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
    pool: ViTPool = "cls"
    pool_norm: Literal["before", "after"] = "before"
    class_token: bool | None = None
    distillation: bool = False
    num_registers: int = 0
    patch_outputs: int = 0
    positions: PositionKind = "learned"
    position_injection: Injection = "stem"
    resize_positions: Method | None = None
    class_position: bool = True
    position_stddev: float | None = 0.02
    representation_size: int | None = None
    representation_activation: Activation = "tanh"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    mlp: MlpKind = "mlp"
    layer_scale: float | None = None
    qk_norm: bool = False
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
        patch_source: Int[Array, "b n"] | None = None,
    ) -> tuple[Float[Array, "b *n k"], Outputs]:
        """Returns the logits and the named intermediates of the class docstring.

        Args:
          image: Pixels in the range that the preset states.
          train: Whether dropout and stochastic depth are on.
          return_attention: Whether `out` holds the attention probabilities too.
          patch_source: With `patch_outputs`, for each patch the one whose embedding
            it shows, or -1 for a learned one; None leaves them their own.

        Raises:
          UserError: Pixels that are integers, a size that the patch does not divide, a
            grid of patches that the position table is not made for, or fields that do
            not go together.
        """
        check_image(image, self.patch_size)
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        out = {}

        patch = pair(self.patch_size)
        out["stem"] = tokens = nn.Conv(
            self.width, patch, patch, padding="VALID", name="embedding", **dtypes
        )(image)
        tokens = self._corrupted(tokens, patch_source)

        prefix, registers = self._first_tokens()
        x, encoder_out = self._encoder()(
            tokens,
            prefix,
            registers=registers,
            train=train,
            return_attention=return_attention,
        )
        out.update(encoder_out)
        out["encoded"] = x
        if self.patch_outputs:
            patches = x[:, x.shape[1] - math.prod(tokens.shape[1:3]) :]
            out["patch_predictions"] = nn.Dense(
                self.patch_outputs,
                kernel_init=nn.initializers.zeros,
                dtype=jnp.float32,
                param_dtype=self.param_dtype,
                name="patch_head",
            )(patches)

        x = self._picked(x)
        if self.pool == "map":
            x, weights = MapHead(
                self.num_heads,
                self.mlp_dim,
                self.norm_eps,
                self.gelu,
                name="MAPHead_0",
                **dtypes,
            )(x)
            if return_attention and weights is not None:
                out["map_head/attention_weights"] = weights

        if self.pool_norm == "after":
            x = LayerNorm(self.norm_eps, name="pool_norm", **dtypes)(x)
        if self.representation_size is not None:
            x = nn.Dense(self.representation_size, name="pre_logits", **dtypes)(x)
            x = activate(x, self.representation_activation, self.gelu)
        out["pre_logits"] = jnp.mean(x, axis=1) if self.distillation else x

        if not self.num_classes:
            out["logits"] = out["pre_logits"].astype(jnp.float32)
        elif self.distillation:
            out["logits_class"] = self._head(x[:, 0], "head")
            out["logits_distillation"] = self._head(x[:, 1], "head_dist")
            out["logits"] = (out["logits_class"] + out["logits_distillation"]) / 2
        else:
            out["logits"] = self._head(x, "head")
        return out["logits"], out

    def _first_tokens(self) -> tuple[Array | None, Array | None]:
        """Returns class and distillation token, and the registers."""
        if self.distillation and self.pool != "cls":
            raise UserError(
                f"distillation needs the class token, but pool is {self.pool!r}; use "
                'pool="cls"'
            )
        if self.pool in ("cls", "cls_mean") and self.class_token is False:
            raise UserError(
                f'pool="{self.pool}" needs the class token, but class_token is False; '
                'use pool="mean" or leave class_token out'
            )

        def token(name: str, count: int, init: nn.initializers.Initializer) -> Array:
            return self.param(name, init, (1, count, self.width), self.param_dtype)

        prefix, registers = [], None
        normal = nn.initializers.normal(0.02)  # were they equal, they would stay so
        if self.pool in ("cls", "cls_mean") or self.class_token:
            prefix.append(token("cls", 1, nn.initializers.zeros))
        if self.distillation:
            prefix.append(token("dist", 1, normal))
        if self.num_registers:
            registers = token("registers", self.num_registers, normal)
        return jnp.concatenate(prefix, axis=1) if prefix else None, registers

    def _corrupted(self, tokens: Array, patch_source: Array | None) -> Array:
        """Returns what the patches show, before positions are added."""
        if not self.patch_outputs:
            if patch_source is None:
                return tokens
            raise UserError(
                "patch_source is given, but the model predicts no patches; set "
                "patch_outputs"
            )
        if self.pool_norm == "after":
            raise UserError(
                "patch_outputs predict from patches that are normalised, but pool_norm "
                "is 'after'; set pool_norm=\"before\""
            )
        init = nn.initializers.normal(0.02)
        mask = self.param("mask_embedding", init, (self.width,), self.param_dtype)
        if patch_source is None:
            return tokens
        return replace_patches(tokens, mask, patch_source)

    def _picked(self, x: Array) -> Array:
        """Returns what the head sees, or the patches where attention pools them."""
        if self.pool == "cls":
            return x[:, :2] if self.distillation else x[:, 0]
        first = 1 if self.pool == "cls_mean" else int(bool(self.class_token))
        patches = x[:, first + self.num_registers :]
        if self.pool == "mean":
            return jnp.mean(patches, axis=1)
        if self.pool == "cls_mean":
            return jnp.concatenate([x[:, 0], jnp.mean(patches, axis=1)], axis=-1)
        return patches

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
            position_injection=self.position_injection,
            resize_positions=self.resize_positions,
            mlp=self.mlp,
            layer_scale=self.layer_scale,
            qk_norm=self.qk_norm,
            final_norm=self.pool_norm == "before",
            attention=self.attention,
            scan=self.scan,
            remat=self.remat,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="Transformer",
        )

    def _head(self, x: Array, name: str = "head") -> Array:
        return classify(
            x,
            self.num_classes,
            bias=self.head_bias,
            param_dtype=self.param_dtype,
            name=name,
        )

# SPDX-License-Identifier: Apache-2.0
"""Hybrids: a Transformer on the feature maps of a ResNet.

"Hybrid Architecture" in Section 3.1 of arXiv:2010.11929. Their sizes are rows of
`catalog.py`, their numerics rows of `presets.py`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from vit_jax.models.layers.attend import Form
from vit_jax.models.layers.encoder import Encoder, Outputs
from vit_jax.models.layers.head import classify
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.patches import Size, check_image, pair, patch_grid
from vit_jax.models.layers.pooling import MapHead, Pool
from vit_jax.models.layers.positions import PositionKind
from vit_jax.models.layers.remat import Remat
from vit_jax.models.layers.std_conv import EpsForm, GroupNorm, StdConv
from vit_jax.resample import Method


class ResidualUnit(nn.Module):
    """Bottleneck unit of ResNet-v1: convolution, norm, ReLU; a ReLU after the sum.

    Attributes:
      width: Channels of the 3x3 convolution; the result has four times as many.
      stride: Of the 3x3 convolution and of the shortcut.
      conv: Makes a convolution.
      norm: Makes a group norm.
    """

    width: int
    stride: int
    conv: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> Array:
        """Returns the rectified sum of the branch and the shortcut."""
        wide = 4 * self.width
        shortcut = x
        if x.shape[-1] != wide or self.stride != 1:
            shortcut = self.conv(wide, 1, stride=self.stride, name="conv_proj")(x)
            shortcut = self.norm(name="gn_proj")(shortcut)
        y = self.conv(self.width, 1, name="conv1")(x)
        y = nn.relu(self.norm(name="gn1")(y))
        y = self.conv(self.width, 3, stride=self.stride, name="conv2")(y)
        y = nn.relu(self.norm(name="gn2")(y))
        y = self.conv(wide, 1, name="conv3")(y)
        # The branch starts at zero, so that each unit starts as its shortcut.
        y = self.norm(scale_init=nn.initializers.zeros, name="gn3")(y)
        return nn.relu(shortcut + y)


class Stage(nn.Module):
    """Units of one width, the first of which may halve the map.

    Attributes:
      units: How many.
      width: Channels of the 3x3 convolutions.
      stride: Of the first unit.
      conv: Makes a convolution.
      norm: Makes a group norm.
    """

    units: int
    width: int
    stride: int
    conv: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"]) -> tuple[Array, Outputs]:
        """Returns the maps, and `unit1`, ..., `output`."""
        out = {}
        for i in range(self.units):
            name, stride = f"unit{i + 1}", self.stride if i == 0 else 1
            unit = ResidualUnit(self.width, stride, self.conv, self.norm, name=name)
            x = out[name] = unit(x)
        return x, {**out, "output": x}


class Hybrid(nn.Module):
    """ResNet and Vision Transformer, with the parameter names of Google's files.

    Four stages are form (i) of the paper, such as (3, 4, 6, 3) for a ResNet-50; form
    (ii) leaves the fourth out and puts its units into the third, (3, 4, 9), for four
    times as many tokens. With no stage the Transformer sits on the root alone.

    Returns `(logits, out)`. `out` holds, by name:

    - `root` (b, h, w, c): the maps after the root's convolution, norm and pooling.
    - `stage1/unit1`, ... (b, h, w, c): the maps after each residual unit, and
      `stage1/output`, those after the last one. The same for every stage.
    - `stem` (b, h, w, d): the embedded patches of the last maps on their grid.
    - What `ViT` has after its stem: `block00/...`, `encoded`, `pre_logits`, `logits`.

    Attributes:
      num_classes: Number of logits; 0 gives `pre_logits` as logits.
      stages: Residual units of each stage of the ResNet.
      width_factor: Multiplies the widths of the ResNet.
      patch_size: Side of a patch in cells of the last map, or (height, width). The
        number in a model's name is none: it is the stride, or for R+ViT-Ti/16 neither.
      width: Width of the tokens, d.
      depth: Number of encoder blocks.
      num_heads: Heads of each block.
      mlp_dim: Width of the hidden layer of each MLP.
      resolution: See `ViT`, like all that is not listed here.
      conv_eps: Epsilon of the standardised kernels.
      conv_eps_form: Whether it is added to the variance or to the deviation.
      group_norm_eps: Epsilon of every group norm.
    """

    num_classes: int
    stages: tuple[int, ...]
    patch_size: Size
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    width_factor: int = 1
    resolution: Size | None = None
    pool: Pool = "cls"
    positions: PositionKind = "learned"
    resize_positions: Method | None = None
    class_position: bool = True
    position_stddev: float | None = 0.02
    representation_size: int | None = None
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    drop_path_rate: float = 0.0
    conv_eps: float = 1e-5
    conv_eps_form: EpsForm = "std"
    group_norm_eps: float = 1e-6
    norm_eps: float = 1e-6
    gelu: Gelu = "tanh"
    attention: Form = "auto"
    scan: bool = False
    remat: Remat = "none"
    head_bias: float = 0.0
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels, down and across, from one token to the next."""
        maps = 4 * 2 ** max(len(self.stages) - 1, 0)
        rows, columns = pair(self.patch_size)
        return maps * rows, maps * columns

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
          UserError: Pixels that are integers, a size that the stride does not divide,
            or a grid of patches that the position table is not made for.
        """
        check_image(image, self.stride)
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}

        x, out = self._resnet(image)
        patch = pair(self.patch_size)
        out["stem"] = tokens = nn.Conv(
            self.width, patch, patch, padding="VALID", name="embedding", **dtypes
        )(x)

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
            if return_attention and weights is not None:
                out["map_head/attention_weights"] = weights

        if self.representation_size is not None:
            x = nn.Dense(self.representation_size, name="pre_logits", **dtypes)(x)
            x = jnp.tanh(x)
        out["pre_logits"] = x

        out["logits"] = logits = classify(
            x, self.num_classes, bias=self.head_bias, param_dtype=self.param_dtype
        )
        return logits, out

    def _resnet(self, image: Array | np.ndarray) -> tuple[Array, Outputs]:
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        conv = functools.partial(
            StdConv, eps=self.conv_eps, eps_form=self.conv_eps_form, **dtypes
        )
        norm = functools.partial(GroupNorm, self.group_norm_eps, **dtypes)
        width = 64 * self.width_factor
        out = {}

        x = conv(width, 7, stride=2, name="conv_root")(image)
        x = nn.relu(norm(name="gn_root")(x))
        x = out["root"] = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for i, units in enumerate(self.stages):
            x, stage_out = Stage(
                units,
                width * 2**i,
                stride=1 if i == 0 else 2,
                conv=conv,
                norm=norm,
                name=f"block{i + 1}",
            )(x)
            out.update({f"stage{i + 1}/{key}": y for key, y in stage_out.items()})
        return x, out

    def _encoder(self) -> Encoder:
        grid = None
        if self.resolution is not None:
            grid = patch_grid(self.resolution, self.stride)
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
            resize_positions=self.resize_positions,
            attention=self.attention,
            scan=self.scan,
            remat=self.remat,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="Transformer",
        )

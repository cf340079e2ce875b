# SPDX-License-Identifier: Apache-2.0
"""BiT: a ResNet-v2 with group norm and standardised kernels (arXiv:1912.11370).

The baseline of the ViT paper. Its sizes are rows of `catalog.py`, its numerics rows of
`presets.py`.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from vit_jax.errors import UserError
from vit_jax.models.layers.encoder import Outputs
from vit_jax.models.layers.head import classify
from vit_jax.models.layers.patches import check_image
from vit_jax.models.layers.std_conv import EpsForm, GroupNorm, StdConv
from vit_jax.models.layers.stochastic_depth import StochasticDepth, linear_rates

PoolPadding = Literal["zero", "-inf"]


class RootBlock(nn.Module):
    """Convolution 7x7 and maximum of 3x3, both of stride 2.

    Attributes:
      width: Channels of the result.
      pool_padding: What the maximum sees around the map. No ReLU comes before it, so a
        border window without a positive number gives 0 with "zero".
      conv: Makes a convolution.
    """

    width: int
    pool_padding: PoolPadding
    conv: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: Num[Array | np.ndarray, "b h w c"]) -> Array:
        """Returns a quarter of the rows and columns, rounded up."""
        x = self.conv(self.width, 7, stride=2, padding=3, name="conv_root")(x)
        around = 0.0 if self.pool_padding == "zero" else -jnp.inf
        border = [(0, 0), (1, 1), (1, 1), (0, 0)]
        x = jnp.pad(x, border, constant_values=around)
        return nn.max_pool(x, (3, 3), (2, 2), "VALID")


class ResidualUnit(nn.Module):
    """Bottleneck unit of ResNet-v2: norm and ReLU come before each convolution.

    Attributes:
      width: Channels of the 3x3 convolution; the result has four times as many.
      stride: Of the 3x3 convolution and of the shortcut.
      drop_path_rate: Of the residual branch.
      conv: Makes a convolution.
      norm: Makes a group norm.
    """

    width: int
    stride: int
    drop_path_rate: float
    conv: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: Float[Array, "b h w c"], *, train: bool) -> Array:
        """Returns the sum of the branch and the shortcut, without a ReLU."""
        wide = 4 * self.width
        shortcut = x
        y = nn.relu(self.norm(name="gn1")(x))
        if x.shape[-1] != wide or self.stride != 1:
            shortcut = self.conv(wide, 1, stride=self.stride, name="conv_proj")(y)
        y = self.conv(self.width, 1, name="conv1")(y)
        y = nn.relu(self.norm(name="gn2")(y))
        y = self.conv(self.width, 3, stride=self.stride, padding=1, name="conv2")(y)
        y = nn.relu(self.norm(name="gn3")(y))
        y = self.conv(wide, 1, name="conv3")(y)
        return shortcut + StochasticDepth(self.drop_path_rate)(y, train=train)


class Stage(nn.Module):
    """Units of one width, the first of which may halve the map.

    Attributes:
      width: Channels of the 3x3 convolutions.
      stride: Of the first unit.
      drop_path_rates: Of each unit.
      conv: Makes a convolution.
      norm: Makes a group norm.
    """

    width: int
    stride: int
    drop_path_rates: tuple[float, ...]
    conv: Callable[..., nn.Module]
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(
        self, x: Float[Array, "b h w c"], *, train: bool
    ) -> tuple[Array, Outputs]:
        """Returns the maps, and `unit01`, ..., `output`."""
        out = {}
        for i, rate in enumerate(self.drop_path_rates):
            name = f"unit{i + 1:02d}"
            stride = self.stride if i == 0 else 1
            x = out[name] = ResidualUnit(
                self.width, stride, rate, self.conv, self.norm, name=name
            )(x, train=train)
        return x, {**out, "output": x}


class BiT(nn.Module):
    """ResNet-v2 of Big Transfer, with the parameter names of big_vision's files.

    Images may have any size. Returns `(logits, out)`. `out` holds, by name:

    - `stem` (b, h, w, c): the maps after the root block.
    - `stage1/unit01`, ... (b, h, w, c): the maps after each residual unit, and
      `stage1/output`, those after the last one. The same for every stage.
    - `normed` (b, h, w, c): the last maps after group norm and ReLU.
    - `pre_logits` (b, c): their mean.
    - `logits` (b, k), float32.

    Attributes:
      num_classes: Number of logits; 0 gives `pre_logits` as logits.
      stages: Residual units of each stage.
      width_factor: Multiplies all widths; a ResNet-50x3 has 3.
      pool_padding: What surrounds the map that the root block pools: zeros in the
        released code, nothing ("-inf") in big_vision.
      conv_eps: Epsilon of the standardised kernels.
      conv_eps_form: Whether it is added to the variance or to the deviation.
      norm_eps: Epsilon of every group norm.
      drop_path_rate: Stochastic depth of the last unit; grows linearly from 0 at the
        first. Stream `drop_path`. The paper has none.
      head_bias: First value of the head's bias; its kernel starts at 0.
      dtype: Of the computation; norms and logits are float32 in any case.
      param_dtype: Of the parameters.
    """

    num_classes: int
    stages: tuple[int, ...]
    width_factor: int = 1
    pool_padding: PoolPadding = "zero"
    conv_eps: float = 1e-10
    conv_eps_form: EpsForm = "var"
    norm_eps: float = 1e-5
    drop_path_rate: float = 0.0
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
          train: Whether stochastic depth is on.
          return_attention: Refused: there is no attention.

        Raises:
          UserError: Pixels that are integers, or attention is asked for.
        """
        if return_attention:
            raise UserError(
                "a BiT ResNet has no attention; leave return_attention out, or take a "
                "ViT or a hybrid"
            )
        check_image(image, 1)
        dtypes: dict[str, Any] = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        conv = functools.partial(
            StdConv, eps=self.conv_eps, eps_form=self.conv_eps_form, **dtypes
        )
        norm = functools.partial(GroupNorm, self.norm_eps, **dtypes)
        width = 64 * self.width_factor
        rates = iter(linear_rates(self.drop_path_rate, sum(self.stages)))
        out = {}

        root = RootBlock(width, self.pool_padding, conv, name="root_block")
        x = out["stem"] = root(image)
        for i, units in enumerate(self.stages):
            x, stage_out = Stage(
                width * 2**i,
                stride=1 if i == 0 else 2,
                drop_path_rates=tuple(next(rates) for _ in range(units)),
                conv=conv,
                norm=norm,
                name=f"block{i + 1}",
            )(x, train=train)
            out.update({f"stage{i + 1}/{key}": y for key, y in stage_out.items()})
        x = out["normed"] = nn.relu(norm(name="norm-pre-head")(x))
        x = out["pre_logits"] = jnp.mean(x, axis=(1, 2))

        out["logits"] = logits = classify(
            x, self.num_classes, bias=self.head_bias, param_dtype=self.param_dtype
        )
        return logits, out

# SPDX-License-Identifier: Apache-2.0
"""What hierarchical Transformers share: patch embedding, merging, stages.

Figure 3 (a) of arXiv:2103.14030. Sub-modules carry the names of timm.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from vit_jax.models.layers.dense import Dense
from vit_jax.models.layers.encoder import Outputs
from vit_jax.models.layers.norms import LayerNorm
from vit_jax.models.layers.pyramid import ceil_divide
from vit_jax.models.layers.remat import Remat, rematerialize
from vit_jax.models.layers.windows import Pair, pad_bottom_right

# timm cuts its normal samples at 2, that is a hundred standard deviations: nowhere.
KERNEL_INIT = nn.initializers.normal(0.02)


class PatchEmbedding(nn.Module):
    """A linear layer on each patch, and a layer norm.

    Attributes:
      width: Width of the tokens.
      patch: Height and width of a patch.
      norm_eps: Epsilon of the layer norm.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    width: int
    patch: Pair
    norm_eps: float
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(
        self, image: Float[Array | np.ndarray, "b h w c"]
    ) -> Float[Array, "b i j d"]:
        """Returns the tokens on their grid; an image is padded to whole patches."""
        rows, columns = (
            ceil_divide(side, patch) * patch
            for side, patch in zip(image.shape[1:3], self.patch, strict=True)
        )
        limit = (math.prod(self.patch) * image.shape[-1]) ** -0.5
        x = nn.Conv(
            self.width,
            self.patch,
            self.patch,
            padding="VALID",
            kernel_init=uniform(limit),
            bias_init=uniform(limit),
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="proj",
        )(pad_bottom_right(image, (rows, columns)))
        return LayerNorm(self.norm_eps, self.dtype, self.param_dtype, name="norm")(x)


class PatchMerging(nn.Module):
    """Four neighbouring tokens become one of twice the width.

    Attributes:
      norm_first: Whether the layer norm precedes the linear layer, as in V1.
      norm_eps: Epsilon of the layer norm.
      dtype: Of the computation.
      param_dtype: Of the parameters.
    """

    norm_first: bool
    norm_eps: float
    dtype: DTypeLike
    param_dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Float[Array, "b h w d"]) -> Float[Array, "b i j _"]:
        """Returns the smaller map."""
        norm = LayerNorm(self.norm_eps, self.dtype, self.param_dtype, name="norm")
        reduction = Dense(
            2 * x.shape[-1],
            use_bias=False,
            kernel_init=KERNEL_INIT,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            name="reduction",
        )
        x = merge_neighbours(x)
        return reduction(norm(x)) if self.norm_first else norm(reduction(x))


class Stage(nn.Module):
    """Patch merging, except in the first stage, and blocks.

    Attributes:
      downsample: Makes the merging from its name; None in the first stage.
      blocks: Make the blocks from their names.
      remat: What the backward pass keeps of each block.
    """

    downsample: Callable[..., nn.Module] | None
    blocks: Sequence[Callable[..., nn.Module]]
    remat: Remat = "none"

    @nn.compact
    def __call__(
        self, x: Float[Array, "b h w d"], *, train: bool, return_attention: bool
    ) -> tuple[Float[Array, "b i j _"], Outputs]:
        """Returns the map, and `block00/...` of every block."""
        out = {}
        if self.downsample is not None:
            x = self.downsample(name="downsample")(x)

        def step(block: nn.Module, x: Array) -> tuple[Array, Outputs]:
            return block(x, train=train, return_attention=return_attention)

        run = rematerialize(step, self.remat)
        for i, make in enumerate(self.blocks):
            block = make(name=f"blocks_{i}")
            x, block_out = run(block, x)
            out.update({f"block{i:02d}/{key}": y for key, y in block_out.items()})
        return x, out


def merge_neighbours(x: Float[Array, "b h w d"]) -> Float[Array, "b i j _"]:
    """Concatenates the tokens of each 2 x 2 square, [[a, b], [c, d]] as (a, c, b, d).

    A map of odd sides is padded with zeros at the bottom and right.
    """
    b, h, w, d = x.shape
    h, w = ceil_divide(h, 2), ceil_divide(w, 2)
    x = pad_bottom_right(x, (2 * h, 2 * w)).reshape(b, h, 2, w, 2, d)
    return x.transpose(0, 1, 3, 4, 2, 5).reshape(b, h, w, 4 * d)


def uniform(limit: float) -> nn.initializers.Initializer:
    """Returns an initialiser that is uniform on (-limit, limit)."""

    def init(
        key: Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32, **_: object
    ) -> Array:
        return jax.random.uniform(key, shape, dtype, -limit, limit)

    return init

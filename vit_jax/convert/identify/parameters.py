# SPDX-License-Identifier: Apache-2.0
"""Shapes of all parameters of a model, traced with few of its blocks.

Blocks of a Transformer are alike, and so are the units of a stage of a ResNet from the
second on. Tracing each of them takes seconds for the large models; one stands for all.
"""

import functools
import re
import types
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax import trees
from vit_jax.convert.identify.shapes import Shape
from vit_jax.models.axial import AxialViT
from vit_jax.models.bit import BiT
from vit_jax.models.hybrid import Hybrid
from vit_jax.models.mixer import Mixer
from vit_jax.models.swin import Swin
from vit_jax.models.swin_v2 import SwinV2
from vit_jax.models.vit import ViT

# What precedes the number of a block or unit, the number, and the rest.
_SCANNED = re.compile(r"(Transformer/encoderblock)()(/.*)")
_MIXER = re.compile(r"(MixerBlock_)(\d+)(/.*)")
_SWIN = re.compile(r"(layers_(?P<stage>\d+)/blocks_)(\d+)(/.*)")
_UNIT = re.compile(r"(block(?P<stage>\d)/unit)(\d+)(/.*)")


@functools.lru_cache(maxsize=128)
def parameter_shapes(
    model: nn.Module, image_shape: tuple[int, int, int]
) -> Mapping[str, Shape]:
    """Returns the shape of each parameter by name, without computing any.

    Args:
      model: A model of the zoo; blocks are one by one even if it stacks them.
      image_shape: (height, width, channels) of the images that it is made for.
    """
    image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    variables = jax.eval_shape(_shorter(model).init, jax.random.key(0), image)
    result: dict[str, Shape] = {}
    for name, leaf in trees.flatten(variables["params"]).items():
        result.update(_repeated(model, name, leaf.shape))
    return types.MappingProxyType(result)


def _shorter(model: nn.Module) -> nn.Module:
    """Returns the model with one block of each form."""
    if isinstance(model, ViT | AxialViT):
        return model.clone(scan=True)
    if isinstance(model, Hybrid):
        return model.clone(scan=True, stages=_cut(model.stages, 2))
    if isinstance(model, BiT):
        return model.clone(stages=_cut(model.stages, 2))
    if isinstance(model, Mixer):
        return model.clone(depth=1)
    if isinstance(model, Swin | SwinV2):
        return model.clone(depths=_cut(model.depths, _period(model)))
    return model


def _repeated(model: nn.Module, name: str, shape: Shape) -> dict[str, Shape]:
    """Returns the parameters for which one of the shorter model stands."""
    if isinstance(model, ViT | Hybrid | AxialViT) and (
        match := _SCANNED.fullmatch(name)
    ):
        before, _, after = match.groups()
        return {f"{before}_{i}{after}": shape[1:] for i in range(shape[0])}
    if isinstance(model, Mixer) and (match := _MIXER.fullmatch(name)):
        return {f"{match[1]}{i}{match[3]}": shape for i in range(model.depth)}
    if isinstance(model, Swin | SwinV2) and (match := _SWIN.fullmatch(name)):
        before, stage, block, after = match.groups()
        numbers = range(int(block), model.depths[int(stage)], _period(model))
        return {f"{before}{i}{after}": shape for i in numbers}
    if isinstance(model, BiT | Hybrid) and (match := _UNIT.fullmatch(name)):
        before, stage, unit, after = match.groups()
        if int(unit) == 2:
            numbers = range(2, model.stages[int(stage) - 1] + 1)
            return {f"{before}{i:0{len(unit)}d}{after}": shape for i in numbers}
    return {name: shape}


def _cut(depths: tuple[int, ...], most: int) -> tuple[int, ...]:
    return tuple(min(depth, most) for depth in depths)


def _period(model: Swin | SwinV2) -> int:
    """Returns after how many blocks of a stage their forms recur."""
    return (isinstance(model, SwinV2) and model.extra_norm_every) or 1

# SPDX-License-Identifier: Apache-2.0
"""Names of Google's files from before Flax linen, renamed as linen numbers them.

Old Flax counted the sub-modules of a module over all types, in the order in which they
were made (`MlpBlock_3`); linen counts each type by itself (`MlpBlock_0`). The released
files of ViT, hybrids and Mixer are that old, those of AugReg included.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

_TYPES = "LayerNorm|MultiHeadDotProductAttention|MlpBlock"
_NUMBERED = re.compile(rf"((?:.*/)?)({_TYPES})_(\d+)(/.*)")
_MIXER = {
    "token_mixing_phase_0": "token_mixing",
    "channel_mixing_phase_0": "channel_mixing",
}


def modernised(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Renames what old Flax wrote; names of linen stay as they are.

    Args:
      arrays: By slash-joined name, without a root.

    Returns:
      The same arrays, but for axes of size 1 that an old Mixer has more.
    """
    if any(name.startswith("Mixer/") for name in arrays):
        return _mixer(arrays)
    if any("/MlpBlock_3/" in name for name in arrays):
        new = renumbered(arrays)
        return {new[name]: array for name, array in arrays.items()}
    return dict(arrays)


def renumbered(names: Iterable[str]) -> dict[str, str]:
    """Counts the sub-modules of each type of each module from 0, in their order.

    Returns:
      The new name of each.
    """
    names = list(names)
    matches = {name: match for name in names if (match := _NUMBERED.fullmatch(name))}
    numbers: dict[tuple[str, str], set[int]] = {}
    for match in matches.values():
        numbers.setdefault((match[1], match[2]), set()).add(int(match[3]))

    def new(name: str) -> str:
        if name not in matches:
            return name
        parent, kind, number, rest = matches[name].groups()
        rank = sorted(numbers[parent, kind]).index(int(number))
        return f"{parent}{kind}_{rank}{rest}"

    return {name: new(name) for name in names}


def _mixer(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    new = renumbered(arrays)
    result = {}
    for old, array in arrays.items():
        name = re.sub(r"^embedding/", "stem/", new[old])
        name = re.sub(r"^Mixer/encoder_norm/", "pre_head_layer_norm/", name)
        name = re.sub(r"^Mixer/encoderblock_(\d+)/", r"MixerBlock_\1/", name)
        if match := re.fullmatch(r"(.*/)(\w+_phase_0)/(kernel|bias)([12])", name):
            block, mixing, kind, layer = match.groups()
            mixing = _MIXER.get(mixing, mixing)
            name = f"{block}{mixing}/Dense_{int(layer) - 1}/{kind}"
            array = _of_rank(array, 2 if kind == "kernel" else 1)
        result[name] = array
    return result


def _of_rank(array: np.ndarray, rank: int) -> np.ndarray:
    """Drops axes of size 1, the first ones, as far as there are too many axes."""
    while array.ndim > rank and 1 in array.shape:
        array = array.squeeze(array.shape.index(1))
    return array

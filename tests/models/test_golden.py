# SPDX-License-Identifier: Apache-2.0
"""Names, shapes and first values of tiny models equal the text of tests/golden.

The numbers there are arithmetic (Xavier limits, 1 / sqrt(inputs)), not samples.
"""

import ast
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.models import build_model

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
SWIN = {
    "width": 64,
    "depths": (2, 1),
    "num_heads": (2, 4),
    "window_size": 2,
    "resolution": 16,
}
# What each file is about: a name, fields that its sections add to, side of the image.
MODELS = {
    "vit": (
        "ViT-Ti/4",
        {"patch_size": 4, "width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64},
        8,
    ),
    "hybrid": (
        "R26+ViT-S/32",
        {"width": 32, "depth": 1, "num_heads": 4, "mlp_dim": 64},
        16,
    ),
    "axial": (
        "Axial-ViT-Ti/4",
        {"width": 32, "depth": 1, "num_heads": 4, "mlp_dim": 64},
        8,
    ),
    "bit": ("BiT-R50x1", {}, 16),
    "mixer": (
        "Mixer-S/4",
        {"width": 32, "depth": 2, "token_mlp_dim": 8, "mlp_dim": 64},
        8,
    ),
    "swin": ("Swin-T", SWIN, 16),
    "swin_v2": ("SwinV2-T", SWIN, 16),
}


def sections(family):
    """Yields the family, the fields of each `[...]` header and the lines below it."""
    text = (GOLDEN / f"{family}.txt").read_text()
    for part in text.split("\n[")[1:]:
        header, *lines = part.strip().splitlines()
        call = ast.parse(f"f({header.rstrip(']')})", mode="eval").body
        fields = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        name = f"{family}: {header.rstrip(']')}"
        yield pytest.param(family, fields, lines, id=name)


def check_values(name, values, kind, number):
    if kind == "constant":
        np.testing.assert_array_equal(values, np.float32(number), err_msg=name)
        return
    std = number / math.sqrt(3) if kind == "uniform" else number
    # Five standard errors of the spread of so many normal samples; the other two
    # distributions have lighter tails.
    tolerance = 5 / math.sqrt(2 * values.size)
    assert abs(values.std() / std - 1) < tolerance, name
    assert abs(values.mean()) < 5 * std / math.sqrt(values.size), name
    largest = np.abs(values).max()
    if kind == "uniform":
        assert 0.9 * number < largest <= number * 1.0001, name
    elif values.size > 100:
        assert largest > 1.8 * std, name


@pytest.mark.parametrize(
    ("family", "fields", "lines"),
    [section for family in MODELS for section in sections(family)],
)
def test_parameters_are_the_golden_ones(family, fields, lines):
    name, sizes, side = MODELS[family]
    model = build_model(name, num_classes=5, **sizes, **fields)
    image = jnp.zeros((1, side, side, 3))
    params = jax.jit(model.init)(jax.random.key(0), image)["params"]
    flat = trees.flatten(jax.device_get(params))
    expected = {}
    for line in lines:
        match = re.fullmatch(r"(\S+) (\(.*\)) (\w+) (\S+)", line)
        expected[match[1]] = (ast.literal_eval(match[2]), match[3], float(match[4]))
    assert {name: leaf.shape for name, leaf in flat.items()} == {
        name: shape for name, (shape, _, _) in expected.items()
    }
    for name, (_, kind, number) in expected.items():
        check_values(name, flat[name], kind, number)

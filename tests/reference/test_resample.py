# SPDX-License-Identifier: Apache-2.0
"""Resizing of tables in torch, JAX, timm and TensorFlow's formula for patch kernels."""

import jax
import numpy as np
import pytest

from vit_jax.resample import resize_grid, resize_patch_kernel

pytestmark = pytest.mark.reference

torch = pytest.importorskip("torch")

GRIDS = [((14, 14), (24, 24)), ((37, 37), (16, 16)), ((9, 13), (12, 8))]
TORCH = {
    "bilinear": {"mode": "bilinear"},
    "bicubic": {"mode": "bicubic"},
    "bicubic-antialias": {"mode": "bicubic", "antialias": True},
    "zoom": {"mode": "bilinear", "align_corners": True},
}


def draw(grid, d=3):
    return np.random.default_rng(0).normal(size=(*grid, d)).astype(np.float32)


@pytest.mark.parametrize(("old", "new"), GRIDS)
@pytest.mark.parametrize("method", TORCH)
def test_methods_are_those_of_torch(method, old, new):
    table = draw(old)
    chw = torch.from_numpy(table.transpose(2, 0, 1)[None].copy())
    expected = torch.nn.functional.interpolate(chw, new, **TORCH[method])
    np.testing.assert_allclose(
        resize_grid(table, new, method),
        expected[0].numpy().transpose(1, 2, 0),
        atol=1e-5,
    )


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_linear_is_that_of_jax(old, new):
    table = draw(old)
    expected = jax.image.resize(table, (*new, 3), "linear")
    np.testing.assert_allclose(resize_grid(table, new, "linear"), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of timm and its torch
@pytest.mark.parametrize(("old", "new"), [(7, 12), (12, 7), (7, 8)])
def test_geometric_is_that_of_timm(timm, old, new):
    from timm.layers import resize_rel_pos_bias_table

    side, other = 2 * old - 1, 2 * new - 1
    table = draw((side, side))
    expected = resize_rel_pos_bias_table(
        torch.from_numpy(table.reshape(side * side, 3)), (new, new), (other**2, 3)
    )
    np.testing.assert_allclose(
        resize_grid(table, (other, other), "geometric").reshape(-1, 3),
        expected.numpy(),
        atol=1e-5,
    )


@pytest.mark.parametrize(("old", "new"), [((8, 8), (16, 16)), ((16, 16), (10, 12))])
def test_patch_kernels_are_those_of_timm(timm, old, new):
    from timm.layers import resample_patch_embed

    kernel = np.random.default_rng(0).normal(size=(*old, 3, 5)).astype(np.float32)
    expected = resample_patch_embed(
        torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy()),
        list(new),
        interpolation="bilinear",
        antialias=False,
    )
    np.testing.assert_allclose(
        resize_patch_kernel(kernel, new),
        expected.numpy().transpose(2, 3, 1, 0),
        atol=1e-3,
    )

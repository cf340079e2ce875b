# SPDX-License-Identifier: Apache-2.0
"""What trained weights show, from files that are not part of the project.

VIT_JAX_QUICKSTART names the workdir of a run of configs/quickstart.py, VIT_JAX_DINOV2
the folder that tests/models/test_real_weights.py describes.
"""

import os

import numpy as np
import pytest

from vit_jax.convert import load_checkpoint
from vit_jax.data.pixels import preprocess
from vit_jax.data.sources import open_source
from vit_jax.plots import embeddings, first_layer
from vit_jax.plots.opened import open_checkpoint

QUICKSTART = os.environ.get("VIT_JAX_QUICKSTART")
DINOV2 = os.environ.get("VIT_JAX_DINOV2")


@pytest.mark.skipif(QUICKSTART is None, reason="VIT_JAX_QUICKSTART names no run")
def test_rollout_of_the_quickstart_lies_on_the_digit():
    opened = open_checkpoint(load_checkpoint(str(QUICKSTART)))
    pixels = open_source("bundled:mnist", "test").read(np.arange(1000))
    inputs = np.stack([preprocess(np.asarray(each), opened.ops) for each in pixels])
    above = 0
    for weights, image in zip(opened.rollout(inputs), inputs[..., 0], strict=True):
        # A patch gives each of its 49 pixels the same.
        by_pixel = np.kron(weights, np.ones((7, 7))) / 49
        rows, columns = (np.flatnonzero((image > -0.9).any(axis)) for axis in (1, 0))
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        above += by_pixel[box].sum() > by_pixel[box].size / 28**2
    assert above >= 900


@pytest.mark.skipif(DINOV2 is None, reason="VIT_JAX_DINOV2 names no folder")
def test_positions_of_dinov2_are_most_like_their_neighbours():
    file = f"{DINOV2}/vit_s14_google_fp16.npz"
    opened = open_checkpoint(load_checkpoint(file, "dinov2"))
    table, grid = first_layer.positions(opened)
    assert grid == (37, 37)
    cosines = embeddings.similarity(table, grid)
    assert embeddings.nearest_are_neighbours(cosines) == 1.0

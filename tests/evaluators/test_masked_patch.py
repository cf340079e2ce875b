# SPDX-License-Identifier: Apache-2.0
"""The questions about a split are the same ones in every evaluation."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluators.feeds import feed
from vit_jax.evaluators.masked_patch import Evaluator
from vit_jax.evaluators.subject import Subject
from vit_jax.masked_patch import COLOURS, build_masked_patches, draw_corruption
from vit_jax.models import build_model

SIZES = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16}
IMAGES = np.random.default_rng(0).integers(0, 256, (11, 8, 8, 3), np.uint8)
UNLABELLED = np.full(11, -1, np.int32)


def setting(target: str) -> tuple[Subject, Any]:
    """A model with random weights and what it predicts."""
    asked = build_masked_patches(
        target=target,
        patch_size=(4, 4),
        black=(0.0, 0.0, 0.0),
        white=(255.0, 255.0, 255.0),
    )
    model = build_model("ViT-Ti/4", num_classes=0, patch_outputs=asked.outputs, **SIZES)
    image = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda s: rng.normal(0, 0.1, s.shape).astype("f"), shapes)
    return Subject(model, params, (8, 8, 3)), asked


def run(subject: Subject, asked: Any, **fields: Any) -> dict[str, float]:
    split = feed(IMAGES, UNLABELLED, **fields)
    return dict(Evaluator(subject, asked, split).run(subject.shapes))


def test_the_numbers_are_means_over_images_asked_one_by_one():
    subject, asked = setting("mean_colour")
    found = run(subject, asked, batch_size=4)
    losses, shares = [], []
    apply = jax.jit(
        lambda params, image, source: subject.model.apply(
            {"params": params}, image, patch_source=source
        )[1]["patch_predictions"]
    )
    for row, image in enumerate(IMAGES):
        key = jax.random.fold_in(jax.random.key(0), row)[None]
        source, corrupted = draw_corruption(key, 4, 0.5)
        predictions = np.asarray(
            apply(subject.shapes, image[None].astype("f"), source)
        )[0]
        log_p = predictions - np.log(np.exp(predictions).sum(-1, keepdims=True))
        means = image.reshape(2, 4, 2, 4, 3).mean(axis=(1, 3)).reshape(4, 3)
        classes = (means // 32).astype(int) @ [64, 8, 1]
        where = np.flatnonzero(corrupted[0])
        assert len(where) == 2
        losses.append(-log_p[where, classes[where]].mean())
        shares.append((predictions.argmax(-1) == classes)[where].mean())
    assert found["examples"] == 11
    assert found["accuracy"] == pytest.approx(np.mean(shares), abs=1e-6)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert COLOURS == 512


@pytest.mark.parametrize("fields", [{"batch_size": 11}, {"devices": 8}])
def test_batch_size_and_devices_have_no_influence(fields: dict[str, Any]):
    subject, asked = setting("pixels")
    wanted = run(subject, asked, batch_size=4)
    found = run(subject, asked, **fields)
    # A regression has no accuracy.
    assert list(found) == ["loss", "examples"]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-6)

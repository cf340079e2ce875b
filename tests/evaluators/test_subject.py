# SPDX-License-Identifier: Apache-2.0
"""Named features of a frozen model."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.evaluators.feeds import feed
from vit_jax.errors import UserError
from vit_jax.evaluators.gathering import gather
from vit_jax.evaluators.subject import Subject
from vit_jax.models import build_model

TINY = {"width": 8, "depth": 2, "num_heads": 2, "mlp_dim": 8, "num_classes": 3}
IMAGE = np.random.default_rng(1).normal(size=(3, 8, 12, 3)).astype(np.float32)


def make(**fields: Any) -> Subject:
    model = build_model("ViT-Ti/4", **{**TINY, **fields})
    shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGE)["params"]
    return Subject(model, shapes, (8, 12, 3))


def outputs_and_features(subject: Subject, *names: str) -> tuple[dict, list]:
    """What the plain model says, and named features, for random weights."""
    draw = np.random.default_rng(0).normal
    params = jax.tree.map(
        lambda leaf: draw(scale=0.3, size=leaf.shape).astype(np.float32),
        subject.shapes,
    )
    plain = build_model("ViT-Ti/4", **TINY | {"pool": subject.model.pool})
    plain = plain.clone(num_registers=subject.model.num_registers)
    functions = [subject.features(name) for name in names]

    @jax.jit
    def run(params: Any, image: jax.Array) -> tuple[dict, list]:
        out = plain.apply({"params": params}, image)[1]
        return out, [function(params, image) for function in functions]

    return jax.device_get(run(params, IMAGE))


def test_features_are_named_outputs_in_evaluation_mode_and_pooled_as_asked():
    subject = make(num_registers=2, dropout_rate=0.5, drop_path_rate=0.5)
    names = ["block01/output", "block01/output:cls", "block01/output:mean"]
    out, found = outputs_and_features(subject, "pre_logits", "stem", *names)
    tokens = out["block01/output"]
    assert tokens.shape == (3, 1 + 2 + 6, 8)
    expected = [
        out["pre_logits"],
        out["stem"].mean((1, 2)),
        tokens[:, 0],
        tokens[:, 0],
        tokens[:, 3:].mean(1),
    ]
    for ours, plain in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, plain, atol=1e-5)


def test_without_a_class_token_it_is_the_mean_over_the_patches():
    subject = make(pool="mean", num_registers=2)
    out, (found,) = outputs_and_features(subject, "block00/output")
    expected = out["block00/output"][:, 2:].mean(1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(UserError, match="block00/output has no class token; take it"):
        subject.features("block00/output:cls")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prelogits", "unknown feature 'prelogits'; did you mean 'pre_logits'"),
        ("block02/output", "did you mean 'block0[01]/output'"),
        ("block00/output:max", "unknown pooling of a feature 'max'"),
        ("stem:cls", "stem has no class token"),
    ],
)
def test_what_the_model_does_not_have_is_named(name, message):
    with pytest.raises(UserError, match=message):
        make().features(name)


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("batch_size", [3, 4, 64])
def test_every_example_is_gathered_once_in_order(batch_size: int, devices: int):
    images = np.arange(10, dtype=np.uint8)[:, None, None, None]
    images = np.broadcast_to(images, (10, 2, 2, 3))
    labels = np.arange(10, dtype=np.int32)[::-1].copy()
    examples = feed(images, labels, batch_size=batch_size, devices=devices)

    def per_example(params: Any, batch: Any) -> dict[str, jax.Array]:
        del params
        return {"level": batch["image"].mean((1, 2)), "label": batch["label"]}

    found = gather(jax.jit(per_example), {}, examples.batches(), 10)
    np.testing.assert_allclose(found["level"], np.arange(10)[:, None] * np.ones(3))
    np.testing.assert_array_equal(found["label"], labels)


def test_a_pass_that_leaves_examples_out_is_a_bug():
    batch = {"mask": jnp.ones(2), "row": jnp.arange(2)}
    with pytest.raises(RuntimeError, match="1 of 3 examples were not reached"):
        gather(lambda params, batch: {}, {}, iter([batch]), 3)

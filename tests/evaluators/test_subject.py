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


def make(name: str = "ViT-Ti/4", **fields: Any) -> tuple[Subject, Any, jax.Array]:
    model = build_model(name, **{**TINY, **fields})
    image = jax.random.normal(jax.random.key(1), (3, 8, 12, 3))
    params = jax.jit(model.init)(jax.random.key(0), image[:1])["params"]
    return Subject(model, params, (8, 12, 3)), params, image


def test_features_are_named_outputs_in_evaluation_mode():
    subject, params, image = make(dropout_rate=0.5, drop_path_rate=0.5)
    plain = build_model("ViT-Ti/4", **TINY)
    expected = jax.jit(plain.apply)({"params": params}, image)[1]["pre_logits"]
    found = jax.jit(subject.features("pre_logits"))(params, image)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_tokens_are_pooled_as_asked():
    subject, params, image = make(num_registers=2)
    out = jax.jit(subject.apply)(params, image)[1]
    tokens = np.asarray(out["block01/output"])
    assert tokens.shape == (3, 1 + 2 + 6, 8)
    for name, expected in [
        ("block01/output", tokens[:, 0]),
        ("block01/output:cls", tokens[:, 0]),
        ("block01/output:mean", tokens[:, 3:].mean(1)),
        ("stem", np.asarray(out["stem"]).mean((1, 2))),
    ]:
        found = jax.jit(subject.features(name))(params, image)
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=name)


def test_without_a_class_token_it_is_the_mean_over_the_patches():
    subject, params, image = make(pool="mean", num_registers=2)
    tokens = np.asarray(jax.jit(subject.apply)(params, image)[1]["block00/output"])
    found = jax.jit(subject.features("block00/output"))(params, image)
    np.testing.assert_allclose(found, tokens[:, 2:].mean(1), atol=1e-6)
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
        make()[0].features(name)


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

    found = gather(per_example, {}, examples.batches(), 10)
    np.testing.assert_allclose(found["level"], np.arange(10)[:, None] * np.ones(3))
    np.testing.assert_array_equal(found["label"], labels)


def test_a_pass_that_leaves_examples_out_is_a_bug():
    batch = {"mask": jnp.ones(2), "row": jnp.arange(2)}
    with pytest.raises(RuntimeError, match="1 of 3 examples were not reached"):
        gather(lambda params, batch: {}, {}, iter([batch]), 3)

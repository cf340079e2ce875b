# SPDX-License-Identifier: Apache-2.0
"""The patches that a ViT predicts, and what it sees of corrupted ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.models.layers.masking import replace_patches

SIZES = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
# Of a grid of 2x3: patch 0 stays, 1 is masked, 2 shows patch 3.
SOURCE = jnp.array([[0, -1, 3, 3, 4, 5]])


def vit(**fields: Any):
    given = {"num_classes": 0, "patch_outputs": 5, **SIZES, **fields}
    return build_model("ViT-Ti/4", **given)


@pytest.fixture(scope="module")
def trained() -> tuple[Any, Any, jax.Array]:
    """A model with random weights, and one image."""
    rng = np.random.default_rng(0)
    model = vit()
    image = jnp.asarray(rng.uniform(-1, 1, (1, 8, 12, 3)), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype), shapes
    )
    run = jax.jit(
        lambda params, image, source: model.apply(
            {"params": params}, image, patch_source=source
        )[1]
    )
    return params, run, image


def changed(image: jax.Array, patch: int) -> jax.Array:
    """The image with other pixels in one patch."""
    y, x = divmod(patch, 3)
    return image.at[:, 4 * y : 4 * y + 4, 4 * x : 4 * x + 4].add(0.5)


def test_every_patch_is_predicted_from_its_encoded_token(trained):
    params, run, image = trained
    out = run(params, image, SOURCE)
    head = params["patch_head"]
    expected = out["encoded"][:, 1:] @ head["kernel"] + head["bias"][None, None]
    np.testing.assert_allclose(out["patch_predictions"], expected, rtol=1e-5, atol=1e-5)
    assert out["patch_predictions"].shape == (1, 6, 5)
    # The class token is there, as in fine-tuning, and no head for classes.
    assert out["logits"].shape == (1, 16)
    assert "head" not in params


@pytest.mark.parametrize(
    ("patch", "seen"), [(0, True), (1, False), (2, False), (3, True), (5, True)]
)
def test_pixels_are_seen_unless_the_patch_shows_another_embedding(
    trained, patch: int, seen: bool
):
    params, run, image = trained
    before = run(params, image, SOURCE)["patch_predictions"]
    after = run(params, changed(image, patch), SOURCE)["patch_predictions"]
    assert np.array_equal(before, after) != seen


def test_masked_and_replaced_patches_show_what_the_source_says(rng):
    tokens = rng.normal(size=(2, 2, 3, 4)).astype(np.float32)
    mask = np.arange(4, dtype=np.float32)
    source = np.array([[0, -1, 3, 3, 4, 5], [-1, -1, 0, 3, 4, 2]])
    found = replace_patches(*map(jnp.asarray, (tokens, mask, source)))
    flat = tokens.reshape(2, 6, 4)
    expected = [
        [mask if place < 0 else flat[b, place] for place in row]
        for b, row in enumerate(source)
    ]
    np.testing.assert_array_equal(np.reshape(found, (2, 6, 4)), expected)


def test_positions_are_added_after_the_replacement(trained):
    params, run, image = trained
    everything = jnp.full((1, 6), -1)
    out = run(params, image, everything)
    # With one embedding everywhere, only positions tell the patches apart.
    assert len(np.unique(np.asarray(out["patch_predictions"])[0], axis=0)) == 6
    flat = trees.flatten(params)
    flat["Transformer/posembed_input/pos_embedding"] *= 0
    out = run(trees.unflatten(flat), image, everything)
    predictions = np.asarray(out["patch_predictions"])
    np.testing.assert_allclose(
        predictions, np.broadcast_to(predictions[:, :1], predictions.shape), atol=1e-5
    )


def test_the_stem_and_an_image_without_a_source_are_not_corrupted(trained):
    params, run, image = trained
    own = run(params, image, jnp.arange(6)[None])
    model = vit()
    _, plain = jax.jit(model.apply)({"params": params}, image)
    np.testing.assert_allclose(
        own["patch_predictions"], plain["patch_predictions"], rtol=1e-5, atol=1e-6
    )
    corrupted = run(params, image, SOURCE)
    np.testing.assert_allclose(corrupted["stem"], plain["stem"], rtol=1e-5, atol=1e-6)


def test_only_masked_patches_teach_the_learned_embedding(trained):
    params, run, image = trained

    def total(mask: jax.Array, source: jax.Array) -> jax.Array:
        out = run({**params, "mask_embedding": mask}, image, source)
        return jnp.square(out["patch_predictions"]).sum()

    gradient = jax.jit(jax.grad(total))
    mask = params["mask_embedding"]
    assert np.abs(gradient(mask, SOURCE)).min() > 0
    np.testing.assert_array_equal(gradient(mask, jnp.arange(6)[None]), np.zeros(16))


@pytest.mark.parametrize(
    "fields",
    [
        {"pool": "mean"},
        {"pool": "map", "num_registers": 2},
        {"scan": True, "remat": "full"},
        {"distillation": True, "positions": "rotary2d"},
        {"num_classes": 3},
    ],
)
def test_every_kind_of_vit_predicts_as_many_patches(fields: dict[str, Any]):
    model = vit(**fields)
    image = jnp.zeros((2, 8, 12, 3))
    source = jnp.zeros((2, 6), jnp.int32)

    def run(key: jax.Array) -> Any:
        params = model.init(key, image)
        return params, model.apply(params, image, patch_source=source)

    params, (logits, out) = jax.eval_shape(run, jax.random.key(0))
    assert out["patch_predictions"].shape == (2, 6, 5)
    assert logits.shape == (2, fields.get("num_classes", 16))
    assert params["params"]["mask_embedding"].shape == (16,)


def test_a_source_without_a_head_for_patches_is_refused():
    model = vit(patch_outputs=0)
    with pytest.raises(UserError, match="predicts no patches; set patch_outputs"):
        jax.eval_shape(
            lambda: model.init(
                jax.random.key(0), jnp.zeros((1, 8, 12, 3)), patch_source=SOURCE
            )
        )


def test_patches_that_nothing_normalises_are_refused():
    model = vit(pool="mean", pool_norm="after")
    with pytest.raises(UserError, match="pool_norm is 'after'; set pool_norm"):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8, 12, 3)))

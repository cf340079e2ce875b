# SPDX-License-Identifier: Apache-2.0
"""The contract of the zoo: every row of the catalogue, one tiny model per family."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import FAMILIES, build_model, catalog, list_models, presets

SIZES = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
MIXER = {"width": 16, "depth": 1, "token_mlp_dim": 8, "mlp_dim": 32}
SWIN = {
    "width": 16,
    "depths": (1, 1),
    "num_heads": (2, 2),
    "patch_size": 2,
    "window_size": 2,
    "resolution": 8,
}
TINY = {
    "vit": ("ViT-Ti/4", SIZES),
    "hybrid": ("R26+ViT-S/32", {**SIZES, "stages": (1,)}),
    "bit": ("BiT-R50x1", {"stages": (1,)}),
    "axial-vit": ("Axial-ViT-Ti/4", SIZES),
    "mixer": ("Mixer-S/4", MIXER),
    "swin": ("Swin-T", SWIN),
    "swin-v2": ("SwinV2-T", SWIN),
}
# What makes training random in a family.
DROPS = {"dropout_rate": 0.5, "drop_path_rate": 0.5}
RATES = {
    **{
        family: {**DROPS, "depth": 2}
        for family in ("vit", "hybrid", "axial-vit", "mixer")
    },
    "bit": {"drop_path_rate": 0.5, "stages": (2,)},
    "swin": DROPS,
    "swin-v2": DROPS,
}
WITHOUT_ATTENTION = ("bit", "mixer")
# Parameters that a later layer ignores: a softmax what all scores of a query have in
# common, a layer norm what all channels of a token have.
IGNORED = ("key/bias", "token_mixing/Dense_1/bias")


def tiny(family, **overrides):
    name, sizes = TINY[family]
    fields = {"num_classes": 3, **sizes, **overrides}
    return build_model(name, **fields)


def images(size=8, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.uniform(-1, 1, (batch, size, size, 3)), jnp.float32)


def random_params(model, image):
    """Parameters of which none is zero, so that nothing hides behind a zero head.

    They are drawn without running (and so without compiling) the initialisation.
    """
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def draw(name, leaf):
        values = rng.normal(1.0 if name.endswith("scale") else 0.0, 0.2, leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    return trees.map_with_name(draw, shapes)


@pytest.fixture(scope="module")
def evaluated(as_users):
    """Gives parameters, logits and outputs of tiny models, compiled once for all."""

    @functools.cache
    def evaluated(family, **overrides):
        model, image = tiny(family, **overrides), images()
        params = random_params(model, image)
        apply = jax.jit(model.apply, compiler_options=as_users)
        return params, *apply({"params": params}, image)

    return evaluated


def shapes_of(name, num_classes=1000, side=224, **overrides):
    model = build_model(name, num_classes=num_classes, **overrides)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    return jax.eval_shape(model.init, jax.random.key(0), image)["params"]


def count(shapes):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize("name", list_models())
def test_parameter_count_of_every_row_is_the_published_one(name):
    variant = catalog.find(name)
    assert count(shapes_of(name, side=variant.resolution)) == variant.parameters


# Counts of paper-sized models without a class token, and of the ImageNet-21k files
# with a representation layer (google-research/vision_transformer, models_test.py).
@pytest.mark.parametrize(
    ("name", "overrides", "parameters"),
    [
        ("ViT-S/16", {"pool": "mean"}, 22_049_896),
        ("ViT-S/32", {"pool": "mean"}, 22_878_184),
        ("ViT-B/16", {"pool": "mean"}, 86_566_120),
        ("ViT-B/32", {"pool": "mean"}, 88_222_696),
        (
            "ViT-B/16",
            {"num_classes": 21_843, "representation_size": 768},
            103_186_515,
        ),
        # big_vision: no class row; timm: headless, and SigLIP with its MAP head.
        ("ViT-B/16", {"preset": "big-vision-vit"}, 86_566_888),
        ("ViT-B/16", {"num_classes": 0}, 85_798_656),
        ("ViT-B/16", {"num_classes": 0, "preset": "siglip"}, 92_884_224),
        # microsoft/Swin-Transformer: with absolute positions, and ImageNet-22k.
        ("Swin-T", {"absolute_positions": True}, 28_589_410),
        ("Swin-T", {"num_classes": 21_841}, 44_315_083),
        ("Swin-L", {"num_classes": 21_841}, 228_565_093),
    ],
)
def test_parameter_count_of_other_forms_is_the_published_one(
    name, overrides, parameters
):
    assert count(shapes_of(name, **overrides)) == parameters


@pytest.mark.parametrize(
    "name", [n for n in list_models() if n.startswith(("ViT", "Axial-ViT"))]
)
def test_published_count_is_the_arithmetic_of_the_sizes(name):
    variant = catalog.find(name)
    d, f, p = (variant.fields[key] for key in ("width", "mlp_dim", "patch_size"))
    patches = (variant.resolution // p) ** 2
    axial = name.startswith("Axial")  # two of each layer, and no class token
    tokens = patches if axial else 1 + patches + 1  # its place, and itself
    stem = 3 * p * p * d + d + tokens * d
    block = 2 * 2 * d + 4 * (d * d + d) + (d * f + f) + (f * d + d)
    depth = variant.fields["depth"] * (2 if axial else 1)
    assert variant.parameters == stem + depth * block + 2 * d + (d + 1) * 1000


def test_every_row_has_a_family_a_preset_and_a_count():
    for variant in catalog.VARIANTS:
        assert variant.family in FAMILIES
        assert presets.find(variant.preset).family == variant.family
        assert variant.parameters
        assert variant.source


def test_names_of_the_catalogue_are_unique():
    assert len(set(list_models())) == len(list_models())


def test_every_family_has_a_tiny_model_here():
    assert set(TINY) == set(FAMILIES)


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def test_logits_and_required_outputs_are_finite_and_float32(family, evaluated):
    _, logits, out = evaluated(family, dtype="float32")
    assert logits.shape == (2, 3)
    assert logits.dtype == jnp.float32
    assert {"stem", "pre_logits", "logits"} <= set(out)
    assert all(isinstance(leaf, jax.Array) for leaf in out.values())
    assert all(np.isfinite(leaf).all() for leaf in out.values())
    np.testing.assert_array_equal(out["logits"], logits)


def test_parameters_are_the_only_variables(family):
    variables = jax.eval_shape(tiny(family).init, jax.random.key(0), images())
    assert set(variables) == {"params"}


def test_zero_classes_give_the_features_and_no_head(family):
    model, image = tiny(family, num_classes=0), images()
    params = random_params(model, image)
    logits, out = jax.jit(model.apply)({"params": params}, image)
    assert "head" not in params
    np.testing.assert_array_equal(logits, out["pre_logits"])


def test_every_parameter_gets_a_gradient(family):
    model, image = tiny(family), images()
    params = random_params(model, image)

    def loss(params):
        logits, _ = model.apply({"params": params}, image)
        return jnp.sum(logits * jnp.asarray([1.0, -2.0, 0.5])[None])

    grads = trees.flatten(jax.jit(jax.grad(loss))(params))
    for name, grad in grads.items():
        largest = float(jnp.abs(grad).max())
        if name.endswith(IGNORED):
            assert largest < 1e-5, name
        else:
            assert largest > 1e-4, name


def test_evaluation_is_deterministic_and_training_is_not(family):
    model = tiny(family, **RATES[family])
    image = images()
    params = random_params(model, image)
    apply = jax.jit(model.apply, static_argnames="train")

    def train_logits(seed):
        dropout, drop_path = jax.random.split(jax.random.key(seed))
        rngs = {"dropout": dropout, "drop_path": drop_path}
        return apply({"params": params}, image, train=True, rngs=rngs)[0]

    first, _ = apply({"params": params}, image, train=False)
    again, _ = apply({"params": params}, image, train=False)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(train_logits(0), train_logits(0))
    assert np.abs(train_logits(0) - train_logits(1)).max() > 1e-3
    assert np.abs(train_logits(0) - first).max() > 1e-3


def test_training_without_rates_needs_no_random_stream_and_equals_evaluation(
    family, evaluated, as_users
):
    params, expected, _ = evaluated(family, dtype="float32")
    train = functools.partial(tiny(family).apply, train=True)
    logits, _ = jax.jit(train, compiler_options=as_users)({"params": params}, images())
    np.testing.assert_array_equal(logits, expected)


def test_bfloat16_keeps_parameters_and_logits_in_float32(family, evaluated):
    params, logits, out = evaluated(family, dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype("float32")}
    assert logits.dtype == jnp.float32
    assert out["stem"].dtype == out["pre_logits"].dtype == jnp.bfloat16
    same, full, _ = evaluated(family, dtype="float32")
    jax.tree.map(np.testing.assert_array_equal, params, same)
    # bfloat16 has 8 bits: a few roundings of 2^-9 each, on logits of size 1.
    assert 0 < np.abs(logits - full).max() < 0.1


def test_parameter_dtype_is_a_setting_of_its_own(family):
    model = tiny(family, param_dtype="bfloat16")
    shapes = jax.eval_shape(model.init, jax.random.key(0), images())["params"]
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("bfloat16")}
    logits, _ = jax.eval_shape(model.apply, {"params": shapes}, images())
    assert logits.dtype == jnp.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", sorted(set(TINY) - set(WITHOUT_ATTENTION)))
def test_asking_for_attention_does_not_change_the_logits(
    family, dtype, evaluated, as_users
):
    params, plain, without = evaluated(family, dtype=dtype)
    ask = functools.partial(tiny(family, dtype=dtype).apply, return_attention=True)
    apply = jax.jit(ask, compiler_options=as_users)
    asked, out = apply({"params": params}, images())
    np.testing.assert_array_equal(plain, asked)
    extra = set(out) - set(without)
    assert extra
    for name in extra:
        assert name.endswith("attention_weights")
        np.testing.assert_allclose(out[name].sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("family", WITHOUT_ATTENTION)
def test_attention_is_refused_where_there_is_none(family):
    with pytest.raises(UserError, match=r"has no attention; .* take a ViT"):
        tiny(family).init(jax.random.key(0), images(), return_attention=True)


def test_model_maps_over_a_leading_axis(family, evaluated):
    params, expected, _ = evaluated(family, dtype="float32")

    def logits(image):
        return tiny(family).apply({"params": params}, image)[0]

    mapped = jax.jit(jax.vmap(logits))(images().reshape(2, 1, 8, 8, 3))
    np.testing.assert_allclose(mapped.reshape(2, 3), expected, atol=1e-5, rtol=1e-5)


def test_integer_pixels_are_refused(family):
    image = np.zeros((1, 8, 8, 3), np.uint8)
    with pytest.raises(UserError, match=r"dtype uint8.*value_range\(-1, 1\)"):
        tiny(family).init(jax.random.key(0), image)


# What build_model makes of names, presets and overrides.


def test_any_patch_size_goes_with_a_size_of_vit_axial_vit_or_mixer():
    model = build_model("ViT-B/20", num_classes=10)
    assert (model.width, model.patch_size) == (768, 20)
    model = build_model("Axial-ViT-L/20", num_classes=10)
    assert (model.width, model.patch_size) == (1024, 20)
    model = build_model("Mixer-B/20", num_classes=10)
    assert (model.width, model.patch_size) == (768, 20)


def test_overrides_beat_the_preset_and_the_preset_beats_the_row():
    model = build_model("ViT-B/16", num_classes=10)
    assert (model.gelu, model.norm_eps) == ("tanh", 1e-6)
    model = build_model("ViT-B/16", num_classes=10, preset="hf-vit")
    assert (model.gelu, model.norm_eps) == ("erf", 1e-12)
    model = build_model(
        "ViT-B/16", num_classes=10, preset="hf-vit", gelu="tanh", depth=3
    )
    assert (model.gelu, model.norm_eps, model.depth) == ("tanh", 1e-12, 3)


def test_lists_of_a_config_become_tuples():
    model = build_model("ViT-B/16", num_classes=10, patch_size=[16, 8])
    assert model.patch_size == (16, 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ViT-B_16", "unknown model 'ViT-B_16'; did you mean 'ViT-B/16'"),
        ("ViT-Q/16", "unknown model 'ViT-Q/16'; did you mean"),
        ("ViT-B/0", "unknown model 'ViT-B/0'; did you mean"),
        ("vit-l/16", "unknown model 'vit-l/16'; did you mean 'ViT-L/16'"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest(name, message):
    with pytest.raises(UserError, match=message):
        build_model(name, num_classes=10)


def test_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'google-vit'"):
        build_model("ViT-B/16", num_classes=10, preset="googlevit")


@pytest.mark.parametrize(
    ("field", "hint"),
    [("dropout", "dropout_rate"), ("hidden_width", "width"), ("parent", None)],
)
def test_unknown_field_is_refused_with_the_nearest(field, hint):
    hint = f".*did you mean.*'{hint}'" if hint else ""
    with pytest.raises(UserError, match=f"unknown model field '{field}'{hint}"):
        build_model("ViT-B/16", num_classes=10, **{field: 0.1})


def test_value_outside_the_choices_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="unknown pool 'means'; did you mean 'mean'"):
        build_model("ViT-B/16", num_classes=10, pool="means")


def test_preset_of_another_family_is_refused(monkeypatch):
    other = dataclasses.replace(presets.find("google-vit"), family="mixer")
    monkeypatch.setattr(presets, "PRESETS", {"mixer": other})
    with pytest.raises(UserError, match="'mixer' is for the family 'mixer'"):
        build_model("ViT-B/16", num_classes=10, preset="mixer")

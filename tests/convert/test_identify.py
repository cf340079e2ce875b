# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from vit_jax.convert.identify import identify
from vit_jax.convert.identify.parameters import parameter_shapes
from vit_jax.errors import UserError
from vit_jax.models import build_model, catalog, list_models

TINY = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
HYBRID = {**TINY, "stages": (1, 2)}
MIXER = {"width": 16, "depth": 2, "token_mlp_dim": 8, "mlp_dim": 32}
SWIN = {
    "width": 16,
    "depths": (1, 2),
    "num_heads": (2, 4),
    "patch_size": 2,
    "window_size": 2,
    "resolution": 8,
}


def shapes(model, size):
    """Arrays of the shapes of a model's parameters, which cost nothing."""
    height, width = (size, size) if isinstance(size, int) else size
    told = parameter_shapes(model, (height, width, 3))
    return {name: np.broadcast_to(0.0, shape) for name, shape in told.items()}


def check(name, given, size, **told):
    """Identifies a model and says which; its parameters are the given ones."""
    preset = given.get("preset") or catalog.find(name).preset
    params = shapes(build_model(name, **{"num_classes": 3, **given}), size)
    model, image_shape = identify(params, preset=preset, **told)
    found = parameter_shapes(build_model(**model), image_shape)
    assert found == {name: leaf.shape for name, leaf in params.items()}
    height, width = (size, size) if isinstance(size, int) else size
    assert image_shape == (height, width, 3)
    return model


@pytest.mark.parametrize("name", list_models())
def test_every_row_is_found_by_its_shapes(name):
    row = catalog.find(name)
    given = shapes(build_model(name, num_classes=1000), row.resolution)
    told = {}
    if row.family == "swin-v2":  # no parameter has the size of its window
        told = {key: row.fields[key] for key in ("window_size", "resolution")}
        told["pretrained_window_size"] = row.fields.get("pretrained_window_size")
    model, image_shape = identify(given, preset=row.preset, fields=told)
    assert model == {"name": name, "num_classes": 1000, "preset": row.preset}
    assert image_shape == (row.resolution, row.resolution, 3)


VIT_FORMS = [
    {"pool": "mean"},
    {"pool": "map"},
    {"pool": "map", "num_registers": 2},
    {"representation_size": 24},
    {"num_registers": 4},
    {"num_registers": 1, "class_position": False},
    {"layer_scale": 1e-4},
    {"qk_norm": True},
    {"mlp": "swiglu"},
    {"mlp": "swiglu", "layer_scale": 1.0, "num_registers": 4},
    {"distillation": True},
    {"distillation": True, "class_position": False},
    {"distillation": True, "num_classes": 0},
    {"class_position": False},
    {"class_position": False, "pool": "mean", "preset": "big-vision-vit"},
    {"preset": "siglip"},
    {"depth": 3, "width": 24, "num_heads": 4, "mlp_dim": 100},
    {"depth": 1},
    {"num_classes": 0},
    {"positions": "learned2d"},
    {"positions": "relative"},
    {"positions": "relative", "pool": "mean"},
    {"position_injection": "every_layer"},
    {"position_injection": "every_layer", "positions": "learned2d"},
]


@pytest.mark.parametrize("fields", VIT_FORMS, ids=str)
def test_forms_of_vit_are_found(fields):
    model = check("ViT-Ti/4", {**TINY, **fields}, 16)
    told = {key: value for key, value in fields.items() if key != "layer_scale"}
    defaults = {"class_position": model["preset"] == "google-vit", "num_classes": 3}
    defaults["pool"] = "map" if model["preset"] == "siglip" else "cls"
    found = {**defaults, **catalog.find(model["name"]).fields, **model}
    assert {key: found.get(key) for key in told} == told


def test_patches_that_are_not_square_are_found():
    model = check("ViT-Ti/4", {**TINY, "patch_size": (4, 2)}, (16, 8))
    assert model["patch_size"] == (4, 2)


HYBRID_FORMS = [
    {"stages": ()},
    {"stages": (1, 1, 1), "width_factor": 2},
    {"pool": "mean", "representation_size": 24},
    {"pool": "map", "num_classes": 0},
    {"class_position": False},
    {"positions": "learned2d"},
    {"patch_size": 2},
]


@pytest.mark.parametrize("fields", HYBRID_FORMS, ids=str)
def test_forms_of_hybrids_are_found(fields):
    check("R26+ViT-S/32", {**HYBRID, **fields}, 32)


@pytest.mark.parametrize("fields", [{}, {"width_factor": 2, "num_classes": 0}], ids=str)
def test_forms_of_bit_are_found(fields):
    check("BiT-R50x1", {"stages": (1, 2), **fields}, 16, image_shape=(16, 16, 3))


@pytest.mark.parametrize("fields", [{}, {"depth": 1, "num_classes": 0}], ids=str)
def test_forms_of_mixer_are_found(fields):
    check("Mixer-S/4", {**MIXER, **fields}, 16)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"depth": 1, "num_classes": 0, "num_heads": 4},
        {"positions": "learned2d", "patch_size": (4, 2)},
        {"positions": "sincos2d", "representation_size": 24},
    ],
    ids=str,
)
def test_forms_of_axial_vit_are_found(fields):
    model = check("Axial-ViT-S/4", {**TINY, **fields}, 16, image_shape=(16, 16, 3))
    assert model["name"].startswith("Axial-ViT")


SWIN_FORMS = [
    {},
    {"num_classes": 0},
    {"depths": (2, 1, 1), "num_heads": (2, 2, 4)},
    {"mlp_ratio": 2},
]


@pytest.mark.parametrize("fields", SWIN_FORMS, ids=str)
def test_forms_of_swin_are_found(fields):
    check("Swin-T", {**SWIN, **fields}, 8, image_shape=(8, 8, 3))


@pytest.mark.parametrize(
    "fields",
    [
        {"window_size": 4},  # the map of the second stage has a side of 2
        {"window_size": 4, "depths": (1, 1, 1), "num_heads": (2, 2, 2)},
        {"absolute_positions": True},
    ],
    ids=str,
)
def test_tables_of_swin_tell_the_resolution(fields):
    model = check("Swin-T", {**SWIN, **fields}, 8)
    assert model["resolution"] == 8
    assert model["window_size"] == fields.get("window_size", 2)


def test_tables_of_swin_without_a_smaller_one_go_with_the_resolution_of_the_row():
    params = shapes(build_model("Swin-T", num_classes=0, **SWIN), 8)
    model, image_shape = identify(params, preset=None)
    assert (model["window_size"], image_shape) == (2, (224, 224, 3))
    # 224 is no multiple of windows of 12; 384 is 12 patches of 32 pixels.
    larger = {"depths": (1, 1, 1, 1), "window_size": 12, "resolution": 384}
    params = shapes(build_model("Swin-T", num_classes=0, **larger), 384)
    model, image_shape = identify(params, preset=None)
    assert (model["window_size"], image_shape) == (12, (384, 384, 3))


def test_swin_without_tables_is_found_with_what_the_caller_says():
    fields = {**SWIN, "relative_positions": False, "window_kind": "fixed"}
    told = {"window_size": 2, "resolution": 8, "window_kind": "fixed"}
    model = check("Swin-T", fields, 8, fields=told)
    assert model["window_kind"] == "fixed"


def test_windows_that_are_not_square_are_found_with_what_the_caller_says():
    told = {"window_size": (2, 4), "resolution": (8, 16)}
    check("Swin-T", {**SWIN, **told}, (8, 16), fields=told)


SWIN_V2_FORMS = [
    {},
    {"num_classes": 0, "window_size": 4},
    {"depths": (2, 4), "extra_norm_every": 2},
    {"depths": (1, 4), "extra_norm_every": 3},
    {"pretrained_window_size": (2, 1)},
]


@pytest.mark.parametrize("fields", SWIN_V2_FORMS, ids=str)
def test_forms_of_swin_v2_are_found(fields):
    fields = {**SWIN, **fields}
    keys = ("window_size", "resolution", "pretrained_window_size")
    told = {key: fields[key] for key in keys if key in fields}
    model = check("SwinV2-T", fields, 8, fields=told)
    assert {key: model[key] for key in told} == told


def test_images_choose_among_the_rows_of_swin_v2():
    given = shapes(build_model("SwinV2-B", num_classes=0), 256)
    model, _ = identify(given, preset="swin-v2", image_shape=(192, 192, 3))
    assert model["name"] == "SwinV2-B-w12-192"
    model, _ = identify(given, preset="swin-v2-384")
    assert model["name"] == "SwinV2-B-w12to24-384"


def test_what_shapes_do_not_tell_the_caller_says():
    fields = {**TINY, "pool": "none", "positions": "rotary2d"}
    told = {"pool": "none", "positions": "rotary2d", "norm_eps": 1e-5}
    model = check("ViT-Ti/16", fields, 224, fields=told)
    assert {key: model[key] for key in told} == told


def test_no_table_is_taken_as_computed_positions():
    # As the files of big_vision's ViT-S/16 for ImageNet-1k have none.
    fields = {"pool": "mean", "positions": "sincos2d"}
    model = check("ViT-S/16", {**TINY, **fields}, 224)
    assert {key: model[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("rows", "pool", "class_position"),
    [
        (196, "mean", None),
        (576, "mean", None),
        (49, "mean", None),
        (256, "cls", False),
        (196, "cls", False),
        (197, "cls", True),
        (577, "cls", True),
        (50, "cls", True),
        (257, "cls", True),
    ],
)
def test_the_count_of_rows_tells_whether_one_is_of_the_class_token(
    rows, pool, class_position
):
    fields = {"class_position": class_position is not False, "pool": pool}
    side = round(rows**0.5)
    model = check("ViT-Ti/4", {**TINY, **fields}, 4 * side)
    assert model.get("class_position", True) == fields["class_position"]


@pytest.mark.parametrize("size", [(8, 32), (16, 4)])
def test_a_grid_that_is_not_square_needs_the_size_of_images(size):
    fields = {**TINY, "resolution": size}
    check("ViT-Ti/4", fields, size, image_shape=(*size, 3))
    check("ViT-Ti/4", fields, size, fields={"resolution": list(size)})


def test_two_tables_tell_a_grid_that_is_not_square():
    fields = {**TINY, "positions": "learned2d", "resolution": (8, 16)}
    check("ViT-Ti/4", fields, (8, 16))


def test_rows_that_fit_no_grid_are_refused():
    given = shapes(build_model("ViT-Ti/4", num_classes=0, **TINY), (8, 12))
    with pytest.raises(UserError, match="7 tokens are neither a square"):
        identify(given, preset="google-vit")
    with pytest.raises(UserError, match="neither 2x2"):
        identify(given, preset="google-vit", image_shape=(8, 8, 3))


def test_a_name_of_another_size_does_not_matter():
    given = shapes(build_model("ViT-B/32", num_classes=0, depth=1), 224)
    model, image_shape = identify(given, preset="google-vit")
    assert (model["name"], model["depth"], image_shape[0]) == ("ViT-B/32", 1, 224)


def test_without_a_preset_that_of_the_row_is_taken():
    given = shapes(build_model("Swin-B-w12-384", num_classes=0), 384)
    model, _ = identify(given, preset=None)
    assert model == {
        "name": "Swin-B-w12-384",
        "num_classes": 0,
        "preset": "swin-v1-384",
    }


def test_a_preset_of_another_family_is_refused_with_those_of_this_one():
    given = shapes(build_model("ViT-Ti/4", num_classes=0, **TINY), 16)
    with pytest.raises(UserError, match=r"family 'bit', but .* use google-vit or"):
        identify(given, preset="bit")
    with pytest.raises(UserError, match="did you mean 'google-vit'"):
        identify(given, preset="google_vit")


def test_a_description_of_other_arrays_is_refused():
    given = shapes(build_model("ViT-Ti/4", num_classes=0, **TINY), 16)
    with pytest.raises(UserError, match="says depth 12, but the arrays are those of 2"):
        identify(given, preset=None, fields={"depth": 12})


def test_unknown_missing_and_other_arrays_are_refused_by_name():
    given = shapes(build_model("ViT-Ti/4", num_classes=3, **TINY), 16)
    norm = "Transformer/encoder_norm"
    with pytest.raises(UserError, match="no place for: temperature"):
        identify({**given, "temperature": given["cls"]}, preset=None)
    less = {name: leaf for name, leaf in given.items() if name != f"{norm}/bias"}
    with pytest.raises(UserError, match=f"missing: {norm}/bias"):
        identify(less, preset=None)
    with pytest.raises(UserError, match=rf"other shape: {norm}/bias \(3,\) instead"):
        identify({**given, f"{norm}/bias": given["head/bias"]}, preset=None)
    less = {name: leaf for name, leaf in given.items() if "query" not in name}
    with pytest.raises(UserError, match=r"no array .*query/kernel.* incomplete"):
        identify(less, preset=None)
    # As the ViTs of big_vision for images of any aspect have it.
    flat = {**given, "embedding/kernel": np.broadcast_to(0.0, (48, 16))}
    with pytest.raises(UserError, match=r"shape \(48, 16\), but 4 axes are expected"):
        identify(flat, preset=None)


def test_stacked_blocks_are_refused_with_what_to_do():
    given = shapes(build_model("ViT-Ti/4", num_classes=3, **TINY), 16)
    given = {key.replace("block_0/", "block/"): leaf for key, leaf in given.items()}
    with pytest.raises(UserError, match="unstack_blocks"):
        identify(given, preset=None)


def test_arrays_of_no_model_are_refused():
    given = shapes(build_model("ViT-Ti/4", num_classes=3, **TINY), 16)
    with pytest.raises(UserError, match="begin with module, and none is"):
        identify({f"module/{key}": leaf for key, leaf in given.items()}, preset=None)

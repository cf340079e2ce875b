# SPDX-License-Identifier: Apache-2.0
"""Later forms of ViT with the same weights in timm and in transformers.

Tiny models, made from the reference's own definition of each form.
"""

import warnings

import jax
import numpy as np
import pytest

from tests.reference.weights import (
    images,
    random_params,
    timm_state,
    to_torch,
    transformers_deit_state,
    transformers_dinov2_state,
    transformers_siglip_state,
)
from vit_jax.models import build_model

pytestmark = pytest.mark.reference

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what these packages warn of is theirs
    timm = pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")

# Largest difference of a logit or feature in float32, with values of size 1.
TOLERANCE = 1e-4

OURS = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64}
TIMM = {
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_ratio": 2,
    "patch_size": 8,
    "img_size": 32,
}


def vit(**fields):
    fields = {"num_classes": 10, "preset": "timm-vit", **OURS, **fields}
    return build_model("ViT-S/8", **fields)


def reference_of(name, params, scale_names=("ls1.gamma", "ls2.gamma"), **sizes):
    sizes = {"num_classes": 10, **TIMM, **sizes}
    model = timm.create_model(name, pretrained=False, **sizes)
    model.load_state_dict(timm_state(params, scale_names), strict=True)
    return model.eval()


def on(model, image):
    with torch.no_grad():
        return model(to_torch(np.asarray(image).transpose(0, 3, 1, 2)))


def run(model, params, image):
    return jax.jit(model.apply)({"params": params}, image)


def assert_close(ours, theirs):
    expected = theirs.numpy()
    assert 0.1 < np.abs(expected).mean() < 10
    np.testing.assert_allclose(ours, expected, rtol=0, atol=TOLERANCE)


# Name and options of timm's model, our fields, and a field without which they differ.
FORMS = {
    "DeiT, distilled": (
        "deit_base_distilled_patch16_224",
        {},
        {"distillation": True},
        {"gelu": "tanh"},
    ),
    "DeiT III": (
        "deit3_small_patch16_224",
        {},
        {"class_position": False, "layer_scale": 1e-6},
        {"gelu": "tanh"},
    ),
    "DINOv2 with registers": (
        "vit_small_patch14_reg4_dinov2",
        {},
        {"class_position": False, "layer_scale": 1e-5, "num_registers": 4},
        {"gelu": "tanh"},
    ),
    "DINOv2 with SwiGLU": (
        "vit_giant_patch14_dinov2",
        {"mlp_ratio": 4},
        {"layer_scale": 1e-5, "mlp": "swiglu"},
        {"norm_eps": 1e-3},
    ),
    "SigLIP": (
        "vit_base_patch16_siglip_224",
        {"num_classes": 0},
        {"preset": "siglip", "gelu": "erf", "num_classes": 0},
        {"gelu": "tanh"},
    ),
    "registers and mean": (
        "vit_small_patch14_reg4_dinov2",
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
        {"pool": "mean", "layer_scale": 1e-5, "num_registers": 4},
        {"gelu": "tanh"},
    ),
    "normalised queries and keys": (
        "vit_base_patch16_224",
        {"qk_norm": True},
        {"qk_norm": True},
        {"norm_eps": 1e-3},
    ),
    "rotary": (
        "vit_small_patch16_rope_224",
        {},
        {"positions": "rotary2d", "layer_scale": 1e-5},
        {"positions": "none"},
    ),
}


@pytest.mark.parametrize("kind", ["random", "nearly constant"])
@pytest.mark.parametrize("form", FORMS)
def test_form_equals_that_of_timm(form, kind):
    name, options, fields, other = FORMS[form]
    model = vit(**fields)
    params = random_params(model, 32)
    scale_names = (
        ("gamma_1", "gamma_2") if "rope" in name else ("ls1.gamma", "ls2.gamma")
    )
    reference = reference_of(name, params, scale_names, **options)
    image = images(32, kind)
    logits, out = run(model, params, image)
    assert_close(logits, on(reference, image))
    with torch.no_grad():
        chw = to_torch(image.transpose(0, 3, 1, 2))
        assert_close(out["encoded"], reference.forward_features(chw))
    changed, _ = run(model.clone(**other), params, image)
    assert np.abs(changed - logits).max() > TOLERANCE


def test_class_row_of_the_registers_model_is_that_of_transformers():
    model = vit(layer_scale=1e-5, num_registers=4, mlp="swiglu", num_classes=0)
    params = random_params(model, 32)
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        mlp_ratio=3,  # two thirds of it are 64
        image_size=32,
        patch_size=8,
        num_register_tokens=4,
        use_swiglu_ffn=True,
    )
    reference = transformers.Dinov2WithRegistersModel(config).eval()
    state = transformers_dinov2_state(params)
    assert set(reference.state_dict()) - set(state) == {"embeddings.mask_token"}
    reference.load_state_dict(state, strict=False)
    for side in (32, (48, 32)):
        image = images(side, "random")
        # This version of the reference resizes with antialias.
        resizing = model.clone(resolution=32, resize_positions="bicubic-antialias")
        _, out = run(resizing, params, image)
        assert_close(out["encoded"], on(reference, image).last_hidden_state)


@pytest.mark.parametrize("side", [(48, 32), (32, 64)])
def test_resize_at_run_time_is_that_of_timm(side):
    model = vit(resolution=32, resize_positions="bicubic-antialias")
    params = random_params(model, 32)
    reference = reference_of("vit_base_patch16_224", params, dynamic_img_size=True)
    image = images(side, "random")
    logits, _ = run(model, params, image)
    assert_close(logits, on(reference, image))
    other, _ = run(model.clone(resize_positions="zoom"), params, image)
    assert np.abs(other - logits).max() > TOLERANCE


def test_distilled_logits_are_those_of_transformers():
    model = vit(distillation=True, preset="hf-vit")
    params = random_params(model, 32)
    config = transformers.DeiTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=10,
    )
    reference = transformers.DeiTForImageClassificationWithTeacher(config).eval()
    reference.load_state_dict(transformers_deit_state(params), strict=True)
    image = images(32, "random")
    _, out = run(model, params, image)
    expected = on(reference, image)
    assert_close(out["logits"], expected.logits)
    assert_close(out["logits_class"], expected.cls_logits)
    assert_close(out["logits_distillation"], expected.distillation_logits)


@pytest.mark.parametrize("kind", ["random", "nearly constant"])
def test_siglip_preset_is_the_image_tower_of_transformers(kind):
    model = vit(preset="siglip", num_classes=0)
    params = random_params(model, 32)
    config = transformers.SiglipVisionConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    reference = transformers.SiglipVisionModel(config).eval()
    reference.load_state_dict(transformers_siglip_state(params), strict=True)
    image = images(32, kind)
    pooled, out = run(model, params, image)
    expected = on(reference, image)
    assert_close(out["encoded"], expected.last_hidden_state)
    assert_close(pooled, expected.pooler_output)

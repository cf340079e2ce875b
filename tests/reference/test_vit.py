# SPDX-License-Identifier: Apache-2.0
"""ViT with the same weights in timm and in transformers."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference.weights import (
    images,
    random_params,
    timm_state,
    to_torch,
    transformers_state,
)
from vit_jax.models import build_model

pytestmark = pytest.mark.reference

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what these packages warn of is theirs
    timm = pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")

# Largest difference of a logit in float32 with logits of size 1: the sums of 12 blocks
# are taken in another order.
LOGITS = 1e-4
# Of a gradient, relative to the largest of its parameter.
GRADIENTS = 1e-3


def timm_model(params, **sizes):
    model = timm.create_model("vit_base_patch16_224", pretrained=False, **sizes)
    model.load_state_dict(timm_state(params), strict=True)
    return model.eval()


def transformers_model(params, **sizes):
    config = transformers.ViTConfig(num_labels=1000, **sizes)
    model = transformers.ViTForImageClassification(config)
    model.load_state_dict(transformers_state(params), strict=True)
    return model.eval()


def torch_logits(model, image):
    output = model(to_torch(np.asarray(image).transpose(0, 3, 1, 2)))
    return output if isinstance(output, torch.Tensor) else output.logits


def difference(model, params, reference, image):
    logits, _ = jax.jit(model.apply)({"params": params}, image)
    with torch.no_grad():
        expected = torch_logits(reference, image).numpy()
    assert 0.3 < np.abs(expected).mean() < 3
    return np.abs(logits - expected).max()


BASE = "ViT-B/16"
CASES = [("timm-vit", timm_model), ("hf-vit", transformers_model)]


@pytest.mark.parametrize("kind", ["random", "nearly constant"])
@pytest.mark.parametrize(("preset", "make"), CASES)
def test_base_model_equals_the_reference(preset, make, kind):
    model = build_model(BASE, num_classes=1000, preset=preset)
    params = random_params(model, 224)
    assert difference(model, params, make(params), images(224, kind)) < LOGITS


@pytest.mark.parametrize("kind", ["random", "nearly constant"])
@pytest.mark.parametrize(("preset", "make"), CASES)
def test_the_other_form_of_gelu_does_not_pass(preset, make, kind):
    model = build_model(BASE, num_classes=1000, preset=preset, gelu="tanh")
    params = random_params(model, 224)
    assert difference(model, params, make(params), images(224, kind)) > LOGITS


def test_another_epsilon_does_not_pass_on_a_nearly_constant_image():
    model = build_model(BASE, num_classes=1000, preset="timm-vit", norm_eps=1e-5)
    params = random_params(model, 224)
    # Small tokens, as a nearly constant image gives where its mean is projected away.
    params["embedding"]["bias"] *= 0
    params["Transformer"]["posembed_input"]["pos_embedding"] *= 1e-2
    params["cls"] *= 1e-2
    params["embedding"]["kernel"] *= 1e-2
    image = images(224, "nearly constant")
    assert difference(model, params, timm_model(params), image) > LOGITS
    model = model.clone(norm_eps=1e-6)
    assert difference(model, params, timm_model(params), image) < LOGITS


SMALL = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64}
TIMM_SMALL = {
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_ratio": 2,
    "img_size": 32,
    "patch_size": 8,
}
TRANSFORMERS_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}


@pytest.mark.parametrize(
    ("preset", "make", "state", "sizes"),
    [
        ("timm-vit", timm_model, timm_state, TIMM_SMALL),
        ("hf-vit", transformers_model, transformers_state, TRANSFORMERS_SMALL),
    ],
)
def test_gradients_equal_the_reference(preset, make, state, sizes):
    model = build_model("ViT-Ti/8", num_classes=1000, preset=preset, **SMALL)
    params = random_params(model, 32)
    image = images(32, "random", batch=4)
    target = np.random.default_rng(2).normal(size=(4, 1000)).astype(np.float32)

    def loss(params):
        logits, _ = model.apply({"params": params}, image)
        return jnp.sum(logits * target)

    grads = state(jax.device_get(jax.jit(jax.grad(loss))(params)))
    reference = make(params, **sizes)
    (torch_logits(reference, image) * to_torch(target)).sum().backward()
    compared = dict(reference.named_parameters())
    assert set(compared) == set(grads)
    largest = max(float(grad.abs().max()) for grad in grads.values())
    for name, parameter in compared.items():
        expected, got = parameter.grad.reshape(-1), grads[name].reshape(-1)
        # Key biases have gradients of zero: they must be small on the scale of all.
        scale = max(float(expected.abs().max()), 1e-3 * largest)
        assert float((got - expected).abs().max()) < GRADIENTS * scale, name

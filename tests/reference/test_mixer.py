# SPDX-License-Identifier: Apache-2.0
"""Mixer with the same weights in timm.

The mapping is written for these tests alone; it shares no code with the converters.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.models import build_model

pytestmark = pytest.mark.reference

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what this package warns of is its own
    timm = pytest.importorskip("timm")

# Largest difference of a logit in float32 with logits of size 1.
LOGITS = 1e-4
# Of a gradient, relative to the largest of its parameter.
GRADIENTS = 1e-3

SMALL = {"width": 32, "depth": 2, "token_mlp_dim": 16, "mlp_dim": 128}
TIMM_BASE = {"embed_dim": 768, "num_blocks": 12, "patch_size": 16, "img_size": 224}
TIMM_SMALL = {"embed_dim": 32, "num_blocks": 2, "patch_size": 8, "img_size": 32}


def random_params(model, side, seed=0):
    rng = np.random.default_rng(seed)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def draw(name, leaf):
        if name.endswith("kernel"):
            inputs = np.prod(leaf.shape[:-1])
            values = rng.normal(0, inputs**-0.5, leaf.shape)
        else:
            values = rng.normal(float(name.endswith("scale")), 0.1, leaf.shape)
        return np.asarray(values, np.float32)

    params = trees.map_with_name(draw, shapes)
    # The mean over tokens is small; this brings the logits back to size 1.
    params["head"]["kernel"] *= 3
    return params


def images(side, kind, batch=2):
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(batch, side, side, 3))
    pixels = noise if kind == "random" else 0.5 + 1e-3 * noise
    return pixels.astype(np.float32)


def to_torch(array):
    return torch.from_numpy(np.array(array, order="C"))


def dense(name, layer):
    return {
        f"{name}.weight": to_torch(np.asarray(layer["kernel"]).T),
        f"{name}.bias": to_torch(layer["bias"]),
    }


def norm(name, layer):
    return {
        f"{name}.weight": to_torch(layer["scale"]),
        f"{name}.bias": to_torch(layer["bias"]),
    }


def timm_state(params):
    state = {
        "stem.proj.weight": to_torch(
            np.asarray(params["stem"]["kernel"]).transpose(3, 2, 0, 1)
        ),
        "stem.proj.bias": to_torch(params["stem"]["bias"]),
        **norm("norm", params["pre_head_layer_norm"]),
        **dense("head", params["head"]),
    }
    for i in range(sum(name.startswith("MixerBlock_") for name in params)):
        block = params[f"MixerBlock_{i}"]
        state |= norm(f"blocks.{i}.norm1", block["LayerNorm_0"])
        state |= norm(f"blocks.{i}.norm2", block["LayerNorm_1"])
        for ours, theirs in (("token", "tokens"), ("channel", "channels")):
            for j in (0, 1):
                state |= dense(
                    f"blocks.{i}.mlp_{theirs}.fc{j + 1}",
                    block[f"{ours}_mixing"][f"Dense_{j}"],
                )
    return state


def timm_model(params, **sizes):
    model = timm.models.MlpMixer(**sizes)
    model.load_state_dict(timm_state(params), strict=True)
    return model.eval()


def torch_logits(model, image):
    return model(to_torch(np.asarray(image).transpose(0, 3, 1, 2)))


def difference(model, params, reference, image):
    logits, _ = jax.jit(model.apply)({"params": params}, image)
    with torch.no_grad():
        expected = torch_logits(reference, image).numpy()
    assert 0.3 < np.abs(expected).mean() < 3
    return np.abs(logits - expected).max()


@pytest.mark.parametrize("kind", ["random", "nearly constant"])
def test_base_model_equals_the_reference(kind):
    model = build_model("Mixer-B/16", num_classes=1000, preset="timm-mixer")
    params = random_params(model, 224)
    assert (
        difference(model, params, timm_model(params, **TIMM_BASE), images(224, kind))
        < LOGITS
    )


def test_the_other_form_of_gelu_does_not_pass():
    model = build_model("Mixer-B/16", num_classes=1000, preset="mixer")
    params = random_params(model, 224)
    image = images(224, "random")
    assert difference(model, params, timm_model(params, **TIMM_BASE), image) > LOGITS


def test_gradients_equal_the_reference():
    model = build_model("Mixer-B/8", num_classes=1000, preset="timm-mixer", **SMALL)
    params, image = random_params(model, 32), images(32, "random", batch=4)
    target = np.random.default_rng(2).normal(size=(4, 1000)).astype(np.float32)

    def loss(params):
        logits, _ = model.apply({"params": params}, image)
        return jnp.sum(logits * target)

    grads = timm_state(jax.device_get(jax.jit(jax.grad(loss))(params)))
    reference = timm_model(params, **TIMM_SMALL)
    (torch_logits(reference, image) * to_torch(target)).sum().backward()
    compared = dict(reference.named_parameters())
    assert set(compared) == set(grads)
    largest = max(float(grad.abs().max()) for grad in grads.values())
    for name, parameter in compared.items():
        expected, got = parameter.grad.reshape(-1), grads[name].reshape(-1)
        # The last biases across tokens have gradients of zero (a layer norm takes away
        # what all channels have in common): they must be small on the scale of all.
        scale = max(float(expected.abs().max()), 1e-3 * largest)
        assert float((got - expected).abs().max()) < GRADIENTS * scale, name

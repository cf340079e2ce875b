# SPDX-License-Identifier: Apache-2.0
"""BiT with the same weights in timm and in transformers.

The mappings are written for these tests alone; they share no code with the converters.
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
    warnings.simplefilter("ignore")  # what these packages warn of is theirs
    timm = pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")

# Largest difference of a logit in float32 with logits of size 1.
LOGITS = 1e-4
# Of a gradient, relative to the largest of its parameter.
GRADIENTS = 1e-3
# Added to the norms' biases for gradients, channels in turn: a ReLU that rounding puts
# on the other side of zero would change them by the whole of its share.
FAR_FROM_ZERO = (6.0, -6.0)

STAGES = (2, 1, 2, 1)
SIDE = 64


def bit(**overrides):
    return build_model("BiT-R50x1", num_classes=1000, stages=STAGES, **overrides)


def random_params(seed=0):
    """Random weights whose kernels are so small that every epsilon shows."""
    rng = np.random.default_rng(seed)
    image = jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), jnp.float32)
    shapes = jax.eval_shape(bit().init, jax.random.key(0), image)["params"]

    def draw(name, leaf):
        if name == "head/kernel":
            values = rng.normal(0, 2 * leaf.shape[0] ** -0.5, leaf.shape)
        elif name.endswith("kernel"):
            values = rng.normal(0, 3e-4, leaf.shape)
        else:
            values = rng.normal(float(name.endswith("scale")), 0.1, leaf.shape)
        return np.asarray(values, np.float32)

    return trees.map_with_name(draw, shapes)


def without_kinks(params):
    """The weights with each ReLU open or closed for good, by its channel."""

    def move(name, leaf):
        if not name.startswith("head") and name.endswith("bias"):
            return leaf + np.resize(np.float32(FAR_FROM_ZERO), leaf.shape)
        return leaf

    return trees.map_with_name(move, params)


def images(kind, side=SIDE, batch=2):
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(batch, side, side, 3))
    pixels = noise if kind == "random" else 0.5 + 1e-3 * noise
    return pixels.astype(np.float32)


def to_torch(array):
    return torch.from_numpy(np.array(array, order="C"))


def conv(name, layer):
    return {
        f"{name}.weight": to_torch(np.asarray(layer["kernel"]).transpose(3, 2, 0, 1))
    }


def norm(name, layer):
    return {
        f"{name}.weight": to_torch(layer["scale"]),
        f"{name}.bias": to_torch(layer["bias"]),
    }


def units(params, stage, unit):
    state = {}
    for s, count in enumerate(STAGES):
        for j in range(count):
            layer = params[f"block{s + 1}"][f"unit{j + 1:02d}"]
            name = f"{stage}.{s}.{unit}.{j}"
            for i in (1, 2, 3):
                state |= conv(f"{name}.conv{i}", layer[f"conv{i}"])
                state |= norm(f"{name}.norm{i}", layer[f"gn{i}"])
            if "conv_proj" in layer:
                state |= conv(f"{name}.downsample.conv", layer["conv_proj"])
    return state


def timm_state(params):
    head = params["head"]
    return {
        **conv("stem.conv", params["root_block"]["conv_root"]),
        **units(params, "stages", "blocks"),
        **norm("norm", params["norm-pre-head"]),
        "head.fc.weight": to_torch(np.asarray(head["kernel"]).T[:, :, None, None]),
        "head.fc.bias": to_torch(head["bias"]),
    }


def transformers_state(params):
    head = params["head"]
    return {
        **conv("bit.embedder.convolution", params["root_block"]["conv_root"]),
        **units(params, "bit.encoder.stages", "layers"),
        **norm("bit.norm", params["norm-pre-head"]),
        "classifier.1.weight": to_torch(np.asarray(head["kernel"]).T),
        "classifier.1.bias": to_torch(head["bias"]),
    }


def timm_model(params):
    model = timm.models.ResNetV2(
        layers=STAGES,
        stem_type="fixed",
        conv_layer=lambda *args, **kwargs: timm.layers.StdConv2d(
            *args, eps=1e-8, **kwargs
        ),
    )
    model.load_state_dict(timm_state(params), strict=True)
    return model.eval()


def transformers_model(params):
    config = transformers.BitConfig(depths=STAGES, num_labels=1000)
    model = transformers.BitForImageClassification(config)
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


# An odd side tells symmetric padding from SAME.
@pytest.mark.parametrize("side", [SIDE, 57])
@pytest.mark.parametrize("kind", ["random", "nearly constant"])
@pytest.mark.parametrize(
    ("preset", "make"), [("timm-bit", timm_model), ("hf-bit", transformers_model)]
)
def test_logits_equal_the_reference(preset, make, kind, side):
    params = random_params()
    image = images(kind, side)
    assert difference(bit(preset=preset), params, make(params), image) < LOGITS


@pytest.mark.parametrize(
    "wrong",
    [
        {"conv_eps": 1e-10},
        {"conv_eps": 1e-5, "conv_eps_form": "std"},
        {"pool_padding": "-inf"},
    ],
)
def test_other_numerics_do_not_pass(wrong):
    params = random_params()
    model = bit(preset="timm-bit", **wrong)
    assert difference(model, params, timm_model(params), images("random")) > LOGITS


def test_gradients_equal_the_reference():
    params, image = without_kinks(random_params()), images("random", batch=3)
    target = np.random.default_rng(2).normal(size=(3, 1000)).astype(np.float32)
    model = bit(preset="timm-bit")

    def loss(params):
        logits, _ = model.apply({"params": params}, image)
        return jnp.sum(logits * target)

    grads = timm_state(jax.device_get(jax.jit(jax.grad(loss))(params)))
    reference = timm_model(params)
    (torch_logits(reference, image) * to_torch(target)).sum().backward()
    compared = dict(reference.named_parameters())
    assert set(compared) == set(grads)
    for name, parameter in compared.items():
        expected, got = parameter.grad.reshape(-1), grads[name].reshape(-1)
        scale = float(expected.abs().max())
        assert scale > 0, name
        assert float((got - expected).abs().max()) < GRADIENTS * scale, name

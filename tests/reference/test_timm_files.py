# SPDX-License-Identifier: Apache-2.0
"""Files that timm writes are read, and timm opens the files that are written for it.

Tiny models of timm's own making; the call that opens a file is run as it is printed.
"""

import functools
import json
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from vit_jax import trees
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.convert import swin, timm as ours
from vit_jax.convert.timm.architectures import ARCHITECTURES
from vit_jax.models import build_model, catalog

pytestmark = pytest.mark.reference

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what this package warns of is its own
    timm = pytest.importorskip("timm")
    from safetensors.torch import save_file as save_torch

# Largest difference of a logit in float32, with logits of size 1.
LOGITS = 1e-4

VIT = {"embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2}
VIT |= {"patch_size": 8, "img_size": 32}
HYBRID = {"embed_dim": 48, "depth": 2, "num_heads": 4, "img_size": 64}
SWIN = {"embed_dim": 32, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)}
SWIN |= {"img_size": 64, "window_size": 4}
V2 = {**SWIN, "pretrained_window_sizes": (6, 6, 6, 3)}
FORMS = {
    "class token": ("vit_base_patch16_224", VIT),
    "mean": ("vit_base_patch16_224", {**VIT, "global_pool": "avg"}),
    "mean, no class token": (
        "vit_base_patch16_224",
        {**VIT, "global_pool": "avg", "class_token": False},
    ),
    "mean, norm before": (
        "vit_base_patch16_224",
        {**VIT, "global_pool": "avg", "fc_norm": False},
    ),
    "norm after the class token": ("vit_base_patch16_224", {**VIT, "fc_norm": True}),
    "attention pooling": (
        "vit_base_patch16_224",
        {**VIT, "global_pool": "map", "class_token": False},
    ),
    "registers, norms of queries and keys": (
        "vit_base_patch16_224",
        {**VIT, "qk_norm": True, "no_embed_class": True, "reg_tokens": 2},
    ),
    "registers with positions": ("vit_base_patch16_224", {**VIT, "reg_tokens": 2}),
    "tanh": ("vit_base_patch16_224", {**VIT, "act_layer": "gelu_tanh"}),
    "DeiT, distilled": ("deit_base_distilled_patch16_224", VIT),
    "DeiT III": ("deit3_small_patch16_224", VIT),
    "DINOv2": (
        "vit_small_patch14_dinov2",
        {**VIT, "patch_size": 14, "img_size": 28},
    ),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", VIT),
    "DINOv2 with SwiGLU": ("vit_giant_patch14_dinov2", VIT),
    "SigLIP": ("vit_base_patch16_siglip_224", VIT),
    "rotary": ("vit_small_patch16_rope_224", VIT),
    "R+Ti": ("vit_tiny_r_s16_p8_224", HYBRID),
    "R26+S": ("vit_small_r26_s32_224", HYBRID),
    "R50+B": ("vit_base_r50_s16_224", HYBRID),
    "BiT": ("", {}),
    "Mixer": ("", {}),
    "Swin": ("swin_tiny_patch4_window7_224", SWIN),
    "SwinV2": ("swinv2_tiny_window8_256", V2),
}


def reference_model(form):
    """A model of timm with weights that leave no parameter at zero."""
    name, arguments = FORMS[form]
    torch.manual_seed(0)
    if form == "BiT":
        conv = functools.partial(timm.layers.StdConv2d, eps=1e-8)
        layers = (2, 1, 2, 1)
        model = timm.models.ResNetV2(
            layers, num_classes=10, stem_type="fixed", conv_layer=conv
        )
    elif form == "Mixer":
        model = timm.models.MlpMixer(
            num_classes=10, img_size=32, patch_size=8, num_blocks=2, embed_dim=32
        )
    else:
        model = timm.create_model(name, num_classes=10, **arguments)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim < 2 or parameter.shape[0] == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            else:
                spread = 0.5 * parameter[0].numel() ** -0.5
                parameter.copy_(spread * torch.randn_like(parameter))
            if "cpb_mlp" in key:
                parameter *= 4
    return model.eval()


def images(side):
    """One of noise and one that is nearly constant."""
    noise = np.random.default_rng(1).normal(size=(2, side, side, 3))
    return np.stack([noise[0], 0.5 + 1e-3 * noise[1]]).astype(np.float32)


def on(model, image):
    chw = torch.from_numpy(np.array(image.transpose(0, 3, 1, 2), order="C"))
    with torch.no_grad():
        return model(chw).numpy()


def logits_of(read, image):
    model = build_model(**read.model)
    return jax.jit(model.apply)({"params": read.params}, image)[0]


def opened(text):
    scope = {"timm": timm, "torch": torch, "functools": functools}
    return eval(text, scope).eval()


def content(path):
    with safe_open(path, "numpy") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()


def config_of(form):
    name, arguments = FORMS[form]
    return {"architecture": name, "model_args": json.loads(json.dumps(arguments))}


@pytest.mark.parametrize("form", FORMS)
def test_timm_reads_and_writes_the_same_model(form, tmp_path):
    reference = reference_model(form)
    save_torch(reference.state_dict(), tmp_path / "theirs.safetensors")
    tensors, metadata = content(tmp_path / "theirs.safetensors")
    read = ours.read(tensors, metadata, None, config_of(form))
    side = {"BiT": 64}.get(form, read.image_shape[0])
    image = images(side)
    expected = on(reference, image)
    assert 0.05 < np.abs(expected).mean() < 10
    np.testing.assert_allclose(logits_of(read, image), expected, rtol=0, atol=LOGITS)

    path = str(tmp_path / "ours.safetensors")
    save_file(ours.tensors(read), path, metadata=ours.metadata(read))
    line = ours.notes(read, path)[0]
    if line.startswith("open with "):
        model = opened(line.removeprefix("open with "))
    else:
        model = opened(line.split("build ")[1].split(" and load")[0])
        written = {k: torch.from_numpy(v) for k, v in content(path)[0].items()}
        model.load_state_dict(written, strict=True)
    np.testing.assert_allclose(on(model, image), expected, rtol=0, atol=1e-6)
    back = ours.read(*content(path))
    assert back.model == read.model
    ours_flat, back_flat = trees.flatten(read.params), trees.flatten(back.params)
    assert set(ours_flat) == set(back_flat)
    for key, leaf in ours_flat.items():
        np.testing.assert_array_equal(back_flat[key], leaf)


# Weights of other presets: timm computes them with what the call says.
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ViT-S/8", {"preset": "google-vit"}),
        ("ViT-S/8", {"preset": "hf-vit"}),
        ("ViT-S/8", {"preset": "big-vision-vit", "positions": "sincos2d"}),
        ("ViT-S/8", {"pool": "mean", "positions": "sincos2d", "num_registers": 2}),
        ("ViT-S/8", {"preset": "siglip"}),
        ("ViT-S/8", {"preset": "dinov2"}),
        ("ViT-S/8", {"pool": "none"}),
        ("ViT-S/8", {"num_registers": 2}),
        ("Mixer-S/8", {}),
    ],
)
def test_other_numerics_are_in_the_call(name, fields, tmp_path):
    sizes = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 48}
    if name.startswith("Mixer"):
        sizes = {"width": 32, "depth": 2, "token_mlp_dim": 24, "mlp_dim": 48}
    made = random_checkpoint(name, 32, {**sizes, **fields})
    image = images(32)
    path = str(tmp_path / "ours.safetensors")
    save_file(ours.tensors(made), path, metadata=ours.metadata(made))
    text = ours.notes(made, path)[0]
    text = text.removeprefix("open with ").split("build ")[-1].split(" and load")[0]
    model = opened(text)
    written = {k: torch.from_numpy(v) for k, v in content(path)[0].items()}
    model.load_state_dict(written, strict=True)
    expected = logits_of(made, image)
    assert 0.05 < np.abs(expected).mean() < 10
    np.testing.assert_allclose(on(model, image), expected, rtol=0, atol=LOGITS)


def random_checkpoint(name, side, fields):
    kwargs = {"name": name, "num_classes": 10, **fields}
    model = build_model(**kwargs)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    rng = np.random.default_rng(0)

    def draw(key, leaf):
        scale = leaf.shape[0] ** -0.5 if key.endswith("kernel") else 0.3
        values = rng.normal(float(key.endswith("scale")), scale, leaf.shape)
        return values.astype(np.float32)

    return Checkpoint(trees.map_with_name(draw, shapes), kwargs, (side, side, 3))


def official(model):
    """What the authors' code would save for timm's model, with its buffers."""
    state = {}
    for key, tensor in model.state_dict().items():
        merging = re.fullmatch(r"layers\.(\d)(\.downsample\..*)", key)
        if merging:
            key = f"layers.{int(merging[1]) - 1}{merging[2]}"
        state[key.replace("head.fc.", "head.")] = tensor.numpy()
    buffers = ("relative_position_index", "relative_coords_table", "attn_mask")
    for key, tensor in model.named_buffers():
        if key.endswith(buffers):
            state[key] = tensor.numpy()
    return state


@pytest.mark.parametrize("form", ["Swin", "SwinV2"])
def test_official_swin_is_read(form):
    reference = reference_model(form)
    state = official(reference)
    assert "layers.0.downsample.reduction.weight" in state
    assert swin.matches(state)
    read = swin.read(state)
    assert read.image_shape == (64, 64, 3)
    assert build_model(**read.model).window_size == 4
    if form == "SwinV2":
        assert read.model["pretrained_window_size"] == (6, 6, 6, 3)
    image = images(64)
    np.testing.assert_allclose(
        logits_of(read, image), on(reference, image), rtol=0, atol=LOGITS
    )
    for key, tensor in swin.tensors(read).items():
        np.testing.assert_array_equal(tensor, state[key])


# Parameters, and tensors of timm's state dict, where they are published.
COUNTS = {
    "ViT-B/16": (152, 86_567_656),
    "R50+ViT-B/16": (308, 98_659_112),
    "BiT-R50x1": (153, 25_549_352),
    "Mixer-B/16": (150, 59_880_472),
    "Swin-T": (173, 28_288_354),
    "SwinV2-T": (221, 28_347_154),
}
# Rows whose full sizes are compared; small numbers of one byte, so that they fit.
ROWS = [row for row in catalog.VARIANTS if (row.parameters or 0) < 1e8]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_timm_has_the_same_tensors(row):
    side, kwargs = row.resolution, {"name": row.name, "num_classes": 1000}
    if row.family == "vit":
        side = side // row.fields["patch_size"] * row.fields["patch_size"]
    if row.family == "mixer":
        side = side // row.fields["patch_size"] * row.fields["patch_size"]
    model = build_model(**kwargs)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.uint8), shapes)
    made = Checkpoint(params, kwargs, (side, side, 3))
    named = {key: tensor.shape for key, tensor in ours.tensors(made).items()}
    with torch.device("meta"):
        theirs = opened(ours.timm_call(made).text()).state_dict()
    assert named == {key: tuple(tensor.shape) for key, tensor in theirs.items()}
    if row.name in COUNTS:
        sizes = [int(np.prod(shape)) for shape in named.values()]
        assert (len(sizes), sum(sizes)) == COUNTS[row.name]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_are_those_of_timm(name):
    each = ARCHITECTURES[name]
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=10)
    side = timm.models.get_pretrained_cfg(name).input_size[1:]
    if each.family not in ("bit", "mixer"):
        side = model.patch_embed.img_size
    assert tuple(side) == (each.side, each.side)
    if each.family in ("vit", "hybrid"):
        block = model.blocks[0]
        fields = {
            "width": model.embed_dim,
            "depth": len(model.blocks),
            "num_heads": block.attn.num_heads,
        }
        assert fields == {key: each.fields[key] for key in fields}
        wide = block.mlp.fc2.in_features
        assert wide == each.fields["mlp_dim"]
        tanh = "tanh" in type(block.mlp.act).__name__.lower()
        assert ("tanh" if tanh else "erf") == each.fields.get("gelu", "erf")
        has = {"registers": getattr(model, "reg_token", None) is not None}
        has["map"] = getattr(model, "attn_pool", None) is not None
        assert has == {
            "registers": bool(each.fields.get("num_registers")),
            "map": each.fields.get("pool") == "map",
        }
    if each.family.startswith("swin"):
        blocks = [layer.blocks[0] for layer in model.layers]
        assert blocks[0].window_size == (each.fields["window_size"],) * 2
        assert tuple(b.attn.num_heads for b in blocks) == each.fields["num_heads"]
        windows = each.fields.get("pretrained_window_size")
        if each.family == "swin-v2" and windows is not None:
            found = tuple(b.attn.pretrained_window_size[0] for b in blocks)
            assert found == windows

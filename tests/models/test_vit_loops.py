# SPDX-License-Identifier: Apache-2.0
"""Blocks as a loop of the program, and backward passes that compute blocks again."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.models.stacking import stack_blocks, unstack_blocks

DEPTH = 2
SIZES = {"width": 8, "depth": DEPTH, "num_heads": 2, "mlp_dim": 16}
RATES = {"dropout_rate": 0.3, "drop_path_rate": 0.6}


def vit(**fields):
    return build_model("ViT-Ti/4", **{"num_classes": 3, **SIZES, **fields})


IMAGE = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (4, 8, 8, 3)), jnp.float32)


def shapes_of(model):
    return jax.eval_shape(model.init, jax.random.key(0), IMAGE)["params"]


def random_params(model):
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype),
        shapes_of(model),
    )


def make_loss(model, train):
    rngs = {"dropout": jax.random.key(2), "drop_path": jax.random.key(3)}

    def loss(params):
        logits, out = model.apply({"params": params}, IMAGE, train=train, rngs=rngs)
        return jnp.sum(logits * jnp.asarray([1.0, -2.0, 0.5])[None]), out

    return loss


def differentiate(model, params, train=False):
    loss = jax.value_and_grad(make_loss(model, train), has_aux=True)
    (value, out), grads = jax.jit(loss)(params)
    return value, out, grads


def assert_equal(ours, expected, rtol=1e-4):
    """Compares leaf by leaf, on the scale of each and, for those near 0, of all."""
    ours, expected = trees.flatten(ours), trees.flatten(expected)
    assert ours.keys() == expected.keys()
    scales = {name: float(np.abs(leaf).max()) for name, leaf in expected.items()}
    least = 1e-3 * max(scales.values())
    for name in ours:
        atol = rtol * max(scales[name], least)
        np.testing.assert_allclose(
            ours[name], expected[name], rtol=0, atol=atol, err_msg=name
        )


@pytest.mark.parametrize(
    ("scan", "remat"),
    [(False, "dots"), (True, "full"), (True, "names:attention,mlp")],
)
def test_remat_changes_neither_values_nor_gradients(scan, remat):
    model = vit(scan=scan, dropout_rate=0.3, drop_path_rate=0.6)
    params = random_params(model)
    value, out, grads = differentiate(model, params, train=True)
    got = differentiate(model.clone(remat=remat), params, train=True)
    # The same operations, in programs that are optimised in other ways.
    assert_equal(got[0], value, rtol=1e-5)
    assert_equal(got[1], out, rtol=1e-5)
    assert_equal(got[2], grads)


def saved(remat, scan=False):
    """Bytes that the forward pass hands to the backward pass."""
    model = vit(remat=remat, scan=scan)

    def residuals(params):
        _, pullback, _ = jax.vjp(make_loss(model, True), params, has_aux=True)
        return pullback

    pullback = jax.eval_shape(residuals, shapes_of(model))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pullback))


@pytest.mark.parametrize("scan", [False, True])
def test_remat_keeps_less_from_the_forward_pass(scan):
    none, dots, full = (saved(remat, scan) for remat in ("none", "dots", "full"))
    assert full < dots < none


@pytest.mark.parametrize("scan", [False, True])
def test_names_keep_what_they_say_of_each_block(scan):
    def more(*names):
        """Numbers that these names add to what "full" keeps of a block."""
        kept = saved(f"names:{','.join(names)}", scan)
        return (kept - saved("full", scan)) / 4 / DEPTH

    # For each number of a token, and not its layer's bias, which is of no use again.
    tokens, width = 4 * 5, 8
    assert more("attention") == (tokens - 1) * width
    assert more("mlp") == (tokens - 1) * 2 * width
    assert more("qkv") == (tokens - 1) * 3 * width
    assert more("attention", "mlp") == (tokens - 1) * 3 * width
    assert saved("names:qkv,attention,mlp", scan) < saved("none", scan)


def test_memory_of_the_step_lies_between_none_and_full():
    def scratch(remat):
        model = vit(remat=remat, scan=True, depth=8, width=32, mlp_dim=128)
        grad = jax.jit(jax.grad(lambda params: make_loss(model, True)(params)[0]))
        compiled = grad.lower(shapes_of(model)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    full, named, none = map(scratch, ("full", "names:attention,mlp", "none"))
    assert full < named < none


@pytest.mark.parametrize(
    ("remat", "message"),
    [
        ("fulll", r"unknown remat 'fulll'; did you mean 'full'\?"),
        (True, r"unknown remat 'True'"),
        ("names:atention", r"did you mean 'attention'\? Known: attention, mlp, qkv"),
        ("names:", r"names nothing; write names:qkv,attention,mlp or some"),
    ],
)
def test_a_wrong_remat_is_told_before_anything_is_traced(remat, message):
    with pytest.raises(UserError, match=message):
        vit(remat=remat)


def test_a_mixer_has_no_attention_to_keep():
    sizes = {"width": 8, "depth": 1, "token_mlp_dim": 8, "mlp_dim": 16}
    model = build_model("Mixer-B/4", num_classes=3, remat="names:qkv", **sizes)
    with pytest.raises(UserError, match=r"'qkv'; Known: mlp"):
        shapes_of(model)


@pytest.mark.parametrize(
    "fields",
    [
        {"positions": "relative", "qk_norm": True, "mlp": "swiglu"},
        {
            "positions": "learned2d",
            "position_injection": "every_layer",
            "layer_scale": 0.5,
            "num_registers": 1,
        },
    ],
)
def test_scanned_blocks_equal_single_ones(fields):
    model = vit(**fields)
    params = random_params(model)
    value, out, grads = differentiate(model, params)
    got = differentiate(model.clone(scan=True), stack_blocks(params))
    assert_equal(got[0], value, rtol=1e-5)
    assert_equal(got[1], out)
    assert_equal(unstack_blocks(got[2]), grads)


@pytest.mark.parametrize(
    "fields", [{"positions": "rotary2d"}, {"position_injection": "every_layer_shared"}]
)
def test_scanned_blocks_share_what_single_ones_share(fields):
    model = vit(**fields)
    params = random_params(model)
    _, expected = jax.jit(make_loss(model, False))(params)
    scanned = jax.jit(make_loss(model.clone(scan=True), False))
    assert_equal(scanned(stack_blocks(params))[1], expected)


def test_scanned_attention_is_that_of_each_block():
    params = random_params(vit())

    def run(model, params):
        apply = functools.partial(model.apply, return_attention=True)
        return jax.jit(apply)({"params": params}, IMAGE)[1]

    out, expected = run(vit(scan=True), stack_blocks(params)), run(vit(), params)
    for i in range(DEPTH):
        name = f"block{i:02d}/attention_weights"
        assert out[name].shape == (4, 2, 5, 5)
        np.testing.assert_allclose(out[name], expected[name], atol=1e-5)


def test_stochastic_depth_grows_in_a_scan_too():
    # At a rate of almost 1 the last block is dropped for all, the first for none.
    model = vit(scan=True, depth=3, drop_path_rate=1 - 1e-6)
    params = random_params(model)
    (_, out), (_, whole) = (
        jax.jit(make_loss(model, train))(params) for train in (True, False)
    )
    first, last = "block00/output", "block02/output"
    np.testing.assert_allclose(out[first], whole[first], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(out[last], out["block01/output"])
    assert np.abs(whole[last] - whole["block01/output"]).max() > 0.1


def test_each_scanned_layer_draws_its_own_dropout_and_first_values():
    model = vit(scan=True, dropout_rate=0.5)
    params = jax.jit(model.init)(jax.random.key(0), IMAGE)["params"]
    kernel = params["Transformer"]["encoderblock"]["MlpBlock_0"]["Dense_0"]["kernel"]
    assert kernel.shape == (DEPTH, 8, 16)
    assert np.abs(kernel[0] - kernel[1]).max() > 1e-2
    # Xavier uniform on (8, 16), whatever the depth.
    assert 0.9 < np.abs(kernel).max() / np.sqrt(6 / (8 + 16)) < 1
    _, out = jax.jit(make_loss(model, True))(params)
    dropped = [np.asarray(out[f"block{i:02d}/mlp"]) == 0 for i in range(DEPTH)]
    assert (dropped[0] != dropped[1]).any()


def test_nothing_is_drawn_in_a_scan_without_rates():
    model = vit(scan=True, remat="full")
    make = jax.make_jaxpr(make_loss(model, True))(random_params(model))
    assert "random_bits" not in str(make)


def test_program_of_a_scan_does_not_grow_with_the_depth():
    def length(depth):
        model = vit(scan=True, depth=depth)
        apply = jax.jit(lambda params: model.apply({"params": params}, IMAGE)[0])
        return len(apply.lower(shapes_of(model)).as_text())

    assert length(12) < 1.3 * length(3)


def test_outputs_that_nobody_reads_are_not_kept_by_a_scan():
    def scratch(depth):
        model = vit(scan=True, depth=depth)
        apply = jax.jit(lambda params: model.apply({"params": params}, IMAGE)[0])
        compiled = apply.lower(shapes_of(model)).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    # Three outputs of (4, 5, 8) float32 for each of 20 more blocks would be 38 kB.
    assert scratch(24) - scratch(4) < 10_000


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_stacking_and_unstacking_lose_nothing(dtype):
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(dtype), shapes_of(vit())
    )
    stacked = stack_blocks(params)
    flat = trees.flatten(stacked)
    expected = trees.flatten(shapes_of(vit(scan=True)))
    assert {name: leaf.shape for name, leaf in flat.items()} == {
        name: leaf.shape for name, leaf in expected.items()
    }
    back = unstack_blocks(stacked)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    for ours, theirs in zip(
        jax.tree.leaves(back), jax.tree.leaves(params), strict=True
    ):
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, theirs)


def test_one_block_is_stacked_too():
    params = {"encoderblock_0": {"x": np.ones(2)}, "head": np.zeros(1)}
    stacked = stack_blocks(params)
    assert stacked["encoderblock"]["x"].shape == (1, 2)
    assert unstack_blocks(stacked)["encoderblock_0"]["x"].shape == (2,)


def test_stacking_twice_is_refused():
    params = {"encoderblock_0": {"x": np.ones(2)}}
    with pytest.raises(UserError, match="no parameters of single blocks"):
        stack_blocks(stack_blocks(params))
    with pytest.raises(UserError, match="no stacked parameters"):
        unstack_blocks(params)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        (
            {"encoderblock_0": {"x": np.ones(2)}, "encoderblock_2": {"x": np.ones(2)}},
            "0, 2",
        ),
        (
            {"encoderblock_0": {"x": np.ones(2)}, "encoderblock_1": {"x": np.ones(3)}},
            "shapes",
        ),
    ],
)
def test_blocks_of_different_forms_are_not_stacked(params, match):
    with pytest.raises(UserError, match=match):
        stack_blocks(params)

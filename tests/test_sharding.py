# SPDX-License-Identifier: Apache-2.0
"""The mesh, who lies where on it, and that no mesh changes what is learned."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from vit_jax import losses, sharding, trees
from vit_jax.checkpoints.train_state import TrainCheckpoints
from vit_jax.errors import UserError
from vit_jax.models import build_model
from vit_jax.optim import averaging, build_optimizer
from vit_jax.train.state import TrainState
from vit_jax.train.step import make_update


def test_the_data_axis_takes_the_devices_that_are_left():
    mesh = sharding.make_mesh(data=-1, fsdp=2)
    assert dict(mesh.shape) == {"data": 4, "fsdp": 2, "tensor": 1}
    assert sharding.batch_parts(mesh) == 8


def test_a_batch_is_split_over_data_and_fsdp():
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    batch = jax.device_put(np.arange(8), sharding.batch_sharding(mesh))
    parts = {tuple(s.data.tolist()) for s in batch.addressable_shards}
    assert parts == {(0, 1), (2, 3), (4, 5), (6, 7)}


@pytest.mark.parametrize("sizes", [{"data": 3}, {"data": 8, "fsdp": 2}])
def test_a_mesh_of_another_size_is_refused(sizes: dict):
    with pytest.raises(UserError, match=r"needs \d+ devices, but there are 8"):
        sharding.make_mesh(**sizes)


@pytest.mark.parametrize("sizes", [{"data": 0}, {"data": -1, "fsdp": -1}])
def test_sizes_must_be_positive_and_one_at_most_free(sizes: dict):
    with pytest.raises(UserError, match="at most one of them -1"):
        sharding.make_mesh(**sizes)


def test_rules_place_moments_like_their_parameters():
    mesh = sharding.make_mesh(data=2, fsdp=4)
    kernel = jnp.zeros((8, 4))
    tree = {"params": {"kernel": kernel}, "mu": {"kernel": kernel, "bias": kernel}}
    rules = [(".*kernel", ("fsdp", None)), (".*", ())]
    placed = sharding.tree_shardings(tree, mesh, rules)
    assert placed["params"]["kernel"].spec == PartitionSpec("fsdp", None)
    assert placed["mu"]["kernel"].spec == PartitionSpec("fsdp", None)
    assert placed["mu"]["bias"].spec == PartitionSpec()


def test_a_rule_with_an_unknown_axis_is_refused():
    with pytest.raises(UserError, match="names the axis 'model'; allowed are data"):
        sharding.tree_shardings(
            {"a": jnp.zeros(2)}, sharding.make_mesh(), [(".*", ("model",))]
        )


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (1000, "batch_size=1000 is not divisible"),
        (3, "such as 8"),
        (0, "use a multiple of 8"),
        (20, "such as 16 or 24"),
        (8.0, "must be a whole number"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(size: int, message: str):
    mesh = sharding.make_mesh()
    if size == 1000:
        mesh = sharding.make_mesh(devices=jax.devices()[:3])
    with pytest.raises(UserError, match=message):
        sharding.check_batch_size(size, mesh, "config.data.batch_size")


def test_a_batch_that_can_be_shared_passes():
    sharding.check_batch_size(16, sharding.make_mesh(), "batch_size")
    assert 16 % sharding.batch_parts(sharding.make_mesh()) == 0


TINY = {"width": 16, "depth": 1, "num_heads": 2, "mlp_dim": 32}
FAMILIES = {
    "ViT-Ti/4": {**TINY, "pool": "map"},
    "R50+ViT-B/16": {**TINY, "stages": (1,)},
    "BiT-R50x1": {"stages": (1,)},
    "Swin-T": {
        "width": 16,
        "depths": (1, 1),
        "num_heads": (2, 4),
        "window_size": 2,
        "resolution": 16,
        "patch_size": 4,
    },
    "SwinV2-T": {
        "width": 16,
        "depths": (1, 1),
        "num_heads": (2, 4),
        "window_size": 2,
        "resolution": 16,
        "patch_size": 4,
    },
    "Mixer-B/4": {"width": 16, "depth": 1, "token_mlp_dim": 8, "mlp_dim": 32},
    "Axial-ViT-Ti/4": TINY,
}
MESHES: dict[str, dict[str, Any]] = {
    "data": {},
    "fsdp": {"fsdp": 8},
    "tensor": {"tensor": 2},
    "mixed": {"data": 2, "fsdp": 2, "tensor": 2},
    "update": {"shard_update": True},
    "update mixed": {"data": 2, "fsdp": 2, "tensor": 2, "shard_update": True},
}


def tiny(name: str, **fields: Any) -> Any:
    return build_model(name, num_classes=4, **FAMILIES[name], **fields)


def initializer(model: Any) -> Any:
    image = np.zeros((1, 16, 16, 3), np.float32)
    return lambda key: model.init(key, image, train=False)["params"]


def begin(name: str, mesh_fields: dict[str, Any], **fields: Any) -> tuple:
    """Returns mesh, shapes with places, the first state and the compiled step."""
    model, mesh_fields = tiny(name, **fields), dict(mesh_fields)
    over_data = mesh_fields.pop("shard_update", False)
    mesh = sharding.make_mesh(**mesh_fields)
    init = initializer(model)
    shapes = jax.eval_shape(init, jax.random.key(0))
    # An epsilon above the rounding of gradients that are nearly zero: AdamW would make
    # steps of the full length of it.
    tx = build_optimizer(shapes, lr=1e-2, total_steps=10, clip_norm=1.0, eps=1e-3).tx
    create = functools.partial(TrainState.create, tx=tx, averaged=True)
    like = jax.eval_shape(create, shapes)
    places = sharding.tree_shardings(like, mesh, over_data=over_data)
    like = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
        ),
        like,
        places,
    )
    update = make_update(
        lambda params, batch, rngs: model.apply(
            {"params": params}, batch["image"], train=True, rngs=rngs
        )[0],
        losses.build_loss(),
        tx,
        key=jax.random.key(1),
        average=lambda ema, params, step: averaging.update_ema(ema, params, 0.9),
        gathering=sharding.make_gathering(
            shapes, mesh, None, "float32", over_data=over_data
        ),
    )
    first = jax.jit(lambda key: create(init(key)))(jax.random.key(0))
    state = jax.device_put(first, places)
    return mesh, like, state, jax.jit(update, out_shardings=(places, None))


def batch_on(mesh: Mesh) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.standard_normal((16, 16, 16, 3), np.float32),
        "label": rng.integers(0, 4, 16, np.int32),
    }
    return jax.device_put(batch, sharding.batch_sharding(mesh))


def learn(mesh: Mesh, state: Any, update: Any, steps: int = 3) -> tuple[Any, list]:
    batch, found = batch_on(mesh), []
    for _ in range(steps):
        state, measured = update(state, batch)
        found.append(float(measured["loss"]))
    return state, found


@functools.cache
def losses_on(name: str, mesh: str) -> list[float]:
    mesh_, _, state, update = begin(name, MESHES[mesh])
    state, found = learn(mesh_, state, update)
    for path, leaf in trees.flatten(state.params).items():
        moment = trees.flatten(state.opt_state)
        for other, array in moment.items():
            if other.endswith(f"/{path}"):
                assert array.sharding == leaf.sharding, other
    return found


@pytest.mark.parametrize("mesh", ["fsdp", "mixed", "update mixed"])
def test_a_vit_learns_the_same_on_every_mesh(mesh: str):
    expected = losses_on("ViT-Ti/4", "data")
    assert expected[0] == pytest.approx(np.log(4), rel=1e-5)  # the head starts at 0
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(losses_on("ViT-Ti/4", mesh), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [m for m in MESHES if m != "data"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_learns_the_same_on_every_mesh(name: str, mesh: str):
    expected = losses_on(name, "data")
    np.testing.assert_allclose(losses_on(name, mesh), expected, rtol=1e-5)


def specs(name: str, mesh: Mesh, **fields: Any) -> dict[str, PartitionSpec]:
    over_data = fields.pop("over_data", False)
    shapes = jax.eval_shape(initializer(tiny(name, **fields)), jax.random.key(0))
    placed = sharding.tree_shardings(shapes, mesh, over_data=over_data)
    return {key: leaf.spec for key, leaf in trees.flatten(placed).items()}


def test_fsdp_alone_splits_the_largest_axis_that_it_divides():
    found = specs("ViT-Ti/4", sharding.make_mesh(fsdp=8))
    block = "Transformer/encoderblock_0/"
    assert found[f"{block}MlpBlock_0/Dense_0/kernel"] == PartitionSpec(None, "fsdp")
    assert found[f"{block}MlpBlock_0/Dense_1/kernel"] == PartitionSpec("fsdp")
    # (16, 2, 8): 2 heads cannot be split over 8 devices.
    attention = f"{block}MultiHeadDotProductAttention_0/"
    assert found[f"{attention}query/kernel"] == PartitionSpec("fsdp")
    assert found[f"{attention}query/bias"] == PartitionSpec()
    assert found["embedding/kernel"] == PartitionSpec(None, None, None, "fsdp")
    assert found["Transformer/encoder_norm/scale"] == PartitionSpec()


def test_fsdp_splits_an_axis_into_whole_tiles_if_there_is_one():
    mesh = sharding.make_mesh(fsdp=8)
    shapes = {
        "few/kernel": (1024, 256),  # 256 / 8 is no multiple of 128
        "many/kernel": (1024, 2048),
        "none/kernel": (32, 64),
    }
    tree = {k: jax.ShapeDtypeStruct(v, jnp.float32) for k, v in shapes.items()}
    placed = sharding.tree_shardings(tree, mesh)
    assert placed["few/kernel"].spec == PartitionSpec("fsdp")
    assert placed["many/kernel"].spec == PartitionSpec(None, "fsdp")
    assert placed["none/kernel"].spec == PartitionSpec(None, "fsdp")
    tall = {"tall/kernel": jax.ShapeDtypeStruct((512, 768), jnp.float32)}
    found = sharding.tree_shardings(tall, mesh)["tall/kernel"].spec
    assert found == PartitionSpec("fsdp")  # 768 / 8 = 96


def test_fsdp_leaves_the_layer_axis_of_a_scanned_model_whole():
    found = specs("ViT-Ti/4", sharding.make_mesh(fsdp=2, tensor=2), scan=True)
    mlp = "Transformer/encoderblock/MlpBlock_0/"
    assert found[f"{mlp}Dense_0/kernel"] == PartitionSpec(None, "fsdp", "tensor")
    assert found[f"{mlp}Dense_1/kernel"] == PartitionSpec(None, "tensor", "fsdp")
    assert found[f"{mlp}Dense_0/bias"] == PartitionSpec(None, "tensor")


def test_every_family_has_something_that_tensor_splits():
    mesh = sharding.make_mesh(tensor=2)
    split = {
        "R50+ViT-B/16": "block1/unit1/conv2/kernel",
        "BiT-R50x1": "block1/unit01/conv3/kernel",
        "Swin-T": "layers_1/blocks_0/attn/qkv/kernel",
        "SwinV2-T": "layers_1/blocks_0/attn/logit_scale",
        "Mixer-B/4": "MixerBlock_0/token_mixing/Dense_0/kernel",
        "Axial-ViT-Ti/4": "Transformer/encoderblock_0/row/MlpBlock_0/Dense_0/kernel",
    }
    for name, parameter in split.items():
        assert "tensor" in specs(name, mesh)[parameter], name


def test_a_sharded_update_splits_over_data_and_fsdp_where_both_divide():
    mesh = sharding.make_mesh(data=4, fsdp=2)
    found = specs("ViT-Ti/4", mesh, over_data=True)
    mlp = "Transformer/encoderblock_0/MlpBlock_0/"
    assert found[f"{mlp}Dense_0/kernel"] == PartitionSpec(None, ("fsdp", "data"))
    # 16 of 768 = 4 * 4 * 3 * 16; the table has 16 rows and 16 columns.
    assert found["Transformer/posembed_input/pos_embedding"] == PartitionSpec(
        None, ("fsdp", "data")
    )
    odd = {"a/kernel": jax.ShapeDtypeStruct((6, 3), jnp.float32)}
    placed = sharding.tree_shardings(odd, mesh, over_data=True)
    assert placed["a/kernel"].spec == PartitionSpec("fsdp")


def test_a_tensor_axis_that_divides_nothing_is_an_error():
    mesh = sharding.make_mesh(devices=jax.devices()[:5], tensor=5)
    with pytest.raises(UserError, match="tensor=5 divides neither the heads"):
        specs("ViT-Ti/4", mesh)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            ("fsdp", None),
            r"8 devices, which do not divide an axis of 12 of a \(12, 4\)",
        ),
        ((None, None, "fsdp"), "for arrays of 3 axes, but a has the shape"),
        ((("data", "model"),), "names the axis 'model'"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(spec: tuple, message: str):
    with pytest.raises(UserError, match=message):
        sharding.tree_shardings(
            {"a": jnp.zeros((12, 4))}, sharding.make_mesh(fsdp=8), [(".*", spec)]
        )


def test_a_rule_may_split_one_axis_over_two_of_the_mesh():
    mesh = sharding.make_mesh(data=4, fsdp=2)
    placed = sharding.tree_shardings(
        {"a": jnp.zeros((16, 4))}, mesh, [(".*", (["data", "fsdp"],))]
    )
    assert placed["a"].spec == PartitionSpec(("data", "fsdp"))


def test_a_checkpoint_of_one_mesh_restores_on_another(tmp_path: Any):
    mesh, _, state, update = begin("ViT-Ti/4", MESHES["fsdp"])
    state, _ = learn(mesh, state, update, steps=1)
    written = TrainCheckpoints(str(tmp_path / "checkpoints"))
    written.save(1, state)
    written.close()
    for other in ("mixed", "update"):
        like = begin("ViT-Ti/4", MESHES[other])[1]
        read = TrainCheckpoints(str(tmp_path / "checkpoints"))
        restored = read.restore_latest(like)
        read.close()
        before = trees.flatten(state)
        for name, leaf in trees.flatten(restored).items():
            assert leaf.sharding == trees.flatten(like)[name].sharding
            np.testing.assert_array_equal(leaf, before[name])


def test_a_device_holds_its_part_of_a_split_state_only():
    _, like, _, _ = begin("ViT-Ti/4", MESHES["update"])
    kernels = {
        name: leaf
        for name, leaf in trees.flatten(like).items()
        if name.endswith("encoderblock_0/MlpBlock_0/Dense_0/kernel")
    }
    assert len(kernels) == 4  # parameter, average and two moments
    for leaf in kernels.values():
        assert leaf.shape == (16, 32)
        assert leaf.sharding.shard_shape(leaf.shape) == (16, 4)


@pytest.mark.parametrize(
    "name",
    [
        "ViT-Ti/4",
        "Swin-T",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in FAMILIES
            if name not in ("ViT-Ti/4", "Swin-T")
        ),
    ],
)
def test_casting_parts_leaves_the_result_as_it_is(name: str):
    """The layers cast these kernels themselves, so that no bit may differ."""
    model = tiny(name, dtype="bfloat16")
    mesh = sharding.make_mesh()
    params = jax.eval_shape(initializer(model), jax.random.key(0))
    rng = np.random.default_rng(2)
    params = jax.tree.map(
        lambda p: jnp.asarray(rng.normal(0, 0.2, p.shape), p.dtype), params
    )
    gathering = sharding.make_gathering(params, mesh, None, "bfloat16", over_data=True)
    image = rng.standard_normal((8, 16, 16, 3), np.float32)

    def logits(params: Any) -> jax.Array:
        return model.apply({"params": params}, image)[0]

    gathered = jax.jit(gathering.gather)(params)
    low = [k for k, v in trees.flatten(gathered).items() if v.dtype == jnp.bfloat16]
    assert len(low) > 0 or name == "BiT-R50x1"
    np.testing.assert_array_equal(jax.jit(logits)(gathered), jax.jit(logits)(params))

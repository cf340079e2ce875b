# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.data import mixing
from vit_jax.errors import UserError


def batch_of(size: int, side: int = 4) -> dict[str, jax.Array]:
    """Pictures that are wholly white (class 1) or black (class 0)."""
    label = jnp.arange(size) % 3 % 2
    shape = (size, side, side, 3)
    image = jnp.broadcast_to(label[:, None, None, None].astype(jnp.float32), shape)
    return {"image": image, "label": label}


def test_a_blend_of_0_1_2_3_with_the_neighbour():
    mixed = mixing.blend_with_neighbour(jnp.arange(4.0), jnp.float32(0.7))
    np.testing.assert_allclose(mixed, [0.9, 0.7, 1.7, 2.7], rtol=1e-6)


@pytest.mark.parametrize("size", [1, 5])
def test_pixels_and_labels_are_mixed_alike_at_any_batch_size(size: int):
    batch = batch_of(size)
    mixed = mixing.mixup(jax.random.key(3), batch, p=0.5, num_classes=2)
    white = mixed["image"].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(white, mixed["labels"][:, 1], atol=1e-6)
    np.testing.assert_allclose(mixed["labels"].sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(mixed["label"], batch["label"])


def test_given_soft_labels_are_mixed():
    batch = {
        "image": jnp.zeros((2, 1, 1, 3)),
        "labels": jnp.array([[1.0, 0.0], [0.2, 0.8]]),
    }
    mixed = mixing.mixup(jax.random.key(0), batch, p=1.0)
    weight = mixing.draw_weight(jax.random.key(0), 1.0)
    np.testing.assert_allclose(
        mixed["labels"][0, 0], weight + (1 - weight) * 0.2, rtol=1e-6
    )


def test_float_targets_are_mixed_themselves():
    batch = {"image": jnp.zeros((2, 1, 1, 3)), "label": jnp.array([0.0, 10.0])}
    mixed = mixing.mixup(jax.random.key(0), batch, p=1.0)
    weight = mixing.draw_weight(jax.random.key(0), 1.0)
    np.testing.assert_allclose(
        mixed["label"], [10 * (1 - weight), 10 * weight], rtol=1e-6
    )
    assert "labels" not in mixed


def test_weights_follow_the_folded_beta_distribution():
    keys = jax.random.split(jax.random.key(0), 4000)
    uniform = jax.vmap(lambda key: mixing.draw_weight(key, 1.0))(keys)
    assert uniform.min() >= 0.5
    assert uniform.max() <= 1
    assert abs(float(uniform.mean()) - 0.75) < 0.01  # uniform on 0.5...1
    # Beta(0.2, 0.2): E max(a, 1 - a) = 1 / 2 + E |a - 1/2| = 0.8988 by quadrature.
    skewed = jax.vmap(lambda key: mixing.draw_weight(key, 0.2))(keys)
    assert abs(float(skewed.mean()) - _folded_mean(0.2)) < 0.01


def _folded_mean(p: float) -> float:
    """E max(a, 1 - a) of Beta(p, p): substitute a = u^(1/p) near zero."""
    u = (np.arange(200_000) + 0.5) / 200_000 * 0.5**p
    a = u ** (1 / p)
    density = (1 - a) ** (p - 1)  # a^(p - 1) da = du / p
    return float((density * (1 - a)).sum() / density.sum())


def test_zero_mixes_nothing_but_makes_labels():
    batch = batch_of(4)
    mixed = mixing.mixup(jax.random.key(0), batch, p=0.0, num_classes=3)
    assert np.array_equal(mixed["image"], batch["image"])
    assert np.array_equal(mixed["labels"], np.eye(3)[batch["label"]])


def test_one_key_gives_one_result_and_another_key_another():
    first, again, other = (
        mixing.mixup(jax.random.key(seed), batch_of(4), p=0.5, num_classes=2)
        for seed in (0, 0, 1)
    )
    assert np.array_equal(first["image"], again["image"])
    assert not np.array_equal(first["image"], other["image"])


@pytest.mark.parametrize(("mixup_p", "cutmix_p"), [(0.5, 0), (0, 1), (0.5, 1)])
def test_the_number_of_devices_changes_nothing(mixup_p, cutmix_p, as_users):
    rng = np.random.default_rng(0)
    batch = {
        "image": jnp.asarray(rng.normal(size=(8, 4, 4, 3)), jnp.float32),
        "label": jnp.asarray(rng.integers(0, 5, 8), jnp.int32),
    }
    mix = jax.jit(
        lambda key, b: mixing.mix(
            key, b, mixup_p=mixup_p, cutmix_p=cutmix_p, num_classes=5
        ),
        compiler_options=as_users,
    )
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    spread = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
    for seed in range(4):
        alone = mix(jax.random.key(seed), batch)
        shared = mix(jax.random.key(seed), spread)
        for key in alone:
            assert np.array_equal(alone[key], shared[key]), key


def test_bytes_are_mixed_in_floating_point_and_bfloat16_stays():
    images = jnp.array([[0], [255]], jnp.uint8)
    mixed = mixing.blend_with_neighbour(images, jnp.float32(0.75))
    np.testing.assert_allclose(mixed, [[63.75], [191.25]])
    low = mixing.blend_with_neighbour(images.astype(jnp.bfloat16), jnp.float32(0.75))
    assert low.dtype == jnp.bfloat16


CUT_LITERALS = [  # 32 x 32, weight 0.5: side floor(32 sqrt(0.5)) = 22
    ((0, 0), 0.881836, (0, 11), (0, 11)),
    ((16, 16), 0.527344, (5, 27), (5, 27)),
    ((31, 31), 0.859375, (20, 32), (20, 32)),
    ((4, 16), 0.677734, (0, 15), (5, 27)),
]


@pytest.mark.parametrize(("centre", "kept", "rows", "columns"), CUT_LITERALS)
def test_the_box_is_cut_at_the_edges_and_so_is_its_weight(centre, kept, rows, columns):
    box = mixing.cut_box((32, 32), jnp.float32(0.5), jnp.array(centre))
    expected = np.zeros((32, 32), bool)
    expected[slice(*rows), slice(*columns)] = True
    assert np.array_equal(box, expected)
    assert 1 - float(box.mean()) == pytest.approx(kept, abs=1e-6)


def test_a_box_may_be_nothing_or_everything_but_one_edge():
    nothing = mixing.cut_box((7, 9), jnp.float32(1), jnp.array([3, 4]))
    assert not nothing.any()
    most = mixing.cut_box((7, 9), jnp.float32(0), jnp.array([3, 4]))
    assert most.all()


@pytest.mark.parametrize(("mixup_p", "cutmix_p"), [(0, 0), (0.8, 0), (0, 1), (0.8, 1)])
def test_pixels_equal_labels_in_all_four_combinations(mixup_p, cutmix_p):
    batch = batch_of(5, side=16)
    mix = jax.jit(
        lambda key: mixing.mix(
            key, batch, mixup_p=mixup_p, cutmix_p=cutmix_p, num_classes=2
        )
    )
    changed = 0
    for seed in range(8):
        mixed = mix(jax.random.key(seed))
        white = mixed["image"].mean(axis=(1, 2, 3))
        np.testing.assert_allclose(white, mixed["labels"][:, 1], atol=1 / 256)
        np.testing.assert_allclose(mixed["labels"].sum(axis=1), 1, atol=1e-6)
        changed += not np.array_equal(mixed["image"], batch["image"])
    assert (changed > 4) if mixup_p or cutmix_p else (changed == 0)


@pytest.mark.parametrize("size", [1, 3])
def test_cutmix_takes_any_batch_size(size: int):
    batch = batch_of(size, side=16)
    mixed = mixing.cutmix(jax.random.key(4), batch, p=1.0, num_classes=2)
    white = mixed["image"].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(white, mixed["labels"][:, 1], atol=1 / 256)


def test_the_switch_takes_cutmix_with_its_probability():
    batch = batch_of(2, side=16)

    def blends(probability: float) -> int:
        mix = jax.jit(
            lambda key: mixing.mix(
                key,
                batch,
                mixup_p=5.0,
                cutmix_p=1.0,
                switch_prob=probability,
                num_classes=2,
            )["image"]
        )
        images = [mix(jax.random.key(seed)) for seed in range(60)]
        # Cut pictures of black and white have no grey.
        return sum(bool(((i > 0) & (i < 1)).any()) for i in images)

    assert blends(1.0) == 0
    assert 15 < blends(0.5) < 45


def test_cutmix_keeps_bytes_and_mixes_float_targets():
    image = jnp.stack([jnp.zeros((8, 8, 3)), jnp.full((8, 8, 3), 200)])
    batch = {"image": image.astype(jnp.uint8), "label": jnp.array([0.0, 10.0])}
    mixed = mixing.cutmix(jax.random.key(2), batch, p=1.0)
    assert mixed["image"].dtype == jnp.uint8
    share = (mixed["image"][0] == 200).mean()
    assert 0 < share < 1
    np.testing.assert_allclose(mixed["label"], [10 * share, 10 - 10 * share], rtol=1e-5)


def test_cutmix_weights_average_to_what_the_beta_distribution_says():
    batch = batch_of(2, side=64)
    cut = jax.jit(
        lambda key: mixing.cutmix(key, batch, p=1.0, num_classes=2)["labels"][1, 1]
    )
    own = np.array([cut(jax.random.key(seed)) for seed in range(300)])
    # Box of share s = 1 - a, uniform, about a uniform centre: in each axis the mean
    # length inside is l - l^2 / 4 with l = sqrt(s), so E = E[(l - l^2 / 4)^2] over s.
    length = np.sqrt((np.arange(1000) + 0.5) / 1000)
    assert abs(own.mean() - (1 - ((length - length**2 / 4) ** 2).mean())) < 0.05


@pytest.mark.parametrize(
    ("batch", "options", "message"),
    [
        (batch_of(2), {"p": -0.1, "num_classes": 2}, "mixup p is -0.1; give 0"),
        (batch_of(2), {"p": 0.2}, "needs num_classes"),
        ({"image": jnp.zeros((2, 1, 1, 3))}, {"p": 0.2}, "needs 'labels' or 'label'"),
    ],
)
def test_what_cannot_be_mixed_is_refused(batch, options, message):
    with pytest.raises(UserError, match=message):
        mixing.mixup(jax.random.key(0), batch, **options)


def test_wrong_parameters_of_both_are_refused():
    with pytest.raises(UserError, match="cutmix p is -1; give 0"):
        mixing.cutmix(jax.random.key(0), batch_of(2), p=-1)
    with pytest.raises(UserError, match="switch_prob is 2; give 0 to 1"):
        mixing.build_mix(1.0, 1.0, 2, 10)
    with pytest.raises(UserError, match=r"mixup p is -0\.1; give 0"):
        mixing.build_mix(-0.1, None, 0.5, 10)
    assert mixing.build_mix(None, 0.0, 0.5, 10) is None

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf

from tests.data import pictures
from vit_jax.data.ops import augment, autoaugment
from vit_jax.data.preprocess import build_preprocess
from vit_jax.errors import UserError

IMAGE = np.asarray(pictures.photo())


@pytest.mark.parametrize("policy", autoaugment.POLICIES)
def test_a_policy_has_25_pairs_of_known_operations(policy: str):
    pairs = autoaugment.read_policy(policy)
    assert len(pairs) == 25
    for pair in pairs:
        assert len(pair) == 2
        for name, prob, magnitude in pair:
            assert name in augment.OPERATIONS
            assert 0 <= prob <= 1
            assert 0 <= magnitude <= 20


def test_levels_are_those_of_the_paper():
    # Table 6 of the paper: level 9 is the end of each range, of ten even steps.
    first = autoaugment.read_policy("imagenet")[0]
    bits, degrees = (
        float(augment.draw_amount([name], 0, magnitude, 0.9))
        for name, _, magnitude in first
    )
    assert [(name, prob) for name, prob, _ in first] == [
        ("posterize", 0.4),
        ("rotate", 0.6),
    ]
    assert bits == pytest.approx(4 * 8 / 9)
    assert degrees == pytest.approx(30)
    (name, _, magnitude), _ = autoaugment.read_policy("imagenet")[1]
    down = float(augment.draw_amount([name], 0, magnitude, 0.9))
    assert down == pytest.approx(256 * 5 / 9, abs=1e-3)


@pytest.mark.parametrize("policy", autoaugment.POLICIES)
def test_pictures_change_by_the_seed_alone_and_are_never_blank(policy: str):
    graph = tf.function(build_preprocess(f"autoaugment('{policy}')"))
    results = set()
    for number in range(40):
        features = {"image": IMAGE, "seed": tf.constant([number, 3])}
        first, second = graph(features)["image"], graph(features)["image"]
        assert np.array_equal(first, second)
        assert (first.dtype, first.shape) == (tf.uint8, IMAGE.shape)
        assert first.numpy().std() > 3
        results.add(first.numpy().tobytes())
    assert len(results) > 15


def test_operations_come_as_often_as_the_policy_says(monkeypatch):
    table = {name: operation for name, operation in augment.OPERATIONS.items()}

    def add_one(image, amount, place):
        return image + tf.constant(1, tf.uint8)

    for name in table:
        table[name] = augment.Operation(add_one)
    monkeypatch.setattr(augment, "OPERATIONS", table)
    monkeypatch.setattr(autoaugment, "OPERATIONS", {"solarize": table["solarize"]})
    monkeypatch.setattr(
        autoaugment, "POLICIES", {"imagenet": "equalize 0.25, rotate 0.75 9"}
    )
    graph = tf.function(build_preprocess("autoaugment"))
    black = tf.zeros((2, 2, 3), tf.uint8)
    counts = np.bincount(
        [
            int(graph({"image": black, "seed": tf.constant([n, 1])})["image"][0, 0, 0])
            for n in range(600)
        ],
        minlength=3,
    )
    # Both 3/16, none 3/16, one 10/16 of 600: 112, 112 and 375, deviations 10 and 12.
    assert abs(counts[0] - 112) < 40
    assert abs(counts[2] - 112) < 40


def test_what_has_no_meaning_is_refused():
    with pytest.raises(UserError, match="policy cannot be 'imagnet'"):
        build_preprocess("autoaugment('imagnet')")
    features = {"image": tf.zeros((4, 4, 3)), "seed": tf.constant([1, 2])}
    with pytest.raises(UserError, match="autoaugment got a float32 image"):
        build_preprocess("autoaugment")(features)

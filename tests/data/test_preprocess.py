# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf

from tests.data import pictures
from vit_jax.data import pixels
from vit_jax.data.ops.arguments import op_word
from vit_jax.data.preprocess import build_preprocess, check_ops, is_random
from vit_jax.errors import UserError

TRAIN = (
    "decode|inception_crop(32)|flip_lr|randaug(1, 10)|value_range(-1, 1)"
    "|onehot(10)|keep('image', 'labels')"
)


def examples(count: int = 6) -> dict[str, np.ndarray]:
    files = [pictures.jpeg(pictures.photo(seed=number)) for number in range(count)]
    return {
        "image": np.array(files, object),
        "label": np.arange(count, dtype=np.int32),
        "seed": np.stack([np.arange(count), np.full(count, 7)], 1).astype(np.int32),
        "name": np.array([f"{number}.jpg" for number in range(count)], object),
    }


def through_tf_data(ops: str, features: dict[str, np.ndarray]) -> list[dict]:
    dataset = tf.data.Dataset.from_tensor_slices(
        {key: value.tolist() for key, value in features.items()}
    ).map(build_preprocess(ops), num_parallel_calls=2)
    return list(dataset.as_numpy_iterator())


def test_eager_equals_tf_data():
    features = examples()
    inside = through_tf_data(TRAIN, features)
    outside = build_preprocess(TRAIN)
    for number, result in enumerate(inside):
        eager = outside({k: tf.constant(v[number]) for k, v in features.items()})
        assert set(eager) == set(result) == {"image", "labels"}
        for key in result:
            assert np.array_equal(eager[key], result[key])


def test_the_same_seed_gives_the_same_pixels_and_another_seed_others():
    features = examples()
    first, second = (through_tf_data(TRAIN, features) for _ in range(2))
    assert all(
        np.array_equal(a["image"], b["image"])
        for a, b in zip(first, second, strict=True)
    )
    other = through_tf_data(TRAIN, {**features, "seed": features["seed"] + 1000})
    assert not any(
        np.array_equal(a["image"], b["image"])
        for a, b in zip(first, other, strict=True)
    )


def test_an_example_does_not_depend_on_its_neighbours():
    features = examples()
    alone = {key: value[3:4] for key, value in features.items()}
    assert np.array_equal(
        through_tf_data(TRAIN, alone)[0]["image"],
        through_tf_data(TRAIN, features)[3]["image"],
    )


def test_training_images_have_the_stated_range():
    for result in through_tf_data(TRAIN, examples()):
        image = result["image"]
        assert (image.shape, image.dtype) == ((32, 32, 3), np.float32)
        assert image.min() >= -1
        assert image.max() <= 1
        assert image.std() > 0.01


def test_two_random_ops_of_a_string_draw_apart():
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    results = {
        "flip_lr|flip_lr": 0,
        "flip_lr": 0,
    }
    for ops in results:
        op = build_preprocess(ops)
        for number in range(60):
            result = op({"image": tf.constant(image), "seed": tf.constant([number, 0])})
            results[ops] += not np.array_equal(result["image"], image)
    # Equal draws would always cancel, giving 0.
    assert 15 <= results["flip_lr|flip_lr"] <= 45
    assert 15 <= results["flip_lr"] <= 45


def test_op_number_i_draws_from_the_seed_plus_a_word_of_i():
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    op = build_preprocess("drop|drop|flip_lr")
    for number in range(40):
        seed = tf.constant([number, 9])
        draw = tf.random.stateless_uniform([], seed + op_word(2))
        expected = image[:, ::-1] if draw < 0.5 else image
        assert np.array_equal(op({"image": image, "seed": seed})["image"], expected)


def test_seeds_of_ops_and_examples_never_meet():
    pairs = np.stack([np.arange(64), np.zeros(64)], 1).astype(np.int32)
    seeds = np.concatenate([pairs + op_word(index) for index in range(32)])
    assert len(np.unique(seeds, axis=0)) == 64 * 32
    draws = [float(tf.random.stateless_uniform([], seed)) for seed in seeds[::4]]
    histogram = np.histogram(draws, 8, (0, 1))[0]  # 64 expected in each, deviation 7.5
    assert 34 < histogram.min()
    assert histogram.max() < 94
    table = np.reshape(draws, (32, 16))  # (op, example)
    correlation = np.corrcoef(table) - np.eye(32)
    assert abs(correlation.mean()) < 0.02


def test_evaluation_equals_the_numpy_form():
    ops = "decode|resize_small(36)|central_crop(32)|value_range(-1, 1)"
    features = examples()
    for data, result in zip(
        features["image"], through_tf_data(ops, features), strict=True
    ):
        reference = pixels.preprocess(data, ops)
        assert np.abs(result["image"] - reference).max() <= 1.001 * 2 / 255


def test_helper_keys_never_leave():
    features = {key: tf.constant(value[0]) for key, value in examples(1).items()}
    assert set(build_preprocess("")(features)) == {"image", "label"}


def test_a_float_image_of_any_size_keeps_its_static_shape():
    dataset = tf.data.Dataset.from_tensors(
        {"image": pictures.jpeg(), "seed": np.array([1, 2], np.int32)}
    )
    for ops in ("decode|random_crop(28, padding=2)", "decode|inception_crop(28)"):
        element = dataset.map(build_preprocess(f"{ops}|randaug|value_range"))
        assert element.element_spec["image"] == tf.TensorSpec((28, 28, 3), tf.float32)


def test_check_ops_returns_the_calls():
    assert [call.name for call in check_ops(TRAIN)][:2] == ["decode", "inception_crop"]
    assert is_random(TRAIN)
    assert not is_random("decode|resize(8)")


@pytest.mark.parametrize("function", [check_ops, build_preprocess])
@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("decode|resise(8)", r"unknown op 'resise'; did you mean 'resize'.*Known: "),
        (
            "decode|resize(x=1)|flip_lr",
            r"write resize\(size.*decode\|\[resize\(x=1\)\]",
        ),
        ("decode|flip_lr(1)", r"too many positional arguments; write flip_lr\(\)"),
        ("decode||flip_lr", "empty op"),
    ],
)
def test_a_wrong_string_fails_before_any_data(function, ops: str, message: str):
    with pytest.raises(UserError, match=message):
        function(ops)


def test_a_random_op_without_a_seed_is_refused():
    with pytest.raises(UserError, match=r"needs the key 'seed'.*in \[flip_lr\]"):
        build_preprocess("flip_lr")({"image": tf.zeros((2, 2, 3))})

# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf

from vit_jax.data.preprocess import build_preprocess
from vit_jax.errors import UserError


def run(ops: str, **features) -> dict:
    result = build_preprocess(ops)({k: tf.constant(v) for k, v in features.items()})
    return {key: value.numpy().tolist() for key, value in result.items()}


def test_onehot_of_one_label():
    assert run("onehot(4)", label=2) == {"label": 2, "labels": [0, 0, 1, 0]}


def test_onehot_of_several_labels_is_multi_hot():
    assert run("onehot(4)", label=[3, 0, 3])["labels"] == [1, 0, 0, 1]
    assert run("onehot(4)", label=[3, -1, -1])["labels"] == [0, 0, 0, 1]


def test_no_label_is_off_everywhere():
    assert run("onehot(3)", label=-1)["labels"] == [0, 0, 0]
    assert run("onehot(3)", label=np.zeros(0, np.int32))["labels"] == [0, 0, 0]


def test_onehot_may_smooth_and_rename():
    result = run("onehot(4, 'a', key_result='b', on=0.925, off=0.025)", a=1)
    np.testing.assert_allclose(result["b"], [0.025, 0.925, 0.025, 0.025], rtol=1e-6)
    assert result["a"] == 1


def test_a_label_beyond_the_classes_is_an_error():
    for label in (4, -2, [0, 4]):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"onehot\(4\): a label is not in -1"
        ):
            run("onehot(4)", label=label)


def test_keep_keeps_only_the_given_keys_and_drop_drops_them():
    features = {"image": [1], "label": 2, "weight": 3.0}
    assert set(run("keep('image', 'label')", **features)) == {"image", "label"}
    assert set(run("drop('weight', 'absent')", **features)) == {"image", "label"}


def test_random_ops_may_follow_keep():
    image = np.zeros((2, 2, 3), np.uint8)
    result = run("keep('image')|flip_lr", image=image, seed=[1, 2], label=3)
    assert set(result) == {"image"}


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ("onehot(0)", "give at least one class"),
        ("onehot(4, on=0.0, off=0.1)", "off smaller than on"),
        ("onehot(4, 'lable')", "no key 'lable'; at this op there are: image, label"),
        ("onehot(4, 'image')", "takes class numbers"),
        ("keep('labels')", r"keep: there is no key 'labels'.*\(in \[keep"),
    ],
)
def test_a_wrong_key_or_argument_is_explained(ops: str, message: str):
    with pytest.raises(UserError, match=message):
        run(ops, image=[0.5], label=1, name="a.jpg")

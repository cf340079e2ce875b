# SPDX-License-Identifier: Apache-2.0
"""Losses against literals, NumPy in float64 and optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.errors import UserError
from vit_jax.losses import (
    build_loss,
    mse,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
)


def one_hot(label: int, num_classes: int) -> jax.Array:
    return jax.nn.one_hot(jnp.array([label]), num_classes)


@pytest.mark.parametrize(
    ("num_classes", "expected"),
    [(1000, 6.907755), (21841, 9.991544), (21843, 9.991636)],
)
def test_softmax_loss_of_a_zero_head_is_the_log_of_the_class_count(
    num_classes, expected
):
    loss = softmax_cross_entropy(jnp.zeros((1, num_classes)), one_hot(3, num_classes))
    np.testing.assert_allclose(loss, [expected], atol=1e-5)


@pytest.mark.parametrize(
    ("num_classes", "bias", "expected"),
    [(21843, -10.0, 10.991648), (1000, -6.9, 7.907278), (1000, -10.0, 10.045399)],
)
def test_sigmoid_loss_of_a_zero_kernel_depends_on_the_bias(num_classes, bias, expected):
    logits = jnp.full((1, num_classes), bias)
    loss = sigmoid_cross_entropy(logits, one_hot(3, num_classes))
    np.testing.assert_allclose(loss, [expected], atol=1e-5)


def test_losses_equal_those_of_optax(rng):
    logits = jnp.array(rng.normal(size=(4, 5)), jnp.float32)
    targets = jnp.array(rng.uniform(size=(4, 5)), jnp.float32)
    np.testing.assert_allclose(
        softmax_cross_entropy(logits, targets),
        optax.softmax_cross_entropy(logits, targets),
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        sigmoid_cross_entropy(logits, targets),
        optax.sigmoid_binary_cross_entropy(logits, targets).sum(-1),
        rtol=1e-6,
    )


def test_losses_stay_finite_at_large_logits():
    logits = jnp.array([[1e4, -1e4]])
    targets = jnp.array([[0.0, 1.0]])
    np.testing.assert_allclose(softmax_cross_entropy(logits, targets), [2e4])
    np.testing.assert_allclose(sigmoid_cross_entropy(logits, targets), [2e4])


def test_mse_averages_over_outputs_only():
    logits = jnp.array([[1.0, 3.0], [0.0, 0.0]])
    np.testing.assert_allclose(mse(logits, jnp.zeros((2, 2))), [5.0, 0.0])


def test_losses_of_bfloat16_logits_are_float32():
    logits = jnp.array([[1.0, 2.0, 3.0]], jnp.bfloat16)
    for name in ("softmax", "sigmoid"):
        loss = build_loss(name)(logits, {"label": jnp.array([1])})
        assert loss.dtype == jnp.float32


def test_integer_labels_and_their_one_hot_give_one_loss(rng):
    logits = jnp.array(rng.normal(size=(3, 4)), jnp.float32)
    label = jnp.array([0, 3, 2])
    for name in ("softmax", "sigmoid"):
        loss = build_loss(name)
        np.testing.assert_array_equal(
            loss(logits, {"label": label}),
            loss(logits, {"labels": jax.nn.one_hot(label, 4)}),
        )


def test_labels_win_over_label():
    logits = jnp.array([[0.0, 0.0]])
    batch = {"label": jnp.array([0]), "labels": jnp.zeros((1, 2))}
    np.testing.assert_array_equal(build_loss("softmax")(logits, batch), [0.0])


def test_label_out_of_range_costs_nothing():
    # Why the host must check labels: JAX makes them a row of zeros without an error.
    loss = build_loss("softmax")(jnp.zeros((1, 5)), {"label": jnp.array([7])})
    np.testing.assert_array_equal(loss, [0.0])


def test_label_smoothing_equals_the_formula_in_numpy(rng):
    logits = rng.normal(size=(2, 4))
    targets = np.full((2, 4), 0.1 / 4)
    targets[[0, 1], [2, 0]] += 0.9
    expected = -(targets * np.log(np.exp(logits) / np.exp(logits).sum(-1)[:, None]))
    loss = build_loss("softmax", label_smoothing=0.1)(
        jnp.array(logits, jnp.float32), {"label": jnp.array([2, 0])}
    )
    np.testing.assert_allclose(loss, expected.sum(-1), rtol=1e-5)


def test_regression_compares_the_only_output_with_the_label():
    loss = build_loss("mse")(jnp.array([[2.0], [1.0]]), {"label": jnp.array([5.0, 1])})
    np.testing.assert_allclose(loss, [9.0, 0.0])


def test_regression_takes_integer_targets():
    loss = build_loss("mse")(jnp.array([[2.0]]), {"label": jnp.array([5])})
    np.testing.assert_allclose(loss, [9.0])


def test_unknown_loss_names_the_nearest():
    with pytest.raises(UserError, match=r"unknown loss 'sofmax'; did you mean 'soft"):
        build_loss("sofmax")


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_label_smoothing_out_of_range_is_refused(smoothing):
    with pytest.raises(UserError, match=r"label_smoothing is .* allowed is 0"):
        build_loss("softmax", label_smoothing=smoothing)


def test_label_smoothing_of_a_regression_is_refused():
    with pytest.raises(UserError, match="no meaning for loss 'mse'"):
        build_loss("mse", label_smoothing=0.1)


def test_labels_with_other_columns_than_the_model_are_refused():
    batch = {"labels": jnp.zeros((2, 10))}
    with pytest.raises(UserError, match="10 columns and the model has 5 outputs"):
        build_loss("softmax")(jnp.zeros((2, 5)), batch)


def test_batch_without_labels_is_refused():
    with pytest.raises(UserError, match=r"needs 'label' or 'labels'.*only image, mask"):
        build_loss("softmax")(
            jnp.zeros((2, 5)), {"mask": jnp.ones(2), "image": jnp.ones((2, 1, 1, 3))}
        )


def test_several_outputs_for_one_target_are_refused():
    with pytest.raises(UserError, match=r"one target an example.*3 outputs"):
        build_loss("mse")(jnp.zeros((2, 3)), {"label": jnp.zeros(2)})


def test_numbers_to_predict_are_refused_by_a_classification_loss():
    with pytest.raises(UserError, match="needs class numbers and the labels are float"):
        build_loss("softmax")(jnp.zeros((2, 3)), {"label": jnp.zeros(2)})

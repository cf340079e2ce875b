# SPDX-License-Identifier: Apache-2.0
"""Counted products of traced programs against arithmetic and models/flops.py."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from vit_jax.models import build_model, flops
from vit_jax.tpu.operations import multiply_adds


def count(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return multiply_adds(jax.make_jaxpr(function)(*arrays))


def test_a_product_counts_its_terms():
    assert count(jnp.matmul, (3, 5), (5, 7)) == 3 * 5 * 7
    assert count(
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (2, 3, 5), (2, 5, 7)
    ) == (2 * 3 * 5 * 7)


def test_a_convolution_counts_each_place_of_its_kernel():
    def conv(image, kernel):
        return lax.conv_general_dilated(
            image, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    assert count(conv, (1, 8, 8, 3), (2, 2, 3, 16)) == 4 * 4 * 16 * (2 * 2 * 3)


def test_a_loop_counts_each_turn_and_a_branch_the_dearest():
    def loop(x, w):
        return lax.scan(lambda x, _: (x @ w, None), x, length=6)[0]

    def branch(x, w):
        return lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

    assert count(loop, (2, 4), (4, 4)) == 6 * 2 * 4 * 4
    assert count(branch, (2, 4), (4, 4)) == 2 * 2 * 4 * 4
    assert count(jax.jit(loop), (2, 4), (4, 4)) == 6 * 2 * 4 * 4


def test_computing_again_counts_again():
    def square(x, w):
        return jnp.sum(jnp.sin(x @ w))

    def again(x, w):
        return jax.checkpoint(square)(x, w)

    forward, once = 2 * 4 * 4, 2 * 2 * 4 * 4
    grad = jax.grad(square, argnums=(0, 1))
    assert count(grad, (2, 4), (4, 4)) == forward + once
    grad = jax.grad(again, argnums=(0, 1))
    assert count(grad, (2, 4), (4, 4)) == 2 * forward + once


@pytest.mark.parametrize("scan", [False, True])
def test_a_forward_pass_counts_as_the_sizes_say(scan):
    fields = {"width": 16, "depth": 3, "num_heads": 2, "mlp_dim": 32, "scan": scan}
    model = build_model("ViT-Ti/4", num_classes=5, attention="plain", **fields)
    image = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    traced = jax.make_jaxpr(lambda p, x: model.apply({"params": p}, x)[0])(
        params, image
    )
    assert multiply_adds(traced) == flops.multiply_adds(model, 8)


def test_of_branches_for_platforms_that_for_tpus_counts():
    def product(x, w):
        return lax.platform_dependent(
            x, w, cpu=lambda x, w: x @ w @ w @ w, default=lambda x, w: x @ w
        )

    assert count(product, (2, 4), (4, 4)) == 2 * 4 * 4


def test_a_training_step_costs_three_forward_passes_but_for_the_pixels():
    fields = {"width": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32}
    model = build_model("ViT-Ti/4", num_classes=5, attention="plain", **fields)
    image = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]

    def loss(params, image):
        logits, _ = model.apply({"params": params}, image, train=True)
        return jnp.sum(logits**2)

    traced = jax.make_jaxpr(jax.grad(loss))(params, image)
    stem = 4 * (4 * 4 * 3) * 16
    assert multiply_adds(traced) == 3 * flops.multiply_adds(model, 8) - stem

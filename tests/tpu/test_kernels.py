# SPDX-License-Identifier: Apache-2.0
"""What is counted of kernels against arithmetic and models/flops.py."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from vit_jax.models import build_model, flops
from vit_jax.models.layers import flash as flash_lib, short as short_lib
from vit_jax.tpu.chips import Chip
from vit_jax.tpu.kernels import Kernel, find_kernels
from vit_jax.tpu.operations import multiply_adds

BATCH, HEADS, HEAD_WIDTH = 2, 4, 64

flash = functools.partial(flash_lib.flash, heads=HEADS)
short = functools.partial(short_lib.short, heads=HEADS)


def of_tokens(count):
    shape = (BATCH, count, HEADS * HEAD_WIDTH)
    return [jax.ShapeDtypeStruct(shape, jnp.bfloat16)] * 3


def gradient_of(attention):
    def total(*arrays):
        return jnp.sum(attention(*arrays).astype(jnp.float32))

    return jax.grad(total, argnums=(0, 1, 2))


# Tokens of images of 224, 384 and 512 pixels in patches of 16 and of 518 in patches
# of 14, each with a class token, and how many they are in whole blocks of 128.
FILLED = [(197, 256), (577, 640), (1025, 1152), (1370, 1408)]


@pytest.mark.parametrize(("tokens", "filled"), FILLED)
def test_the_forward_kernel_multiplies_whole_blocks(tokens, filled):
    traced = jax.make_jaxpr(flash)(*of_tokens(tokens))
    (kernel,) = find_kernels(traced)
    # Queries times keys, and weights times values.
    once = BATCH * HEADS * filled**2 * HEAD_WIDTH
    assert kernel.flops == 2 * 2 * once
    assert multiply_adds(traced) == 2 * once
    assert "splash_mha_fwd" in kernel.name


@pytest.mark.parametrize(("tokens", "filled"), FILLED)
def test_the_backward_kernel_multiplies_five_times(tokens, filled):
    traced = jax.make_jaxpr(gradient_of(flash))(*of_tokens(tokens))
    forward, backward = find_kernels(traced)
    # Queries times keys once more, and the gradients of weights, values, keys, queries.
    once = BATCH * HEADS * filled**2 * HEAD_WIDTH
    assert forward.flops == 2 * 2 * once
    assert backward.flops == 2 * 5 * once
    # Each output times its gradient, summed over a head, is not in a kernel.
    beside = BATCH * HEADS * filled * HEAD_WIDTH
    assert multiply_adds(traced) == 7 * once + beside


def test_a_kernel_reads_and_writes_its_arrays_once():
    filled = 256
    (kernel,) = find_kernels(jax.make_jaxpr(flash)(*of_tokens(197)))
    arrays = 4 * BATCH * HEADS * filled * HEAD_WIDTH * 2
    # The largest products so far and their sums, both spread over 128 lanes, and the
    # output so far are results too, float32, of each image's last head.
    running = BATCH * filled * (2 * 128 + HEAD_WIDTH) * 4
    # Which tokens are filling, over 128 lanes for queries and 8 rows for keys.
    marks = filled * (128 + 8) * 4
    mask = 2  # of one block each
    assert kernel.bytes == arrays + running + marks + mask


def test_a_model_counts_what_its_sizes_say_and_the_filling_besides():
    sizes: dict[str, Any] = {"width": 128, "depth": 2, "num_heads": 2, "mlp_dim": 256}
    model = build_model("ViT-Ti/16", num_classes=5, attention="flash", **sizes)
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    traced = jax.make_jaxpr(lambda p, x: model.apply({"params": p}, x)[0])(
        params, image
    )
    filling = 2 * (256**2 - 197**2) * 128
    assert multiply_adds(traced) == flops.multiply_adds(model, 224) + 2 * filling


def test_a_kernel_in_a_loop_counts_each_turn():
    def loop(query, key, value):
        return lax.scan(lambda q, _: (flash(q, key, value), None), query, length=3)[0]

    (once,) = find_kernels(jax.make_jaxpr(flash)(*of_tokens(197)))
    (found,) = find_kernels(jax.make_jaxpr(loop)(*of_tokens(197)))
    assert found == Kernel(
        once.name, 3 * once.flops, 3 * once.vector_ops, 3 * once.bytes
    )


@pytest.mark.parametrize("tokens", [197, 257])
def test_the_short_kernels_tell_the_compiler_what_they_cost(tokens):
    """In whole registers of 128 lanes, which hold two heads, and no tokens to fill."""
    traced = jax.make_jaxpr(gradient_of(short))(*of_tokens(tokens))
    forward, backward = find_kernels(traced)
    once = BATCH * HEADS * tokens**2 * 128
    assert forward.flops == forward.told_flops == 2 * 2 * once
    assert backward.flops == backward.told_flops == 2 * 5 * once
    assert multiply_adds(traced) == 7 * once
    array = 2 * BATCH * tokens * HEADS * HEAD_WIDTH
    assert (forward.bytes, backward.bytes) == (4 * array, 7 * array)
    assert forward.uncounted_bytes == 0
    # At least: the largest, the difference, the exponential and the sum.
    pairs = BATCH * HEADS * tokens**2
    assert 4 * pairs < forward.vector_ops < 16 * pairs
    assert 8 * pairs < backward.vector_ops < 32 * pairs


def test_products_of_queries_in_parts_are_no_more(monkeypatch):
    whole = jax.make_jaxpr(gradient_of(short))(*of_tokens(300))
    monkeypatch.setattr(short_lib, "_layout", lambda *_: (128, 128, 1))
    parts = jax.make_jaxpr(gradient_of(short))(*of_tokens(300))
    assert multiply_adds(parts) == multiply_adds(whole)


def test_a_program_without_kernels_has_none():
    traced = jax.make_jaxpr(jnp.matmul)(*[jnp.zeros((2, 2))] * 2)
    assert list(find_kernels(traced)) == []


def test_each_product_of_a_query_and_a_key_is_an_exponential_and_more():
    """At least: its largest so far, the difference, the exponential and the sum."""
    tokens, filled = 1025, 1152
    (kernel,) = find_kernels(jax.make_jaxpr(flash)(*of_tokens(tokens)))
    pairs = BATCH * HEADS * filled**2
    assert 4 * pairs < kernel.vector_ops < 16 * pairs


@pytest.mark.parametrize(
    ("kernel", "seconds"),
    [
        # Arrays take 3 s, products 5 s; the compiler counts neither.
        (Kernel("x", flops=50, vector_ops=0, bytes=30), 5.0),
        (Kernel("x", flops=20, vector_ops=0, bytes=30), 3.0),
        # It is told of the arrays and of products that take 4 s; vector units take 7 s.
        (Kernel("x", flops=50, vector_ops=14, bytes=30, told_flops=40), 3.0),
        (Kernel("x", flops=50, vector_ops=2, bytes=30, told_flops=50), 0.0),
    ],
)
def test_what_the_compiler_does_not_count_is_added(kernel, seconds):
    core = Chip("x", 1, 10.0, 1, 10.0, 5.0, 2.0)
    assert kernel.uncounted_seconds(core) == pytest.approx(seconds)

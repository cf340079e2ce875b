# SPDX-License-Identifier: Apache-2.0
"""Times training steps of a ViT of Flax's own layers, as `vit_jax.benchmark step` ours.

  python benchmarks/flax_step.py --width=384 --depth=12 --num_heads=6 --batch_size=16

It stands for the authors' JAX programs, whose models are made of these layers
(`nn.MultiHeadDotProductAttention`, `nn.Dense`, `nn.LayerNorm`, `nn.gelu`) and which are
no packages that could be installed: forward, backward and AdamW in float32 on a batch
that lies on the device, cross-entropy over 1,000 classes. It prints one JSON line.
"""

import argparse
import json
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from vit_jax.benchmark import timing

NUM_CLASSES = 1000


class Block(nn.Module):
    """An encoder block of equations 2 and 3 of arXiv:2010.11929."""

    num_heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the tokens (b, n, d) after both branches."""
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(self.num_heads)(y)
        y = nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(y))


class Model(nn.Module):
    """A ViT with patches of 16 and a class token."""

    width: int
    depth: int
    num_heads: int

    @nn.compact
    def __call__(self, image: jax.Array) -> jax.Array:
        """Returns logits (b, k) of images (b, h, w, 3)."""
        x = nn.Conv(self.width, (16, 16), (16, 16), padding="VALID")(image)
        x = x.reshape(x.shape[0], -1, self.width)
        first = self.param("cls", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.tile(first, (x.shape[0], 1, 1)), x], axis=1)
        positions = nn.initializers.normal(0.02)
        x = x + self.param("positions", positions, (1, *x.shape[1:]))
        for _ in range(self.depth):
            x = Block(self.num_heads)(x)
        return nn.Dense(NUM_CLASSES)(nn.LayerNorm()(x)[:, 0])


def main() -> None:
    """Times the model that the command line describes."""
    args = parse()
    model = Model(args.width, args.depth, args.num_heads)
    rng = np.random.default_rng(0)
    shape = (args.batch_size, args.resolution, args.resolution, 3)
    image = jax.device_put(rng.standard_normal(shape, np.float32))
    label = jax.device_put(rng.integers(0, NUM_CLASSES, args.batch_size, np.int32))
    tx = optax.adamw(1e-3, weight_decay=0.1)

    @jax.jit
    def create(key: jax.Array) -> tuple[Any, Any]:
        params = model.init(key, image)
        return params, tx.init(params)

    def loss(params: Any) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(
            model.apply(params, image), label
        )
        return jnp.mean(losses)

    def update(params: Any, state: Any) -> tuple[Any, Any, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    run = jax.jit(update, donate_argnums=(0, 1))
    params, state = create(jax.random.key(0))

    def step() -> None:
        nonlocal params, state
        params, state, value = run(params, state)
        value.block_until_ready()

    _, seconds = timing.time_calls(step, args.warmup - 1 + args.steps)
    result = {
        "benchmark": "step",
        "peer": f"layers of flax {flax.__version__}, jax {jax.__version__}",
        "width": args.width,
        "depth": args.depth,
        "resolution": args.resolution,
        "dtype": "float32",
        **timing.rate(seconds[-args.steps :], args.batch_size),
        "device": jax.devices()[0].device_kind,
    }
    print(json.dumps(result))


def parse() -> argparse.Namespace:
    """Returns the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--num_heads", type=int, default=6)
    parser.add_argument("--resolution", type=int, default=224)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not told")
    return parser.parse_args()


if __name__ == "__main__":
    main()

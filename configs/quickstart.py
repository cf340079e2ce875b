# SPDX-License-Identifier: Apache-2.0
"""A small ViT on the bundled MNIST: minutes on a laptop's CPU.

Command:
  python -m vit_jax.main --config=configs/quickstart.py --workdir=runs/quickstart
  with `tune` to train on 90 % of the training pictures and look at the rest instead of
  the test set; `smoke` for two tiny steps.

Expected: see the table in README.md. The test set is looked at once, after the last
step.
"""

from ml_collections import ConfigDict

import vit_jax.config as c


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(arg, tune=False, smoke=False)
    train, held_out = ("train[:90%]", "train[90%:]") if args.tune else ("train", "test")

    config = ConfigDict()
    config.seed = 0
    config.total_steps = 4000

    config.data = ConfigDict()
    config.data.dataset = "bundled:mnist"
    config.data.split = train
    config.data.batch_size = 128
    # A digit shifted by up to two pixels is the same digit.
    config.data.ops = "decode|random_crop(28, padding=2)|value_range(-1, 1)"

    config.model = ConfigDict()
    config.model.name = "ViT-Ti/7"  # 4 x 4 patches of 7 x 7 pixels,
    config.model.width = 64  # a third as wide
    config.model.depth = 4  # and a third as deep as ViT-Ti.
    config.model.num_heads = 2
    config.model.mlp_dim = 128
    config.model.preset = "google-vit"
    config.model.num_classes = 10
    config.model.dtype = "float32"

    config.loss = ConfigDict({"name": "softmax"})

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"
    config.optimizer.lr = 4e-3
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 200
    config.optimizer.weight_decay = 0.3
    config.optimizer.clip_norm = 1.0

    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})

    config.log_steps = 100
    config.checkpoint_steps = 500
    config.keep_checkpoint_steps = None
    config.profile_steps = None

    config.evaluators = ConfigDict()
    config.evaluators.test = ConfigDict()
    config.evaluators.test.type = "classification"
    config.evaluators.test.dataset = "bundled:mnist"
    config.evaluators.test.split = held_out
    config.evaluators.test.ops = "decode|resize(28)|value_range(-1, 1)"
    config.evaluators.test.every_steps = None  # Once, at the end.

    return c.smoke(config, 28) if args.smoke else config

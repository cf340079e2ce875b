# SPDX-License-Identifier: Apache-2.0
"""A scaling study for two CPU cores: tiny ViTs, hybrids and ResNets on MNIST.

Commands:
  python -m vit_jax.study configs/scaling_study_small.py --workdir=runs/scaling --jobs=2
      every cell, the table and the figure
  python -m vit_jax.main --config=configs/scaling_study_small.py:model=bit,data=1k \
      --workdir=DIR
      one cell; add `,smoke` for two tiny steps.

Expected: the figure in README.md, which the first command draws, and the table beside
it. The test set takes no part in any choice: each run is judged by the weights that are
best on the last 5,000 training pictures.

What configs/scaling_study.py asks on JFT-300M is asked here of 1,000 to 55,000
pictures, each set a part of the next: which models gain from more data (Figure 4 of
arXiv:2010.11929), and what a given amount of compute buys (Figure 5).
"""

from ml_collections import ConfigDict

import vit_jax.config as c

MODELS = {
    # 16 patches of 7 x 7 pixels and a class token.
    "vit-small": {
        "name": "ViT-Ti/7",
        "preset": "google-vit",
        **{"width": 48, "depth": 2, "num_heads": 2, "mlp_dim": 96},
    },
    "vit": {
        "name": "ViT-Ti/7",
        "preset": "google-vit",
        **{"width": 64, "depth": 4, "num_heads": 2, "mlp_dim": 128},
    },
    # 7 x 7 tokens of a ResNet's stem; the larger has a stage of one unit after it.
    "hybrid-small": {
        "name": "R26+ViT-S/32",
        "preset": "google-hybrid",
        "stages": (),
        **{"width": 48, "depth": 2, "num_heads": 2, "mlp_dim": 96},
    },
    "hybrid": {
        "name": "R26+ViT-S/32",
        "preset": "google-hybrid",
        "stages": (1,),
        **{"width": 64, "depth": 2, "num_heads": 2, "mlp_dim": 128},
    },
    "bit-small": {"name": "BiT-R50x1", "preset": "bit", "stages": (1,)},
    "bit": {"name": "BiT-R50x1", "preset": "bit", "stages": (1, 1)},
}
# Pictures of the subset, and steps.
DATA = {
    "1k": (1_000, 400),
    "3k": (3_000, 400),
    "10k": (10_000, 400),
    "55k": (55_000, 400),
    "55k-short": (55_000, 100),
}


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(arg, model=tuple(MODELS), data=("55k", *DATA), smoke=False)
    examples, steps = DATA[args.data]

    config = ConfigDict()
    config.seed = 0
    config.total_steps = steps

    config.data = ConfigDict()
    config.data.dataset = "bundled:mnist"
    config.data.split = f"train[:{examples}]"
    config.data.batch_size = 128
    config.data.ops = "decode|resize(28)|value_range(-1, 1)"

    config.model = ConfigDict(MODELS[args.model])
    config.model.num_classes = 10
    config.model.dtype = "float32"

    config.loss = ConfigDict({"name": "softmax"})

    # The same for all models and data.
    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"
    config.optimizer.lr = 3e-3
    config.optimizer.schedule = "linear"
    config.optimizer.warmup_steps = steps // 10
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = 1.0

    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})

    config.log_steps = 20
    config.checkpoint_steps = 100
    config.keep_checkpoints = 1
    config.keep_checkpoint_steps = None
    config.profile_steps = None
    config.early_stopping = ConfigDict({"metric": "val/top1", "patience": 2})

    config.study = ConfigDict()
    config.study.models = {
        "ViT, small": "model=vit-small",
        "ViT": "model=vit",
        "hybrid, small": "model=hybrid-small",
        "hybrid": "model=hybrid",
        "ResNet, small": "model=bit-small",
        "ResNet": "model=bit",
    }
    config.study.data = {label: f"data={label}" for label in DATA}
    config.study.grids = {
        "figure 4": {
            "models": ("ViT", "hybrid", "ResNet"),
            "data": ("1k", "3k", "10k", "55k"),
        },
        "figure 5": {"data": ("55k", "55k-short")},
    }
    config.study.seeds = (0,)
    config.study.metric = "test/top1"
    config.study.few_shot = "fewshot/5shot/top1"

    # All at the same steps, so that the best one has been measured in every way.
    every = steps // 5
    config.evaluators = ConfigDict()
    config.evaluators.val = ConfigDict()
    config.evaluators.val.type = "classification"
    config.evaluators.val.dataset = "bundled:mnist"
    config.evaluators.val.split = "train[55000:]"
    config.evaluators.val.ops = config.data.ops
    config.evaluators.val.every_steps = every
    config.evaluators.test = ConfigDict(config.evaluators.val.to_dict())
    config.evaluators.test.split = "test"
    # Five pictures a digit, on the frozen features.
    config.evaluators.fewshot = ConfigDict(config.evaluators.test.to_dict())
    config.evaluators.fewshot.type = "fewshot"
    config.evaluators.fewshot.split = "test[:5000]"
    config.evaluators.fewshot.train_split = "train[55000:]"
    config.evaluators.fewshot.shots = (5,)

    if not args.smoke:
        return config
    sizes = {k: v for k, v in MODELS[args.model].items() if k not in ("name", "preset")}
    return c.smoke(config, 28, **sizes)

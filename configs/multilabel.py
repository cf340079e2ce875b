# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning on images that have any number of labels each.

Command:
  python -m vit_jax.finetune --init=CHECKPOINT --workdir=DIR \
      --config=configs/multilabel.py:dataset=jsonl:/data/photos.jsonl
  with a JSONL or CSV file of columns `image` and `labels` (in a CSV, names separated
  by spaces), or shards whose examples hold several classes; resolution=384 is the
  default. Add `,smoke` for two tiny steps.

Expected: val/map, the mean over classes of the average precision. Not yet run on a
public data set.

Each class is a yes-or-no question with a sigmoid of its own; the head's bias starts at
-6, near the answer "none of them". The checkpoint with the best mean average precision
is kept, as DIR@best.
"""

from ml_collections import ConfigDict

import vit_jax.config as c


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(
        arg, dataset="jsonl:data/photos.jsonl", resolution=384, smoke=False
    )
    size = min(args.resolution, 32) if args.smoke else args.resolution
    dataset = args.dataset
    if "@" not in dataset.rsplit("/", 1)[-1]:
        dataset += "@holdout=10%"

    config = ConfigDict()
    config.seed = 0
    config.total_steps = 2000

    config.init = ConfigDict()
    config.init.checkpoint = None
    config.init.preset = None
    config.init.reset = ("head(_dist)?/.*",)

    config.data = ConfigDict()
    config.data.dataset = dataset
    config.data.split = "train"
    config.data.batch_size = 64
    config.data.ops = f"decode|inception_crop({size})|flip_lr|{{normalize}}"

    config.model = ConfigDict()
    config.model.name = None
    config.model.num_classes = None
    config.model.head_bias = -6.0
    config.model.dtype = "float32" if args.smoke else "bfloat16"

    config.loss = ConfigDict({"name": "sigmoid"})

    config.optimizer = ConfigDict()
    config.optimizer.name = "sgd"
    config.optimizer.lr = 0.01
    config.optimizer.momentum = 0.9
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 100
    config.optimizer.clip_norm = 1.0
    config.optimizer.accumulation_steps = 1

    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})

    config.log_steps = 50
    config.checkpoint_steps = 500
    config.keep_checkpoint_steps = None
    config.profile_steps = None
    config.early_stopping = ConfigDict({"metric": "val/map", "patience": None})

    config.evaluators = ConfigDict()
    config.evaluators.val = ConfigDict()
    config.evaluators.val.type = "multilabel"
    config.evaluators.val.dataset = dataset
    config.evaluators.val.split = "validation"
    config.evaluators.val.ops = f"decode|resize({size}, antialias=True)|{{normalize}}"
    config.evaluators.val.every_steps = 200

    return _smoke(config) if args.smoke else config


def _smoke(config: ConfigDict) -> ConfigDict:
    """Two steps; the data and the model's checkpoint are the user's."""
    c.override(config, [("total_steps", "2"), ("log_steps", "1")])
    c.override(config, [("data.batch_size", "8"), ("optimizer.warmup_steps", "1")])
    c.override(config, [("evaluators.val.every_steps", "1")])
    return config

# SPDX-License-Identifier: Apache-2.0
"""Adam or SGD for pre-training ResNets: Table 7 of the ViT paper (arXiv:2010.11929).

Command, pre-training and then each of the five fine-tunings:
  python -m vit_jax.main --workdir=DIR \
      --config=configs/ablation_optimizer.py:model=r50x1,optimizer=adam
  python -m vit_jax.finetune --config=configs/finetune.py:dataset=imagenet --sweep \
      --init=DIR --workdir=DIR/imagenet
  with model=r50x1 (the default) or r152x2 and optimizer=adam (the default) or sgd; then
  dataset=cifar10, cifar100, pets and flowers; add `,smoke` for two tiny steps.

Expected, from the paper, top-1 after fine-tuning:
                 R50x1 Adam   SGD     R152x2 Adam   SGD
  ImageNet       77.54        78.24   84.97         84.37
  CIFAR-10       97.67        97.46   99.06         99.07
  CIFAR-100      86.07        85.17   92.05         91.06
  Pets           91.11        91.00   95.37         94.79
  Flowers        94.26        92.06   98.62         99.32
  average        89.33        88.79   94.01         93.72
Hardware: written for a TPU v3-32 slice, r152x2 for v3-128. Not yet run.

Differences from the paper:
- It does not tell learning rate, schedule and weight decay of SGD. Here they are those
  of big_vision for BiT-R50x1 on ImageNet (configs/bit_i1k.py there), so the column SGD
  may need others: --config.optimizer.lr=...
- JFT-300M is not public: name your own data with --config.data.dataset, the same for
  config.evaluators.val, and config.model.num_classes.
- Weight decay on kernels only and the sigmoid loss are those of the authors' later code
  (big_vision).
"""

from ml_collections import ConfigDict

import vit_jax.config as c

# Table 3: base learning rates of Adam.
LRS = {"r50x1": 1e-3, "r152x2": 6e-4}


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(
        arg, model=("r50x1", "r152x2"), optimizer=("adam", "sgd"), smoke=False
    )
    resolution = 32 if args.smoke else 224

    config = ConfigDict()
    config.seed = 0
    config.total_epochs = 7

    config.data = ConfigDict()
    config.data.dataset = "tfds:jft300m"
    config.data.split = "train"
    config.data.batch_size = 4096
    config.data.ops = f"decode|inception_crop({resolution})|flip_lr|value_range(-1, 1)"

    config.model = ConfigDict()
    config.model.name = f"BiT-R{args.model[1:]}"
    config.model.preset = "bit"
    config.model.num_classes = 18_291
    # Starts the sum of sigmoid losses near that of a model that says "none of them".
    config.model.head_bias = -10.0
    config.model.dtype = "bfloat16"

    config.loss = ConfigDict({"name": "sigmoid"})

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw" if args.optimizer == "adam" else "sgd"
    if args.optimizer == "adam":
        config.optimizer.lr = LRS[args.model]
        config.optimizer.b1 = 0.9
        config.optimizer.b2 = 0.999
        config.optimizer.schedule = "linear"
        config.optimizer.warmup_steps = 10_000
        config.optimizer.weight_decay = 0.1
        config.optimizer.clip_norm = None
    else:
        config.optimizer.lr = 1.6  # 0.1 for each 256 images.
        config.optimizer.momentum = 0.9
        config.optimizer.accumulator_dtype = "float32"
        config.optimizer.schedule = "cosine"
        config.optimizer.warmup_steps = 1000
        # 1e-4 for each 256 images there, where the learning rate is no factor of it.
        config.optimizer.weight_decay = 1e-3
        config.optimizer.clip_norm = 1.0

    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})

    config.log_steps = 50
    config.checkpoint_steps = 1000
    config.keep_checkpoint_steps = None
    config.profile_steps = None

    config.evaluators = ConfigDict()
    config.evaluators.val = ConfigDict()
    config.evaluators.val.type = "classification"
    config.evaluators.val.dataset = "tfds:jft300m"
    config.evaluators.val.split = "validation"
    config.evaluators.val.ops = (
        f"decode|resize_small({resolution * 8 // 7})|central_crop({resolution})"
        "|value_range(-1, 1)"
    )
    config.evaluators.val.every_steps = 5000

    return c.smoke(config, resolution, stages=(1, 1)) if args.smoke else config

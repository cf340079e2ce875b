# SPDX-License-Identifier: Apache-2.0
"""Class token and MLP, or mean and linear layer, for ViT: Appendix D.3, Figure 9.

arXiv:2010.11929: the mean over the patches did badly at first, and as well as the class
token at a learning rate of its own.

Command, once for each learning rate that is tried:
  python -m vit_jax.main --workdir=DIR \
      --config=configs/ablation_head.py:head=mean,lr=0.0003
  with head=token (the default: class token and a layer with tanh) or mean (mean over
  the patches and a linear layer); lr one of LRS, 0.0008 of Table 3 being the default.
  Add `,smoke` for two tiny steps. Of each head, the best rate counts.

Expected, from the paper: both alike in 5-shot accuracy on ImageNet, which `fewshot`
measures; a figure shows it, without numbers.
Hardware: written for a TPU v3-32 slice. Not yet run.

Differences from the paper:
- Its learning rates are in the figure only: LRS is a grid of ours around Table 3's.
- It names neither model nor data: ViT-B/16 and JFT are taken, with Table 3's other
  settings.
- JFT-300M is not public: name your own data with --config.data.dataset, the same for
  config.evaluators.val, and config.model.num_classes.
- The regulariser of the 5-shot classifier, the number of support sets, weight decay on
  kernels only and the sigmoid loss are those of the authors' later code (big_vision).
"""

from ml_collections import ConfigDict

import vit_jax.config as c

LRS = (8e-4, 1e-4, 3e-4, 1e-3, 3e-3)


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(arg, head=("token", "mean"), lr=LRS, smoke=False)
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
    config.model.name = "ViT-B/16"
    config.model.preset = "google-vit"
    config.model.pool = "cls" if args.head == "token" else "mean"
    config.model.num_classes = 18_291
    # The layer with tanh belongs to the class token.
    config.model.representation_size = 768 if args.head == "token" else None
    # Starts the sum of sigmoid losses near that of a model that says "none of them".
    config.model.head_bias = -10.0
    config.model.dtype = "bfloat16"

    config.loss = ConfigDict({"name": "sigmoid"})

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"
    config.optimizer.lr = args.lr
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.schedule = "linear"
    config.optimizer.warmup_steps = 10_000
    config.optimizer.weight_decay = 0.1
    config.optimizer.clip_norm = None

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
    config.evaluators.fewshot = ConfigDict()
    config.evaluators.fewshot.type = "fewshot"
    config.evaluators.fewshot.dataset = "tfds:imagenet2012"
    # Holds at least 30 images of each class.
    config.evaluators.fewshot.train_split = "train" if args.smoke else "train[:65000]"
    config.evaluators.fewshot.split = "validation"
    config.evaluators.fewshot.shots = (5,)
    config.evaluators.fewshot.ops = (
        f"decode|resize({resolution * 8 // 7})|central_crop({resolution})"
        "|value_range(-1, 1)"
    )
    config.evaluators.fewshot.every_steps = 50_000

    return c.smoke(config, resolution) if args.smoke else config

# SPDX-License-Identifier: Apache-2.0
"""Axial-ViT-B/32 and B/16: Appendix D.6 of the ViT paper (arXiv:2010.11929).

Command:
  python -m vit_jax.main --workdir=DIR --config=configs/ablation_axial.py:patch=16
  with patch=32 (the default) or 16; add `,smoke` for two tiny steps.

Expected, from the paper: better than ViT-B of the same patch size in 5-shot accuracy on
ImageNet, which `fewshot` measures, at a higher cost (twice the parameters of the
blocks). A figure shows it, without numbers.
Hardware: written for a TPU v3-32 slice, patch=16 for v3-64. Not yet run.

Differences from the paper:
- It does not say where the head looks, and a class token lies in no row and no column:
  the mean over the patches is classified by a linear layer, as in Appendix D.3.
- It tells no hyper-parameters: those that Table 3 has for ViT-B on JFT are taken. D.3
  has another learning rate for the mean, shown in a figure only: try some.
- JFT-300M is not public: name your own data with --config.data.dataset, the same for
  config.evaluators.val, and config.model.num_classes.
- The regulariser of the 5-shot classifier, the number of support sets, weight decay on
  kernels only and the sigmoid loss are those of the authors' later code (big_vision).
"""

from ml_collections import ConfigDict

import vit_jax.config as c


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(arg, patch=(32, 16), smoke=False)
    # Of four patches in smoke form, so that rows and columns have two.
    resolution = 2 * args.patch if args.smoke else 224

    config = ConfigDict()
    config.seed = 0
    config.total_epochs = 7

    config.data = ConfigDict()
    config.data.dataset = "tfds:jft300m"
    config.data.split = "train"
    config.data.batch_size = 4096
    config.data.ops = f"decode|inception_crop({resolution})|flip_lr|value_range(-1, 1)"

    config.model = ConfigDict()
    config.model.name = f"Axial-ViT-B/{args.patch}"
    config.model.preset = "axial-vit"
    config.model.num_classes = 18_291
    # Starts the sum of sigmoid losses near that of a model that says "none of them".
    config.model.head_bias = -10.0
    config.model.dtype = "bfloat16"

    config.loss = ConfigDict({"name": "sigmoid"})

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"
    config.optimizer.lr = 8e-4
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

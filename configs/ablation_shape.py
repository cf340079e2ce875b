# SPDX-License-Identifier: Apache-2.0
"""Depth, width, MLP and patch size of ViT: Appendix D.2 of the ViT paper.

arXiv:2010.11929: each is scaled alone, and all together, from a ViT of 8 layers, width
1024, MLP width 2048 and patches of 32 pixels.

Command:
  python -m vit_jax.main --workdir=DIR \
      --config=configs/ablation_shape.py:scale=depth,factor=2
  with scale=depth, width, mlp, patch (its side is divided) or all, and factor=1 (the
  default: the model that all are scaled from), 0.25, 0.5, 2, 4 or 8; add `,smoke` for
  two tiny steps.

Expected, from the paper, in 5-shot accuracy on ImageNet, which `fewshot` measures:
depth helps most, clearly up to 64 layers (factor=8), less after 16; width helps least;
smaller patches help without more parameters. A figure shows it, without numbers.
Hardware: written for a TPU v3-32 slice at factor=1, for a v3-128 at factor=4; beyond,
ask `python -m vit_jax.plan`. Not yet run.

Differences from the paper:
- Its factors are in the figure only; those above are ours.
- It does not say what becomes of the heads: their width stays 64, so that their number
  grows with the width of the tokens.
- It does not say on what these models are trained: JFT is taken, with the settings that
  Table 3 has for ViT-L/32, the model of the same width and patches.
- JFT-300M is not public: name your own data with --config.data.dataset, the same for
  config.evaluators.val, and config.model.num_classes.
- The regulariser of the 5-shot classifier, the number of support sets, weight decay on
  kernels only and the sigmoid loss are those of the authors' later code (big_vision).
"""

from ml_collections import ConfigDict

import vit_jax.config as c
from vit_jax.errors import UserError


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(
        arg,
        scale=("all", "depth", "width", "mlp", "patch"),
        factor=(1.0, 0.25, 0.5, 2.0, 4.0, 8.0),
        smoke=False,
    )
    factors = {
        name: args.factor if args.scale in (name, "all") else 1
        for name in ("depth", "width", "mlp", "patch")
    }
    if factors["patch"] < 1:
        raise UserError(
            f"scale={args.scale},factor={args.factor} makes patches of "
            f"{32 / args.factor:g} pixels, which do not divide 224; give a factor of 1 "
            "or more, or scale another"
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
    config.model.name = "ViT-L/32"  # As wide, but not as deep; its MLP is wider.
    config.model.depth = int(8 * factors["depth"])
    config.model.width = int(1024 * factors["width"])
    config.model.num_heads = config.model.width // 64
    config.model.mlp_dim = int(2048 * factors["mlp"])
    config.model.patch_size = int(32 / factors["patch"])
    config.model.preset = "google-vit"
    config.model.num_classes = 18_291
    # The tanh layer of pretraining.
    config.model.representation_size = config.model.width
    # Starts the sum of sigmoid losses near that of a model that says "none of them".
    config.model.head_bias = -10.0
    config.model.dtype = "bfloat16"

    config.loss = ConfigDict({"name": "sigmoid"})

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"
    config.optimizer.lr = 6e-4
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

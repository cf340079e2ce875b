# SPDX-License-Identifier: Apache-2.0
"""Position embeddings of ViT-B/16: Table 8 of the ViT paper (arXiv:2010.11929).

Command:
  python -m vit_jax.main --workdir=DIR \
      --config=configs/ablation_positions.py:positions=learned2d,injection=stem
  with positions=learned (the default), learned2d, relative or none, and where they are
  added, injection=stem (the default), every_layer or every_layer_shared; Table 8 has
  relative and none with stem alone. Add `,smoke` for two tiny steps.

Expected, from the paper, 5-shot accuracy on ImageNet, which `fewshot` measures:
                    stem    every layer    every layer, shared
  none              61.38   -              -
  learned (1-D)     64.21   63.96          64.29
  learned2d         64.00   64.05          64.02
  relative          64.03   -              -
Hardware: written for a TPU v3-32 slice, relative for v3-64. Not yet run.

Differences from the paper:
- It does not say on what these models are trained: JFT is taken, with the settings of
  Table 3.
- JFT-300M is not public: name your own data with --config.data.dataset, the same for
  config.evaluators.val, and config.model.num_classes.
- It does not tell the regulariser of the 5-shot classifier, nor how often support sets
  are drawn: they are those of the authors' later code (big_vision), three times.
- Weight decay acts on kernels only, and the loss is the sigmoid one, as there.
"""

from ml_collections import ConfigDict

import vit_jax.config as c
from vit_jax.errors import UserError


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(
        arg,
        positions=("learned", "learned2d", "relative", "none"),
        injection=("stem", "every_layer", "every_layer_shared"),
        smoke=False,
    )
    if args.positions in ("relative", "none") and args.injection != "stem":
        raise UserError(
            f"positions={args.positions} adds nothing to the tokens, so Table 8 has "
            f"no injection={args.injection} of it; leave injection out"
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
    config.model.name = "ViT-B/16"
    config.model.preset = "google-vit"
    config.model.positions = args.positions
    config.model.position_injection = args.injection
    config.model.num_classes = 18_291
    config.model.representation_size = 768  # The tanh layer of pretraining.
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

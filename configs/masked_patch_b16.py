# SPDX-License-Identifier: Apache-2.0
"""ViT-B/16 by masked patch prediction, Appendix B.1.2 of the ViT paper.

arXiv:2010.11929: no labels; half of the patches are corrupted, and what was in them is
predicted.

Command:
  python -m vit_jax.main --workdir=DIR \
      --config=configs/masked_patch_b16.py:dataset=jft,target=mean_colour
  with dataset=jft (the default), i21k or i1k; target=mean_colour (the default, 512
  classes), small_colours (16 times 512 classes) or pixels (L2); add `,smoke` for two
  tiny steps. Then, with labels:
  python -m vit_jax.finetune --init=DIR --workdir=DIR2 \
      --config=configs/finetune.py:dataset=imagenet

Expected, from the paper: 79.9 % on ImageNet after fine-tuning (at 384 px), 2 points
  above training from scratch and 4 below supervised pretraining. The gain is nearly as
  large after 100,000 steps (--config.total_steps=100000), and with ImageNet.
Hardware: written for a TPU v3-32 slice. Not yet run.

Differences from the paper:
- JFT-300M is not public: name your own pictures, labelled or not, such as
    --config.data.dataset="tar:/data/web/train-*.tar" or folder:DIR,
  the same for config.evaluators.val.
- The paper does not tell crops, flips, clipping or what few-shot accuracy was measured
  on: crops and flips are those of its supervised pretraining, nothing is clipped.
- 15 % instead of 50 % corrupted, as in BERT, was slightly worse:
  --config.loss.corrupted=0.15.
"""

from ml_collections import ConfigDict

import vit_jax.config as c

SOURCES = {
    "jft": ("tfds:jft300m", "train", "validation"),
    "i21k": ("tfds:imagenet21k", "full[51200:]", "full[25600:51200]"),
    "i1k": ("tfds:imagenet2012", "train[:99%]", "train[99%:]"),
}


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(
        arg,
        dataset=("jft", "i21k", "i1k"),
        target=("mean_colour", "small_colours", "pixels"),
        smoke=False,
    )
    source, train, validation = SOURCES[args.dataset]
    resolution = 32 if args.smoke else 224

    config = ConfigDict()
    config.seed = 0
    config.total_steps = 1_000_000  # About 14 epochs of JFT-300M.

    config.data = ConfigDict()
    config.data.dataset = source
    config.data.split = train
    config.data.batch_size = 4096
    config.data.ops = (
        f"decode|inception_crop({resolution})|flip_lr|value_range(-1, 1)"
        '|keep("image")'  # Labels would travel to the devices for nothing.
    )

    config.model = ConfigDict()
    config.model.name = "ViT-B/16"
    config.model.preset = "google-vit"
    config.model.num_classes = 0
    config.model.dtype = "bfloat16"

    config.loss = ConfigDict()
    config.loss.name = "masked_patch"
    config.loss.target = args.target
    config.loss.corrupted = 0.5

    config.optimizer = ConfigDict()
    config.optimizer.name = "adam"
    config.optimizer.lr = 2e-4
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_steps = 10_000
    config.optimizer.weight_decay = 0.0
    config.optimizer.clip_norm = None

    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})

    config.log_steps = 50
    config.checkpoint_steps = 1000
    config.keep_checkpoint_steps = None
    config.profile_steps = None

    config.evaluators = ConfigDict()
    config.evaluators.val = ConfigDict()
    config.evaluators.val.type = "masked_patch"
    config.evaluators.val.dataset = source
    config.evaluators.val.split = validation
    config.evaluators.val.ops = (
        f"decode|resize_small({resolution * 8 // 7})|central_crop({resolution})"
        "|value_range(-1, 1)"
    )
    config.evaluators.val.every_steps = 5000

    return c.smoke(config, resolution) if args.smoke else config

# SPDX-License-Identifier: Apache-2.0
"""ViT-H/14, pretrained as in Table 3 of the ViT paper (arXiv:2010.11929).

Command:
  python -m vit_jax.main --workdir=DIR --config=configs/vit_h14.py:dataset=i21k
  with dataset=i21k (the default), jft or i1k; add `,smoke` for two tiny steps. With
  i1k, `,tests` adds evaluators on ImageNet's validation set, ReaL and ImageNet-v2.

Expected, from the paper:
  ImageNet after fine-tuning at 518 px (Table 2): 88.55 % from JFT in 2.5k
  TPUv3-core-days; at 384 px (Table 5): 85.13 % from ImageNet-21k, 88.04 % from JFT.
Hardware: written for a TPU v3-512 slice. Not yet run.

Differences from the paper:
- JFT-300M is not public: name your own data, such as shards with several labels an
  example (made by vit_jax.data.prepare, without what
  vit_jax.data.prepare.duplicates finds),
    --config.data.dataset="tfrecord:/data/web/train-*.tfrecord@labels=label"
  or tar:GLOB, the same for config.evaluators.val, and config.model.num_classes. As
  prepared shards are in random order, --config.data.split="train[:9000000]" is a
  random subset of 9 million examples, as in Figure 4.
- Weight decay acts on kernels only, as in the authors' later code; the paper does not
  say on which parameters.
- The sigmoid loss and its head bias where classes overlap (ImageNet-21k, JFT) follow
  the authors' later code; the paper does not name the loss.
- Table 3 has no row for H/14 on ImageNet-21k, though Table 5 reports it: the values
  of ViT-L are taken.
"""

from ml_collections import ConfigDict

import vit_jax.config as c

# Table 3: base learning rate, epochs, weight decay, dropout; then what the data needs.
TABLE_3 = {
    "jft": {
        "lr": 3e-4,
        "epochs": 14,
        "decay": 0.1,
        "dropout": 0.0,
        "source": "tfds:jft300m",
        "train": "train",
        "validation": "validation",
        "classes": 18_291,
        "loss": "sigmoid",
    },
    "i21k": {
        "lr": 1e-3,
        "epochs": 90,
        "decay": 0.03,
        "dropout": 0.1,
        "source": "tfds:imagenet21k",
        "train": "full[51200:]",
        "validation": "full[25600:51200]",
        "classes": 21_843,
        "loss": "sigmoid",
    },
    "i1k": {
        "lr": 3e-3,
        "epochs": 300,
        "decay": 0.3,
        "dropout": 0.1,
        "source": "tfds:imagenet2012",
        "train": "train[:99%]",
        "validation": "train[99%:]",
        "classes": 1000,
        "loss": "softmax",
    },
}

# What `,tests` evaluates as well: data set and split by name.
TESTS = {
    "test": ("tfds:imagenet2012", "validation"),
    "real": ("tfds:imagenet2012_real@label=real_label", "validation"),
    "v2": ("tfds:imagenet_v2", "test"),
}


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(arg, dataset=("i21k", "jft", "i1k"), tests=False, smoke=False)
    row = TABLE_3[args.dataset]
    resolution = 28 if args.smoke else 224

    config = ConfigDict()
    config.seed = 0
    config.total_epochs = row["epochs"]

    config.data = ConfigDict()
    config.data.dataset = row["source"]
    config.data.split = row["train"]
    config.data.batch_size = 4096
    config.data.ops = f"decode|inception_crop({resolution})|flip_lr|value_range(-1, 1)"

    config.model = ConfigDict()
    config.model.name = "ViT-H/14"
    config.model.preset = "google-vit"
    config.model.num_classes = row["classes"]
    config.model.representation_size = 1280  # The tanh layer of pretraining.
    config.model.dropout_rate = row["dropout"]
    # Starts the sum of sigmoid losses near that of a model that says "none of them".
    config.model.head_bias = -10.0 if row["loss"] == "sigmoid" else 0.0
    config.model.dtype = "bfloat16"

    config.loss = ConfigDict({"name": row["loss"]})

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"
    config.optimizer.lr = row["lr"]
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.schedule = "cosine" if args.dataset == "i1k" else "linear"
    config.optimizer.warmup_steps = 10_000
    # The update shrinks a weight by lr(t) * weight_decay, as in torch's AdamW.
    config.optimizer.weight_decay = row["decay"]
    # The paper clips on ImageNet only.
    config.optimizer.clip_norm = 1.0 if args.dataset == "i1k" else None

    # The 32 blocks as a loop compile in half a minute instead of many; computed again
    # in the backward pass, they fit into a core.
    config.mesh = ConfigDict(
        {"data": -1, "fsdp": 1, "tensor": 1, "scan": True, "remat": "full"}
    )

    config.log_steps = 50
    config.checkpoint_steps = 1000
    config.keep_checkpoint_steps = None
    config.profile_steps = None

    config.evaluators = ConfigDict()
    config.evaluators.val = ConfigDict()
    config.evaluators.val.type = "classification"
    config.evaluators.val.dataset = row["source"]
    config.evaluators.val.split = row["validation"]
    config.evaluators.val.ops = (
        f"decode|resize_small({resolution * 8 // 7})|central_crop({resolution})"
        "|value_range(-1, 1)"
    )
    config.evaluators.val.every_steps = 5000
    if args.tests and args.dataset == "i1k":
        for name, (dataset, split) in TESTS.items():
            config.evaluators[name] = ConfigDict(config.evaluators.val.to_dict())
            config.evaluators[name].update(dataset=dataset, split=split)

    return c.smoke(config, resolution) if args.smoke else config

# SPDX-License-Identifier: Apache-2.0
"""The scaling study of the ViT paper (arXiv:2010.11929): Figures 3, 4, 5 and Table 6.

Commands:
  python -m vit_jax.study configs/scaling_study.py --workdir=DIR --plan
      what each run costs; without --plan, all of it. --dry_run prints the commands.
  python -m vit_jax.main --workdir=DIR \
      --config=configs/scaling_study.py:model=ViT-L/16,epochs=14
      one run; data=i21k or i1k instead of jft (the default), examples=9000000 for a
      subset of it; add `,smoke` for two tiny steps.
  python -m vit_jax.plan --topology=v3:8x8 \
      --config=configs/scaling_study.py:model=BiT-R152x2
      whether a run fits on a slice and how fast it may be

Expected, from the paper (Table 6, ImageNet after fine-tuning): from 77.54 % of
  BiT-R50x1 for 50 exaFLOPs to 88.08 % of ViT-H/14 for 4,262.
Hardware: written for TPU v3 slices of 32 to 512 cores. Not yet run.

Differences from the paper, and what it does not tell:
- JFT-300M is not public: name your own data as in configs/vit_b16.py. Its shards must
  be in random order, so that the first N examples are a random subset of it, and those
  for 9 million a part of those for 30 million.
- Table 3 has no row for BiT-R152x2 with 14 epochs and for BiT-R200x3: they take the
  rate of BiT-R152x{1,2}. For ViT-H/14 on ImageNet-21k that of ViT-L is taken.
- ViT-b of Figure 4, ViT-Base with all hidden dimensions halved, is ViT-S: its six heads
  are 64 wide, as those of ViT-B.
- "The same hyper-parameters" for all subsets is taken to include the number of steps,
  that of 7 epochs of the whole set; the best validation accuracy on the way counts.
- Figure 3 tunes weight decay, dropout and label smoothing for the smaller sets; here
  they are those of Table 3. Its ResNets are those of the BiT paper, and not trained.
- Fine-tuning takes the learning rate of configs/finetune.py, not the best of several.
"""

from ml_collections import ConfigDict

import vit_jax.config as c

# The runs of Table 6 on JFT-300M, and their base learning rate by Table 3.
TABLE_6 = (
    ("ViT-B/32", 7, 8e-4),
    ("ViT-B/16", 7, 8e-4),
    ("ViT-L/32", 7, 6e-4),
    ("ViT-L/16", 7, 4e-4),
    ("ViT-L/16", 14, 4e-4),
    ("ViT-H/14", 14, 3e-4),
    ("BiT-R50x1", 7, 1e-3),
    ("BiT-R50x2", 7, 1e-3),
    ("BiT-R101x1", 7, 8e-4),
    ("BiT-R152x1", 7, 6e-4),
    ("BiT-R152x2", 7, 6e-4),
    ("BiT-R152x2", 14, 6e-4),
    ("BiT-R200x3", 14, 6e-4),
    ("R50+ViT-B/32", 7, 8e-4),
    ("R50+ViT-B/16", 7, 8e-4),
    ("R50+ViT-L/32", 7, 2e-4),
    ("R50+ViT-L/16", 7, 4e-4),
    ("R50+ViT-L/16", 14, 4e-4),
)
FIGURE_4 = ("ViT-S/32", 7, 8e-4)  # ViT-b of Figure 4
JFT_IMAGES = 303_000_000
JFT_LR = {name: lr for name, _, lr in (*TABLE_6, FIGURE_4)}
WIDTHS = {"S": 384, "B": 768, "L": 1024, "H": 1280}

# Table 3 by data: rate (None: that of the model), epochs (0: as `epochs=` says), weight
# decay, dropout and schedule; then what the data needs.
DATA = {
    "jft": {
        **{"lr": None, "epochs": 0, "decay": 0.1, "dropout": 0.0},
        **{"schedule": "linear", "clip_norm": None},
        **{"source": "tfds:jft300m", "train": "train", "validation": "validation"},
        **{"classes": 18_291, "loss": "sigmoid"},
    },
    "i21k": {
        **{"lr": 1e-3, "epochs": 90, "decay": 0.03, "dropout": 0.1},
        **{"schedule": "linear", "clip_norm": None},
        "source": "tfds:imagenet21k",
        **{"train": "full[51200:]", "validation": "full[25600:51200]"},
        **{"classes": 21_843, "loss": "sigmoid"},
    },
    "i1k": {
        **{"lr": 3e-3, "epochs": 300, "decay": 0.3, "dropout": 0.1},
        **{"schedule": "cosine", "clip_norm": 1.0},
        "source": "tfds:imagenet2012",
        **{"train": "train[:99%]", "validation": "train[99%:]"},
        **{"classes": 1000, "loss": "softmax"},
    },
}


def get_config(arg: str = "") -> ConfigDict:
    args = c.parse_arg(
        arg,
        model=tuple(JFT_LR),
        epochs=7,
        data=tuple(DATA),
        examples=0,
        smoke=False,
    )
    row = DATA[args.data]
    is_resnet = args.model.startswith("BiT")
    resolution = 32 if args.smoke else 224

    config = ConfigDict()
    config.seed = 0
    config.total_epochs = row["epochs"] or args.epochs
    if args.examples:
        # As many images as of the whole set.
        config.total_epochs = None
        config.total_examples = args.epochs * JFT_IMAGES

    config.data = ConfigDict()
    config.data.dataset = row["source"]
    config.data.split = f"train[:{args.examples}]" if args.examples else row["train"]
    config.data.batch_size = 4096
    config.data.ops = f"decode|inception_crop({resolution})|flip_lr|value_range(-1, 1)"

    config.model = ConfigDict()
    config.model.name = args.model
    config.model.num_classes = row["classes"]
    # Starts the sum of sigmoid losses near that of a model that says "none of them".
    config.model.head_bias = -10.0 if row["loss"] == "sigmoid" else 0.0
    config.model.dtype = "bfloat16"
    if not is_resnet:
        size = args.model.split("-")[-1].split("/")[0]
        config.model.representation_size = WIDTHS[size]  # The tanh layer.
        config.model.dropout_rate = row["dropout"]

    config.loss = ConfigDict({"name": row["loss"]})

    config.optimizer = ConfigDict()
    config.optimizer.name = "adamw"
    config.optimizer.lr = row["lr"] or JFT_LR[args.model]
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.999
    config.optimizer.schedule = row["schedule"]
    config.optimizer.warmup_steps = 10_000
    config.optimizer.weight_decay = row["decay"]
    config.optimizer.clip_norm = row["clip_norm"]

    config.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1})

    config.log_steps = 50
    config.checkpoint_steps = 1000
    config.keep_checkpoint_steps = None
    config.profile_steps = None
    # None: no run ends early, since the rate falls to zero at the end; but the weights
    # with the best validation accuracy are what counts, and what is fine-tuned.
    config.early_stopping = ConfigDict({"metric": "val/top1", "patience": None})

    config.study = ConfigDict()
    config.study.models = {
        "ViT-b/32": "model=ViT-S/32",
        **{f"{m}, {n} epochs": f"model={m},epochs={n}" for m, n, _ in TABLE_6},
    }
    config.study.data = {
        "ImageNet": "data=i1k",
        "ImageNet-21k": "data=i21k",
        "JFT 9M": "examples=9000000",
        "JFT 30M": "examples=30000000",
        "JFT 90M": "examples=90000000",
        "JFT": "",
    }
    config.study.transfers = {
        "ImageNet": "configs/finetune.py:dataset=imagenet",
        "CIFAR-10": "configs/finetune.py:dataset=cifar10",
        "CIFAR-100": "configs/finetune.py:dataset=cifar100",
        "Pets": "configs/finetune.py:dataset=pets",
        "Flowers": "configs/finetune.py:dataset=flowers",
    }
    config.study.grids = {
        "figure 3": {
            "models": (
                "ViT-B/32, 7 epochs",
                "ViT-B/16, 7 epochs",
                "ViT-L/32, 7 epochs",
                "ViT-L/16, 14 epochs",
                "ViT-H/14, 14 epochs",
            ),
            "data": ("ImageNet", "ImageNet-21k", "JFT"),
            "transfers": ("ImageNet",),
        },
        "figure 4": {
            "models": (
                "ViT-b/32",
                "ViT-B/32, 7 epochs",
                "ViT-L/32, 7 epochs",
                "ViT-L/16, 7 epochs",
                "BiT-R50x1, 7 epochs",
                "BiT-R152x2, 7 epochs",
            ),
            "data": ("JFT 9M", "JFT 30M", "JFT 90M", "JFT"),
            "transfers": (),
        },
        "figure 5, table 6": {
            "models": tuple(f"{m}, {n} epochs" for m, n, _ in TABLE_6),
            "data": ("JFT",),
        },
    }
    config.study.seeds = (0,)
    config.study.metric = "ImageNet"
    config.study.few_shot = "imagenet/5shot/top1"

    # Both at the same steps, so that the best one has been measured in every way.
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
    config.evaluators.imagenet = ConfigDict(config.evaluators.val.to_dict())
    config.evaluators.imagenet.type = "fewshot"
    config.evaluators.imagenet.dataset = "tfds:imagenet2012"
    config.evaluators.imagenet.split = "validation"
    config.evaluators.imagenet.train_split = "train"
    config.evaluators.imagenet.shots = (5,)

    if not args.smoke:
        return config
    vit = {"width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64}
    stages = {} if args.model.startswith("ViT") else {"stages": (1,)}
    return c.smoke(config, resolution, **({} if is_resnet else vit), **stages)

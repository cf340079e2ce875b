# SPDX-License-Identifier: Apache-2.0
"""Twenty steps with everything random switched on, for test_resume.py."""

from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    del arg
    data = "synthetic:4@size=16;train=37;test=10"
    return ConfigDict(
        {
            "seed": 3,
            "total_steps": 20,
            "log_steps": 2,
            "checkpoint_steps": 5,
            "data": {
                "dataset": data,
                "split": "train",
                "batch_size": 8,
                "ops": "decode|inception_crop(12)|flip_lr|value_range(-1, 1)",
                "mixup": 0.5,
            },
            "model": {
                "name": "ViT-Ti/4",
                "width": 16,
                "depth": 2,
                "num_heads": 2,
                "mlp_dim": 32,
                "num_classes": 4,
                "dropout_rate": 0.1,
                "drop_path_rate": 0.1,
            },
            "loss": {"name": "softmax"},
            "optimizer": {
                "lr": 0.01,
                "schedule": "cosine",
                "warmup_steps": 5,
                "weight_decay": 0.1,
                "clip_norm": 1.0,
                "ema_decay": 0.9,
            },
            "evaluators": {
                "val": {
                    "type": "classification",
                    "dataset": data,
                    "split": "test",
                    "ops": "decode|resize(12)|value_range(-1, 1)",
                    "every_steps": 4,
                }
            },
        }
    )

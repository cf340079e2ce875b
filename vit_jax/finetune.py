# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a checkpoint: the training loop, started from its weights with a new head.

  python -m vit_jax.finetune --config=configs/finetune.py:dataset=folder:/data/pets \
      --init=ViT-B_16.npz --workdir=runs/pets
  python -m vit_jax.finetune --config=configs/finetune.py:dataset=cifar10 \
      --init=runs/pretraining --workdir=runs/cifar10 --sweep

The model, its numerics and the normalisation of pixels come from the checkpoint. The
same command again goes on where the run was stopped. With --sweep, the learning rates
of config.sweep are tried on a part of the training data, the best is trained on all of
it, once a seed, and the mean is reported.
"""

from collections.abc import Sequence

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
_CONFIG = flags.DEFINE_string(
    "config", None, "FILE or FILE:ARGS of a config.", required=True, flag_values=FLAGS
)
_INIT = flags.DEFINE_string(
    "init", None, "CHECKPOINT to start from.", required=True, flag_values=FLAGS
)
_PRESET = flags.DEFINE_string(
    "preset",
    None,
    "Numerics of a checkpoint that does not tell its own, such as dinov2.",
    flag_values=FLAGS,
)
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Directory of the run: local or gs://.",
    required=True,
    flag_values=FLAGS,
)
_CHECK = flags.DEFINE_boolean(
    "check", False, "Read the data, build everything; train nothing.", flag_values=FLAGS
)
_SWEEP = flags.DEFINE_boolean(
    "sweep",
    False,
    "Select the learning rate as in Section 4.1 of the paper, then train and report.",
    flag_values=FLAGS,
)
_JOBS = flags.DEFINE_integer(
    "jobs",
    1,
    "sweep: runs at a time on this machine.",
    lower_bound=1,
    flag_values=FLAGS,
)
_DRY_RUN = flags.DEFINE_boolean(
    "dry_run",
    False,
    "sweep: print the command of each run that is not done instead of running it.",
    flag_values=FLAGS,
)


def main(argv: Sequence[str]) -> int:
    """Builds the run of the config on top of the checkpoint and trains it."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; all settings are flags")
    workdir = command.absolute_workdir(_WORKDIR.value)
    config = command.load_config(_CONFIG.value)
    config.init = {
        **(config.get("init") or {}),
        "checkpoint": _INIT.value,
        **({"preset": _PRESET.value} if _PRESET.value else {}),
    }
    if _SWEEP.value:
        if not _DRY_RUN.value:
            command.check_alone("--sweep")
        from vit_jax import sweep

        arguments = command.arguments(without=("sweep", "jobs", "dry_run", "workdir"))
        return sweep.run(config, workdir, arguments, _JOBS.value, _DRY_RUN.value)
    return command.train(config, workdir, _CHECK.value)


if __name__ == "__main__":
    command.use_huge_pages()
    command.run(main, __doc__, FLAGS, trains=True)

# SPDX-License-Identifier: Apache-2.0
"""Trains the model that a config describes.

  python -m vit_jax.main --config=configs/quickstart.py --workdir=runs/quickstart
  python -m vit_jax.main --config=configs/vit_l16.py:dataset=i1k --workdir=DIR \
      --config.data.dataset=folder:/data/imagenet --config.total_epochs=90

  python -m vit_jax.main --config=configs/quickstart.py --workdir=DIR --check

The same command again goes on where the run was stopped. Any field of the config can
be set with --config.SECTION.FIELD=VALUE.
"""

from collections.abc import Sequence

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
_CONFIG = flags.DEFINE_string(
    "config", None, "FILE or FILE:ARGS of a config.", required=True, flag_values=FLAGS
)
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Directory of the run: local or gs://.",
    required=True,
    flag_values=FLAGS,
)
_CHECK = flags.DEFINE_boolean(
    "check",
    False,
    "Read the data, build everything, draw training images into the workdir; train "
    "nothing.",
    flag_values=FLAGS,
)


def main(argv: Sequence[str]) -> int:
    """Builds the run of the config, trains it, and says how it ended."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; all settings are flags")
    workdir = command.absolute_workdir(_WORKDIR.value)
    config = command.load_config(_CONFIG.value)
    return command.train(config, workdir, _CHECK.value)


if __name__ == "__main__":
    command.use_huge_pages()
    command.run(main, __doc__, FLAGS, trains=True)

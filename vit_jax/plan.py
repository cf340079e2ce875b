# SPDX-License-Identifier: Apache-2.0
r"""Compiles the training step of a config for a TPU slice, on a machine without TPUs.

  python -m vit_jax.plan --config=configs/vit_l16.py --topology=v3:8x8
  python -m vit_jax.plan --config=configs/vit_h14.py:dataset=jft --topology=v3:16x16 \
      --config.mesh.scan=True --fit --json

Tells whether the step fits into the memory of a core, what it computes, reads and
sends, and what the run costs at least, beside what the paper reports. --fit tries
accumulation of gradients, computing blocks again and splitting the parameters, until it
fits. The topology is counted in chips; those of v2 and v3 have two cores. The data of
the config need not be here. The compiler comes with: pip install 'jax[tpu]'.
"""

import json
from collections.abc import Sequence

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
_CONFIG = flags.DEFINE_string(
    "config", None, "FILE or FILE:ARGS of a config.", required=True, flag_values=FLAGS
)
_TOPOLOGY = flags.DEFINE_string(
    "topology",
    None,
    "Generation and shape of the slice, such as v3:4x4 or v4:2x2x4.",
    required=True,
    flag_values=FLAGS,
)
_FIT = flags.DEFINE_boolean(
    "fit", False, "Change the config until the step fits.", flag_values=FLAGS
)
_JSON = flags.DEFINE_boolean(
    "json", False, "Print one JSON object instead of text.", flag_values=FLAGS
)


def main(argv: Sequence[str]) -> None:
    """Plans what the command line names."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; all settings are flags")
    from vit_jax.tpu import chips, compiler

    chips.find_chip(_TOPOLOGY.value)
    config = command.load_config(_CONFIG.value)
    compiler.set_up()
    from vit_jax import planning

    slice_ = compiler.open_slice(_TOPOLOGY.value)
    plan = planning.make_plan(config, slice_)
    if _FIT.value:
        plan = planning.find_fitting(config, slice_, plan)
    if _JSON.value:
        print(json.dumps(planning.to_json(plan, _CONFIG.value)))
    else:
        print(planning.to_text(plan, _CONFIG.value), end="")


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

# SPDX-License-Identifier: Apache-2.0
r"""Collects runs into the tables of the ViT paper (arXiv:2010.11929).

  python -m vit_jax.results runs
  python -m vit_jax.results runs/a gs://BUCKET/runs --output=results.md

Every run below the folders is read; runs that differ in nothing but the seed become one
line, mean and standard deviation. A line stands beside a number of Tables 2, 5, 6 or 9
if model, pre-training, data, splits and resolution are that number's; where the paper
averaged weights, the averaged ones are compared. What the paper reports and no run has
is listed after them. At the end stand the ablations, Tables 7 and 8, the appendices and
those of the Swin paper (arXiv:2103.14030), each with ours or "not yet run". A model
with changed fields, such as other positions, stands beside an ablation of these fields
alone. The --output ends in .md or .json.
"""

import json
from collections.abc import Sequence

from absl import flags
from etils import epath

from vit_jax import command
from vit_jax.errors import UserError
from vit_jax.published_results import IMAGENET, IMAGENET21K, JFT

_SETS = {"imagenet": IMAGENET, "imagenet21k": IMAGENET21K, "jft": JFT}

FLAGS = flags.FlagValues()
_OUTPUT = flags.DEFINE_string(
    "output", None, "FILE.md or FILE.json; printed if not given.", flag_values=FLAGS
)
_PRETRAINING = flags.DEFINE_enum(
    "pretraining",
    None,
    list(_SETS),
    "Pre-training of checkpoints whose name does not tell it.",
    flag_values=FLAGS,
)


def main(argv: Sequence[str]) -> None:
    """Collects what the command line names."""
    if not argv:
        raise UserError("name at least one folder that holds runs, such as 'runs'")
    output = _OUTPUT.value
    if output is not None and not output.endswith((".md", ".json")):
        raise UserError(f"--output={output} must end in .md or .json")
    from vit_jax import found_runs, run_tables

    runs = {run.path: run for folder in argv for run in found_runs.find_runs(folder)}
    pretraining = _SETS[_PRETRAINING.value] if _PRETRAINING.value else None
    results = run_tables.collect(list(runs.values()), pretraining)
    if output is None:
        print(run_tables.to_text(results), end="")
        return
    text = run_tables.to_text(results)
    if output.endswith(".json"):
        text = json.dumps(run_tables.to_json(results), indent=2) + "\n"
    try:
        epath.Path(output).write_text(text)
    except OSError as err:
        raise UserError(f"cannot write {output}: {err}; name another file") from err


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

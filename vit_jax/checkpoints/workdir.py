# SPDX-License-Identifier: Apache-2.0
"""The weights of a run together with what is needed to use them.

Beside its `checkpoints/`, a run's directory holds `checkpoint.json`: the model with
its sizes and numerics preset, the preprocessing, the class names. Whoever has the
directory needs to remember nothing.
"""

import json
import re
from typing import Any

from etils import epath

from vit_jax.checkpoints import train_state
from vit_jax.errors import UserError

DESCRIPTION = "checkpoint.json"


def load(spec: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Loads the weights that a CHECKPOINT argument names.

    Args:
      spec: `DIR`, `DIR@STEP`, each optionally followed by `:ema` (the moving average)
        or `:raw` (the parameters); the default is the average where there is one.

    Returns:
      The content of `checkpoint.json`, and the parameters as nested dictionaries of
      NumPy arrays.

    Raises:
      UserError: The directory, the step or the description is missing or broken.
    """
    match = re.fullmatch(r"(.+?)(?:@(\d+))?(?::(ema|raw))?", spec)
    if match is None:
        raise UserError("an empty name for a checkpoint; name the workdir of a run")
    path = epath.Path(match[1]).expanduser().absolute()
    description = _read_description(path)
    directory = str(path / "checkpoints")
    step = int(match[2]) if match[2] else train_state.latest_step(directory)
    if match[3] == "ema" and not description.get("averaged"):
        raise UserError(f"the run in {path} kept no averaged weights; leave ':ema' out")
    params = train_state.restore_weights(directory, step, averaged=match[3] != "raw")
    return description, params


def _read_description(path: epath.Path) -> dict[str, Any]:
    file = path / DESCRIPTION
    if not path.is_dir():
        raise UserError(f"no directory {path}; name the workdir of a run")
    if not file.exists():
        raise UserError(
            f"{path} has no {DESCRIPTION}, so it is not the workdir of a run; name the "
            "folder that was given as --workdir"
        )
    try:
        return json.loads(file.read_text())
    except json.JSONDecodeError as err:
        raise UserError(f"{file} is damaged ({err}); restore it from a copy") from err

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
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError

DESCRIPTION = "checkpoint.json"


def load(spec: str) -> Checkpoint:
    """Loads the weights that a CHECKPOINT argument names.

    Args:
      spec: `DIR`, `DIR@STEP` or `DIR@best`, each optionally followed by `:ema` (the
        moving average) or `:raw` (the parameters); the default is the average where
        there is one.

    Returns:
      The weights as the run keeps them: the blocks of a scanned model are one array.

    Raises:
      UserError: The directory, the step or the description is missing or broken.
    """
    match = re.fullmatch(r"(.+?)(?:@(\d+|best))?(?::(ema|raw))?", spec)
    if match is None:
        raise UserError("an empty name for a checkpoint; name the workdir of a run")
    path = epath.Path(match[1]).expanduser().absolute()
    description = _read_description(path)
    if match[3] == "ema" and not description.get("averaged"):
        raise UserError(f"the run in {path} kept no averaged weights; leave ':ema' out")
    folder = path / "checkpoints"
    step = _step(folder, match[2])
    params = train_state.restore_weights(str(folder), step, averaged=match[3] != "raw")
    return Checkpoint.from_description(description, params, str(path / DESCRIPTION))


def _step(folder: epath.Path, named: str | None) -> int:
    if named is None:
        return train_state.latest_step(str(folder))
    if named != "best":
        return int(named)
    try:
        return int((folder / train_state.BEST).read_text())
    except (OSError, ValueError) as err:
        raise UserError(
            f"{folder} does not say which checkpoint is best; leave '@best' out for "
            "the newest, or train with an evaluator that picks the best"
        ) from err


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
        description = json.loads(file.read_text())
        return {str(key): value for key, value in description.items()}
    except (ValueError, AttributeError) as err:
        raise UserError(f"{file} is damaged ({err}); restore it from a copy") from err

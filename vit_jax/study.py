# SPDX-License-Identifier: Apache-2.0
r"""Trains a grid of models x data x seeds and compares what they reach and cost.

  python -m vit_jax.study configs/scaling_study_small.py --workdir=runs/scaling --jobs=2
  python -m vit_jax.study configs/scaling_study.py --workdir=gs://BUCKET/scaling --plan
  python -m vit_jax.study configs/scaling_study.py --workdir=/shared/scaling --dry_run \
      --launcher='python launch/slurm.py --name={name} --nodes=4 --time=48:00:00 --'
  python -m vit_jax.study configs/scaling_study.py --workdir=/shared/scaling --collect

FILE is a config with a section `study`. First the plan is printed: parameters, exaFLOPs
beside the paper's and core-days of each cell. Then what is left of it runs, each cell a
process of vit_jax.main in a directory of its own, DIR/MODEL/DATA/seed_S, with its log
beside. The same command again goes on where it was stopped or killed, and repeats
nothing. At the end DIR holds the table (study.md, study.json), which names the cells
that are missing, and the figure (study.png), after Figures 3 to 5 of arXiv:2010.11929.
--config.a.b=VALUE changes all cells.
"""

import fnmatch
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags, logging

from vit_jax import command
from vit_jax.errors import UserError, unknown

if TYPE_CHECKING:
    from vit_jax.scaling.grid import Cell
    from vit_jax.scaling.job import Job

FLAGS = flags.FlagValues()
_WORKDIR = flags.DEFINE_string(
    "workdir",
    None,
    "Directory of all cells: local or gs://.",
    required=True,
    flag_values=FLAGS,
)
_CELLS = flags.DEFINE_list(
    "cells",
    ["*"],
    "Patterns of the names of those cells that run, such as 'ViT*/*/seed_0'; the table "
    "has all of them.",
    flag_values=FLAGS,
)
_JOBS = flags.DEFINE_integer(
    "jobs", 1, "Cells at a time on this machine.", lower_bound=1, flag_values=FLAGS
)
_PLAN = flags.DEFINE_boolean(
    "plan", False, "Only print what the cells cost.", flag_values=FLAGS
)
_DRY_RUN = flags.DEFINE_boolean(
    "dry_run",
    False,
    "Print the command of each cell that is not finished instead of running it.",
    flag_values=FLAGS,
)
_LAUNCHER = flags.DEFINE_string(
    "launcher",
    None,
    "dry_run: what each command begins with instead of 'python -m vit_jax.main', a "
    "program of launch/ and its flags; {name} becomes the cell's.",
    flag_values=FLAGS,
)
_COLLECT = flags.DEFINE_boolean(
    "collect",
    False,
    "Only write the table and the figure of what is finished.",
    flag_values=FLAGS,
)
_FIGURE = flags.DEFINE_string(
    "figure",
    None,
    "FILE.png or FILE.svg of the figure. Default: study.png in the workdir.",
    flag_values=FLAGS,
)


def main(argv: Sequence[str]) -> int:
    """Plans, runs and collects the study that the command line names."""
    _check_flags(argv)
    import jax

    # The accelerator is for the cells.
    jax.config.update("jax_platforms", "cpu")
    from vit_jax.plots import style
    from vit_jax.scaling import job as job_lib

    spec, workdir = argv[0], command.absolute_workdir(_WORKDIR.value)
    figure = _FIGURE.value or f"{workdir}/study.png"
    style.check_path(figure)
    runs = not (_PLAN.value or _DRY_RUN.value or _COLLECT.value)
    job = job_lib.open_job(
        spec, workdir, _arguments(spec), command.load_config, data_is_here=runs
    )
    chosen = _choose(job)
    if _DRY_RUN.value:
        for name, line in itertools.chain(*map(dict.items, job.commands(chosen))):
            print(job_lib.to_launch(name, line, _LAUNCHER.value))
        return command.DONE
    if not _COLLECT.value:
        print(job.plan(), flush=True)
    if _PLAN.value:
        return command.DONE
    job.save()
    failed = job.run(chosen, _JOBS.value) if runs else []
    if failed is None:
        return command.INTERRUPTED
    text, points = job.save()
    print(text, end="")
    if job.draw(points, figure):
        logging.info("the figure: %s", figure)
    if failed:
        raise UserError(
            f"{len(failed)} of the runs failed: {'; '.join(failed)}; mend it, then the "
            "same command runs what is left"
        )
    return command.DONE


def _check_flags(argv: Sequence[str]) -> None:
    if len(argv) != 1:
        raise UserError(
            "name one FILE or FILE:ARGS of a study, such as "
            f"configs/scaling_study_small.py, not {len(argv)}"
        )
    if sum((_PLAN.value, _DRY_RUN.value, _COLLECT.value)) > 1:
        raise UserError("give one of --plan, --dry_run and --collect")
    if _LAUNCHER.value and not _DRY_RUN.value:
        raise UserError("--launcher says how commands are printed; add --dry_run")


def _arguments(spec: str) -> list[str]:
    """Returns what of the command line goes to each training."""
    own = [name for name in FLAGS if name not in ("traceback", "compilation_cache")]
    given = command.arguments(without=own)
    return [each for each in given if each != spec]


def _choose(job: "Job") -> "list[Cell]":
    """Returns the cells that `--cells` names.

    Raises:
      UserError: A pattern that none has.
    """
    found = {}
    for pattern in _CELLS.value:
        some = [c for c in job.trainings if fnmatch.fnmatchcase(c.name, pattern)]
        if not some:
            raise unknown("cell", pattern, [cell.name for cell in job.trainings])
        found |= dict.fromkeys(some)
    return [cell for cell in job.trainings if cell in found]


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

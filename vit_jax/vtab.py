# SPDX-License-Identifier: Apache-2.0
r"""Runs VTAB-1k (arXiv:1910.04867): fine-tunes a checkpoint on 19 small tasks.

  python -m vit_jax.vtab --init=ViT-L_16.npz --workdir=runs/vtab
  python -m vit_jax.vtab --init=runs/pretraining --workdir=runs/vtab \
      --tasks=natural,kitti_dist --seeds=1 --data_dir=/data/tfds

Each task is trained on 1,000 images once a seed, as configs/vtab.py says, in a process
and a directory of its own, DIR/TASK/seed_S; --config.a.b=VALUE changes all of them. The
same command again goes on where it was stopped and repeats nothing. A task whose data
set TensorFlow Datasets has not prepared is named and left out. At the end stands the
table of accuracies on the test splits beside Table 9 of the ViT paper.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags, logging
from etils import epath

from vit_jax import command
from vit_jax.errors import UserError, unknown
from vit_jax.published_results import (
    TABLE_9,
    VTAB_GROUPS,
    VTAB_TASKS,
    find_benchmark,
    vtab_name,
)

METRIC = "val/top1"

FLAGS = flags.FlagValues()
_CONFIG = flags.DEFINE_string(
    "config",
    "configs/vtab.py",
    "FILE or FILE:ARGS of the config of a task; it takes the argument task=.",
    flag_values=FLAGS,
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
    "Directory of all runs: local or gs://.",
    required=True,
    flag_values=FLAGS,
)
_TASKS = flags.DEFINE_list(
    "tasks",
    ["all"],
    f"all, a group ({', '.join(VTAB_GROUPS)}) or names of tasks.",
    flag_values=FLAGS,
)
_SEEDS = flags.DEFINE_integer(
    "seeds", 3, "Runs a task, of seeds 0, 1, ...", lower_bound=1, flag_values=FLAGS
)
_JOBS = flags.DEFINE_integer(
    "jobs", 1, "Runs at a time on this machine.", lower_bound=1, flag_values=FLAGS
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir",
    None,
    "Where TensorFlow Datasets are prepared. Default: that of the config, which is "
    "TFDS_DATA_DIR.",
    flag_values=FLAGS,
)
_DRY_RUN = flags.DEFINE_boolean(
    "dry_run",
    False,
    "Print the command of each run that is not done instead of running it.",
    flag_values=FLAGS,
)


class _Task(NamedTuple):
    """A task as its config describes it.

    Attributes:
      spec: The value of --config.
      missing: Why it cannot run; None if it can.
      official: Whether data and splits are the benchmark's, so that its results stand
        beside published ones.
    """

    spec: str
    missing: str | None
    official: bool


def main(argv: Sequence[str]) -> int:
    """Runs what is left of the tasks and prints the table."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; all settings are flags")
    from vit_jax import cells

    workdir = command.absolute_workdir(_WORKDIR.value)
    seeds = range(_SEEDS.value)
    own = ("config", "workdir", "tasks", "seeds", "jobs", "data_dir", "dry_run")
    arguments = command.arguments(without=own)
    path = epath.Path(workdir) / "vtab.json"
    state = cells.load(path)
    _check_same_study(state, [f"--config={_CONFIG.value}", *arguments], workdir)
    tasks = {task: _look_up(task) for task in VTAB_TASKS}
    commands: dict[str, list[str]] = {}
    for name in select_tasks(_TASKS.value):
        if reason := tasks[name].missing:
            logging.warning("%s is left out: %s", name, reason)
            continue
        for seed in seeds:
            commands[_cell(name, seed)] = cells.make_command(
                "finetune",
                [f"--config={tasks[name].spec}", *arguments],
                f"{workdir}/{_cell(name, seed)}",
                {"seed": seed, **_data_dirs()},
            )
    status = cells.run_all(commands, state, path, _JOBS.value, _DRY_RUN.value)
    if status is not None:
        return status
    scores = {
        name: [100 * state[cell][METRIC] for cell in _cells(name, seeds, state)]
        for name in VTAB_TASKS
    }
    if not any(scores.values()):
        raise UserError(
            "none of the tasks could run, as the lines above tell; prepare their data "
            "sets with 'tfds build', or say where they are with TFDS_DATA_DIR"
        )
    official = all(tasks[name].official for name in VTAB_TASKS if scores[name])
    table = make_table(scores, len(seeds), official)
    lines = [f"Top-1 accuracy in %: {' '.join(state['arguments'])}", "", table]
    lines += [f"not run: {n}: {t.missing}" for n, t in tasks.items() if t.missing]
    text = "\n".join(lines) + "\n"
    (epath.Path(workdir) / "vtab.md").write_text(text)
    print(text, end="")
    return command.DONE


def select_tasks(names: Sequence[str]) -> list[str]:
    """Returns the tasks that a list of names and groups stands for, each once.

    Raises:
      UserError: A name that is none.
    """
    groups = {"all": VTAB_TASKS, **VTAB_GROUPS}
    chosen: dict[str, None] = {}
    for name in names:
        if name not in groups and name not in VTAB_TASKS:
            raise unknown("task", name, [*groups, *VTAB_TASKS])
        chosen |= dict.fromkeys(groups.get(name, (name,)))
    return [task for task in VTAB_TASKS if task in chosen]


def _check_same_study(
    state: dict[str, Any], arguments: Sequence[str], workdir: str
) -> None:
    """Refuses to mix the results of two checkpoints or configs in one table."""
    shared = ("--traceback", "--notraceback", "--compilation_cache")
    kept = [arg for arg in arguments if not arg.startswith(shared)]
    before = state.setdefault("arguments", kept)
    if sorted(before) != sorted(kept):
        raise UserError(
            f"{workdir} holds runs of {' '.join(before)}, now it is {' '.join(kept)}; "
            "use the same arguments, or another --workdir"
        )


def _look_up(task: str) -> _Task:
    file, _, args = _CONFIG.value.partition(":")
    spec = f"{file}:{','.join(filter(None, [f'task={task}', args]))}"
    config = command.load_config(spec)
    name = METRIC.partition("/")[0]
    if name not in (config.get("evaluators") or {}):
        raise UserError(
            f"{spec} has no evaluator {name!r}, whose {METRIC} the table shows; name "
            "the evaluator of the test split so"
        )
    data, evaluator = config.data, config.evaluators[name]
    benchmark = find_benchmark(
        (data.dataset, data.split), (evaluator.dataset, evaluator.split)
    )
    missing = _missing(data.dataset, _DATA_DIR.value or data.get("data_dir"))
    return _Task(spec, missing, benchmark == vtab_name(task))


def _missing(dataset: str, data_dir: str | None) -> str | None:
    """Returns why a data set cannot be opened and what to do; None if it can."""
    from vit_jax.data.examples import Request
    from vit_jax.data.forms.tfds import find_prepared
    from vit_jax.data.sources import parse_dataset

    form, location, options = parse_dataset(dataset)
    if form != "tfds":
        return None
    try:
        find_prepared(Request(location, options, [], data_dir=data_dir))
    except UserError as err:
        build = location.partition(":")[0] if "*" in location else location
        return f"{str(err).split(';')[0]}; run 'tfds build {build}'"
    return None


def _data_dirs() -> dict[str, str]:
    if _DATA_DIR.value is None:
        return {}
    evaluator = METRIC.partition("/")[0]
    fields = ("data.data_dir", f"evaluators.{evaluator}.data_dir")
    return dict.fromkeys(fields, _DATA_DIR.value)


def _cell(task: str, seed: int) -> str:
    return f"{task}/seed_{seed}"


def _cells(task: str, seeds: Sequence[int], state: Mapping[str, Any]) -> list[str]:
    return [cell for seed in seeds if (cell := _cell(task, seed)) in state]


def make_table(
    scores: Mapping[str, Sequence[float]], seeds: int, official: bool
) -> str:
    """Returns the table in Markdown.

    Means are those of groups whose tasks all have all seeds; their deviation is that of
    the means of each seed.

    Args:
      scores: Accuracies in per cent of each task, one a seed that is done.
      seeds: How many seeds there should be.
      official: Whether to show the paper's rows beside.
    """
    papers = TABLE_9 if official else ()
    titles = ["task", "this checkpoint"]
    titles += [f"{row.model}, {row.pretraining}" for row in papers]
    lines = [_line(titles), _line(["---"] * len(titles))]
    for group, tasks in {**VTAB_GROUPS, "all": VTAB_TASKS}.items():
        if group != "all":
            for task in tasks:
                cells = [_score(scores[task], seeds)]
                cells += [f"{row.values[vtab_name(task)]:.1f}" for row in papers]
                lines.append(_line([task, *cells]))
        cells = ["not all run"]
        if all(len(scores[task]) == seeds for task in tasks):
            columns = zip(*(scores[task] for task in tasks), strict=True)
            cells = [_score([statistics.mean(column) for column in columns], seeds)]
        for row in papers:
            mean = statistics.mean(row.values[vtab_name(task)] for task in tasks)
            cells.append(f"{mean:.2f}")
        lines.append(_line([f"**{group}, mean of {len(tasks)}**", *cells]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _score(values: Sequence[float], seeds: int) -> str:
    if not values:
        return "not run"
    text = f"{statistics.mean(values):.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2f}"
    return text if len(values) == seeds else f"{text} ({len(values)} of {seeds} seeds)"


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

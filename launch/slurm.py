# SPDX-License-Identifier: Apache-2.0
"""Trains on a SLURM cluster, on nodes with GPUs or without.

  python launch/slurm.py --name=vit-b16 --nodes=2 --gpus=8 --time=24:00:00 -- \
      --config=configs/vit_b16.py:dataset=i1k --workdir=/shared/runs/vit-b16
  python launch/slurm.py --name=try --nodes=2 --gpus=0 --time=1:00:00 -- \
      --config=configs/quickstart.py --workdir=/shared/runs/try

Writes a batch script to --script and submits it, from the project's folder, which all
nodes see, with the environment in .venv. A task is one process: one for each GPU, or
one for each node without. Before the time is up, the run writes a checkpoint, and the
job goes back into the queue; so it does after a failure, but not after a mistake in the
command (exit status 1 or 2). With --dry_run script and commands are printed, and
nothing is done. What follows `--` goes to `python -m vit_jax.main`.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={tasks}
#SBATCH --cpus-per-task={cpus}
{options}#SBATCH --time={time}
#SBATCH --output={name}-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# SIGTERM to every task, this long before the time is up.
#SBATCH --signal=TERM@{seconds}

{environment}srun --kill-on-bad-exit=1 {command}
status=$?
echo "exit status $status"
case $status in 0|1|2) exit $status;; esac
if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""


def parse(argv: list[str]) -> argparse.Namespace:
    """Returns the arguments; `command` is what follows `--`."""
    middle = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="Name of the job.")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=8, help="Of a node; 0 for none.")
    parser.add_argument("--cpus", type=int, default=8, help="Cores of a task.")
    parser.add_argument("--time", required=True, help="Limit, such as 24:00:00.")
    parser.add_argument("--partition")
    parser.add_argument("--account")
    parser.add_argument(
        "--seconds", type=int, default=300, help="For the last checkpoint."
    )
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--python", default=".venv/bin/python")
    parser.add_argument("--script", default="train.sbatch", help="File to write.")
    parser.add_argument("--dry_run", action="store_true")
    args = parser.parse_args(argv[:middle])
    args.command = argv[middle + 1 :]
    if not args.command:
        parser.error("nothing to train: add ' -- --config=... --workdir=DIR'")
    return args


def script(args: argparse.Namespace) -> str:
    """Returns the batch script."""
    options = {
        "partition": args.partition,
        "account": args.account,
        "gpus-per-node": args.gpus or None,
    }
    return SCRIPT.format(
        name=args.name,
        nodes=args.nodes,
        tasks=max(args.gpus, 1),
        cpus=args.cpus,
        options="".join(f"#SBATCH --{k}={v}\n" for k, v in options.items() if v),
        time=args.time,
        seconds=args.seconds,
        environment="" if args.gpus else "export JAX_PLATFORMS=cpu\n",
        command=shlex.join([args.python, "-m", "vit_jax.main", *args.command]),
        restarts=args.restarts,
    )


def commands(args: argparse.Namespace) -> list[list[str]]:
    """Returns the commands that start the run, once the script is written."""
    return [["sbatch", args.script]]


def main(argv: list[str]) -> int:
    """Prints or does what the arguments say."""
    args = parse(argv)
    if args.dry_run:
        print(script(args) + "\n".join(map(shlex.join, commands(args))))
        return 0
    pathlib.Path(args.script).write_text(script(args))
    for command in commands(args):
        print("+", shlex.join(command), flush=True)
        if status := subprocess.run(command, check=False).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

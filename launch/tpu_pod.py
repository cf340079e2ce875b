# SPDX-License-Identifier: Apache-2.0
"""Trains on a Cloud TPU slice: queue for it, install, run, restart, look, delete.

  python launch/tpu_pod.py train --name=vit-l16 --project=PROJECT \
      --zone=europe-west4-a --accelerator_type=v3-32 -- \
      --config=configs/vit_l16.py:dataset=i1k --workdir=gs://BUCKET/runs/vit-l16

`train` does all of it and stays: it makes the slice anew when Google has taken it away
and starts the run again where its last checkpoint is. The other actions are its parts:
create, wait, install, run, logs, stop, delete. What follows `--` goes to
`python -m vit_jax.main`. With --dry_run the commands are printed, and nothing is done.
"""

import argparse
import shlex
import subprocess
import sys
import time

ARCHIVE = "/tmp/vit_jax.tar.gz"
ACTIONS = ("train", "create", "wait", "install", "run", "logs", "stop", "delete")

# The machine's own Python is older than ours, so uv brings one.
INSTALL = """\
set -e
rm -rf vit_jax && mkdir vit_jax && tar -xzf vit_jax.tar.gz -C vit_jax && cd vit_jax
python3 -m pip install --quiet --user uv
~/.local/bin/uv venv --quiet --python=3.11 .venv
~/.local/bin/uv pip install --quiet --python=.venv/bin/python \
--constraint=requirements.lock --editable='.[tpu]'
"""

# Every host does this. Mistakes of the user (1, 2) are not tried again, see
# vit_jax/command.py; ~/status is there once the run has ended for good.
RUN = """\
rm -f ~/status ~/stop
cd ~/vit_jax && nohup bash -c '
while true; do
  {command}
  status=$?
  echo "exit status $status"
  case $status in 0|1|2) break;; esac
  [ -e ~/stop ] && break
  sleep 30
done
echo $status > ~/status
' > ~/train.log 2>&1 < /dev/null &
"""
STOP = "touch ~/stop; pkill -TERM -f '^[.]venv/bin/python -m vit_jax.main'"
LOOK = (
    "cat ~/status 2>/dev/null || "
    "{ pgrep -f '[v]it_jax.main' >/dev/null && echo running; } || echo gone"
)


def parse(argv: list[str]) -> argparse.Namespace:
    """Returns the arguments; `command` is what follows `--`."""
    middle = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("--name", required=True, help="Name of the slice.")
    parser.add_argument("--project", required=True)
    parser.add_argument("--zone", required=True)
    parser.add_argument("--accelerator_type", default="v3-32")
    parser.add_argument(
        "--runtime_version",
        default="tpu-ubuntu2204-base",
        help="That of v2 to v4; v2-alpha-tpuv5-lite, v2-alpha-tpuv5, v2-alpha-tpuv6e "
        "for v5e, v5p, v6e.",
    )
    parser.add_argument("--service_account", help="Of the machines; default: Google's.")
    parser.add_argument("--spot", action="store_true", help="Cheaper, taken away.")
    parser.add_argument("--dry_run", action="store_true")
    args = parser.parse_args(argv[:middle])
    args.command = argv[middle + 1 :]
    if args.action in ("train", "run") and not args.command:
        parser.error(f"{args.action} needs ' -- --config=... --workdir=gs://...'")
    return args


def commands(args: argparse.Namespace) -> list[list[str]]:
    """Returns the commands of an action."""
    parts = {
        "create": _create(args),
        "wait": [_wait(args)],
        "install": [
            ["git", "archive", "--format=tar.gz", f"--output={ARCHIVE}", "HEAD"],
            [*_tpu(args, "tpu-vm", "scp", ARCHIVE, f"{args.name}:"), "--worker=all"],
            _on_workers(args, "all", INSTALL),
        ],
        "run": [_on_workers(args, "all", RUN.format(command=_training(args)))],
        "logs": [_on_workers(args, "0", "tail -n 100 -F ~/train.log")],
        "stop": [_on_workers(args, "all", STOP)],
        "delete": [[*_queue(args, "delete"), "--force", "--quiet"]],
    }
    if args.action == "train":
        return [
            command
            for part in ("create", "wait", "install", "run")
            for command in parts[part]
        ]
    return parts[args.action]


def _tpu(args: argparse.Namespace, *words: str) -> list[str]:
    place = [f"--project={args.project}", f"--zone={args.zone}"]
    return ["gcloud", "compute", "tpus", *words, *place]


def _queue(args: argparse.Namespace, verb: str) -> list[str]:
    return _tpu(args, "queued-resources", verb, args.name)


def _create(args: argparse.Namespace) -> list[list[str]]:
    command = [
        *_queue(args, "create"),
        f"--node-id={args.name}",
        f"--accelerator-type={args.accelerator_type}",
        f"--runtime-version={args.runtime_version}",
    ]
    if args.service_account:
        command.append(f"--service-account={args.service_account}")
    return [command + ["--spot"] * args.spot]


def _state(args: argparse.Namespace) -> list[str]:
    return [*_queue(args, "describe"), "--format=value(state.state)"]


def _wait(args: argparse.Namespace) -> list[str]:
    loop = (
        f"while true; do state=$({shlex.join(_state(args))}); echo $state; "
        "case $state in ACTIVE) exit 0;; FAILED|SUSPENDED) exit 1;; esac; "
        "sleep 30; done"
    )
    return ["bash", "-c", loop]


def _on_workers(args: argparse.Namespace, which: str, script: str) -> list[str]:
    ssh = _tpu(args, "tpu-vm", "ssh", args.name)
    return [*ssh, f"--worker={which}", f"--command={script}"]


def _training(args: argparse.Namespace) -> str:
    words = [".venv/bin/python", "-m", "vit_jax.main", *args.command]
    # It stands between single quotes.
    return shlex.join(words).replace("'", "'\\''")


def train(args: argparse.Namespace) -> int:
    """Runs to the end, on as many slices one after another as that takes."""
    create, wait, *install_and_run = commands(args)
    while True:
        state = _output(_state(args))
        if state == "ACTIVE":
            ended = _output(_on_workers(args, "0", LOOK))
            if ended.isdigit():
                return int(ended)
            if ended == "gone":  # Fresh machines, or they were started anew.
                run(install_and_run)
        elif state in ("FAILED", "SUSPENDED"):
            run([[*_queue(args, "delete"), "--force", "--quiet"]])
        else:
            run([wait] if state else [create, wait])
        time.sleep(60)


def run(todo: list[list[str]]) -> int:
    """Runs commands one after another until one fails."""
    for command in todo:
        print("+", shlex.join(command), flush=True)
        if status := subprocess.run(command, check=False).returncode:
            return status
    return 0


def _output(command: list[str]) -> str:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def main(argv: list[str]) -> int:
    """Prints or does what the arguments say."""
    args = parse(argv)
    if args.dry_run:
        print("\n".join(map(shlex.join, commands(args))))
        return 0
    return train(args) if args.action == "train" else run(commands(args))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

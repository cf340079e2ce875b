# SPDX-License-Identifier: Apache-2.0
"""Trains in a GKE cluster as a JobSet, on TPU slices, GPUs or CPUs.

  python launch/gke.py --name=vit-l16 --image=IMAGE --tpu=tpu-v3-slice --topology=4x4 \
      -- --config=configs/vit_l16.py:dataset=i1k --workdir=gs://BUCKET/runs/vit-l16
  python launch/gke.py --name=vit-b16 --image=IMAGE --gpu=nvidia-h100-80gb --hosts=4 \
      -- --config=configs/vit_b16.py:dataset=i1k --workdir=gs://BUCKET/runs/vit-b16

Writes the manifest to --manifest and applies it. What follows `--` goes to
`python -m vit_jax.main`; IMAGE is built from launch/Dockerfile. The set starts again
when a node is lost; not after a mistake in the command (exit status 1 or 2). With
--dry_run the manifest and the commands are printed, and nothing is done.

  kubectl get jobsets
  kubectl logs --follow --selector=jobset.sigs.k8s.io/jobset-name=NAME
  kubectl delete jobset NAME
"""

import argparse
import json
import math
import pathlib
import shlex
import subprocess
import sys

CHIPS_A_HOST = 4
PORT = 8476

# A TPU slice is a node pool, and all hosts must lie in the same.
ONE_POOL = """\
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
"""

MANIFEST = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {name}
{annotations}spec:
  network:
    enableDNSHostnames: true
  failurePolicy:
    maxRestarts: {restarts}
    rules:
    - action: FailJobSet
      onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
  - name: workers
    replicas: 1
    template:
      spec:
        parallelism: {hosts}
        completions: {hosts}
        completionMode: Indexed
        backoffLimit: 0
        podFailurePolicy:
          rules:
          - action: FailJob
            onExitCodes:
              containerName: train
              operator: In
              values: [1, 2]
        template:
          spec:
            restartPolicy: Never
            # Time for a checkpoint after SIGTERM.
            terminationGracePeriodSeconds: 300
            serviceAccountName: {service_account}
            nodeSelector:
{selector}
            containers:
            - name: train
              image: {image}
              command: {command}
              env:
{environment}
              resources:
                limits:
{limits}
"""


def parse(argv: list[str]) -> argparse.Namespace:
    """Returns the arguments; `command` is what follows `--`."""
    middle = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="Name of the JobSet.")
    parser.add_argument("--image", required=True)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--tpu", help="Such as tpu-v3-slice or tpu-v6e-slice.")
    kind.add_argument("--gpu", help="Such as nvidia-h100-80gb.")
    parser.add_argument("--topology", help="Of a TPU slice: 4x4 is a v3-32.")
    parser.add_argument("--hosts", type=int, help="Of GPUs or CPUs.")
    parser.add_argument("--gpus_a_host", type=int, default=8)
    parser.add_argument("--cpus", type=int, default=8, help="Of a host without others.")
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--service_account", default="default")
    parser.add_argument("--manifest", default="jobset.yaml", help="File to write.")
    parser.add_argument("--dry_run", action="store_true")
    args = parser.parse_args(argv[:middle])
    args.command = argv[middle + 1 :]
    if not args.command:
        parser.error("nothing to train: add ' -- --config=... --workdir=gs://...'")
    if bool(args.tpu) != bool(args.topology) or bool(args.tpu) == bool(args.hosts):
        parser.error("give --tpu and --topology, or --hosts (and --gpu)")
    return args


def manifest(args: argparse.Namespace) -> str:
    """Returns the JobSet."""
    hosts, selector, limits, environment = args.hosts, {}, {}, []
    if args.tpu:
        chips = math.prod(map(int, args.topology.split("x")))
        hosts = max(chips // CHIPS_A_HOST, 1)
        selector["cloud.google.com/gke-tpu-accelerator"] = args.tpu
        selector["cloud.google.com/gke-tpu-topology"] = args.topology
        limits["google.com/tpu"] = min(chips, CHIPS_A_HOST)
    else:
        # GKE tells the hosts of a TPU slice about each other, and no others.
        address = f"{args.name}-workers-0-0.{args.name}:{PORT}"
        environment = [
            _variable("JAX_COORDINATOR_ADDRESS", address),
            _variable("JAX_NUM_PROCESSES", str(hosts)),
            "- name: JAX_PROCESS_ID\n"
            "  valueFrom:\n"
            "    fieldRef:\n"
            "      fieldPath: metadata.annotations"
            "['batch.kubernetes.io/job-completion-index']",
        ]
        if args.gpu:
            selector["cloud.google.com/gke-accelerator"] = args.gpu
            limits["nvidia.com/gpu"] = args.gpus_a_host
        else:
            selector["kubernetes.io/os"] = "linux"
            limits["cpu"] = args.cpus
            environment.append(_variable("JAX_PLATFORMS", "cpu"))
    environment.append(_variable("PYTHONUNBUFFERED", "1"))
    return MANIFEST.format(
        name=args.name,
        annotations=ONE_POOL if args.tpu else "",
        image=args.image,
        hosts=hosts,
        restarts=args.restarts,
        service_account=args.service_account,
        command=json.dumps(["python", "-m", "vit_jax.main", *args.command]),
        selector=_indent([f"{k}: {v}" for k, v in selector.items()], 14),
        environment=_indent(environment, 14),
        limits=_indent([f"{k}: {v}" for k, v in limits.items()], 18),
    )


def _variable(name: str, value: str) -> str:
    return f"- name: {name}\n  value: {json.dumps(value)}"


def _indent(blocks: list[str], width: int) -> str:
    lines = [line for block in blocks for line in block.split("\n")]
    return "\n".join(" " * width + line for line in lines)


def commands(args: argparse.Namespace) -> list[list[str]]:
    """Returns the commands that start the run, once the manifest is written."""
    return [["kubectl", "apply", f"--filename={args.manifest}"]]


def main(argv: list[str]) -> int:
    """Prints or does what the arguments say."""
    args = parse(argv)
    if args.dry_run:
        print(manifest(args) + "\n".join(map(shlex.join, commands(args))))
        return 0
    pathlib.Path(args.manifest).write_text(manifest(args))
    for command in commands(args):
        print("+", shlex.join(command), flush=True)
        if status := subprocess.run(command, check=False).returncode:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

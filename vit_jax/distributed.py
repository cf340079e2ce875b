# SPDX-License-Identifier: Apache-2.0
"""Several processes that train one model: how they find each other and end together.

A process learns who it is from flags, from the environment variables
`JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` (which
`launch/gke.py` sets), from SLURM, or from a Cloud TPU, on its virtual machine or in
GKE. A process that is alone starts nothing.

When one of them fails, the others would wait for it in the middle of a step. So it says
why in the store of the coordinator, which every process looks at each second: all end
with its message and its exit status. A process that dies without a word is missed by
the coordinator after `heartbeat_seconds`; XLA then ends the others.
"""

import dataclasses
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np
from absl import logging

from vit_jax.errors import UserError

FAILED = 70
"""Exit status of a process that may do better when it is started again."""

_POLL_SECONDS = 1.0
_KEY = "vit_jax/failure"
_VARIABLES = {
    "coordinator_address": "JAX_COORDINATOR_ADDRESS",
    "num_processes": "JAX_NUM_PROCESSES",
    "process_id": "JAX_PROCESS_ID",
}
_SLURM = (
    "SLURM_JOB_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Who this process is; what is None is found out by JAX.

    Attributes:
      coordinator_address: `HOST:PORT` of process 0.
      num_processes: How many there are.
      process_id: Number of this one.
      method: Where JAX finds out; "deactivate" where nothing is left to find.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    method: str | None = "deactivate"


def find_cluster(
    given: Mapping[str, Any], environ: Mapping[str, str], platforms: str | None
) -> Cluster | None:
    """Finds out whether this process is one of several.

    Args:
      given: Values of the flags by the names of the fields of `Cluster`; None: not set.
      environ: The environment.
      platforms: JAX's setting `jax_platforms`, which names TPUs where there are some.

    Returns:
      How to start, or None for a process that is alone.

    Raises:
      UserError: Flags and variables say only a part, or something impossible.
    """
    known = {
        name: environ.get(variable) if given.get(name) is None else given[name]
        for name, variable in _VARIABLES.items()
    }
    missing = [name for name, value in known.items() if value is None]
    if not missing:
        return _checked(known)
    if len(missing) < len(known):
        raise UserError(
            f"one of several processes needs --{' and --'.join(missing)} as well, or "
            f"{', '.join(_VARIABLES[name] for name in missing)} in the environment"
        )
    if all(name in environ for name in _SLURM) and int(environ["SLURM_NTASKS"]) > 1:
        return Cluster(method="slurm")
    if "tpu" in (platforms or "").split(","):
        return Cluster(method=None)
    return None


def _checked(known: Mapping[str, Any]) -> Cluster | None:
    address = str(known["coordinator_address"])
    try:
        count, number = int(known["num_processes"]), int(known["process_id"])
    except ValueError as err:
        raise UserError(
            f"number and count of processes must be whole numbers: {err}"
        ) from err
    if not 0 <= number < count:
        raise UserError(
            f"process_id={number} must lie in 0 to num_processes - 1, that is "
            f"{count - 1}"
        )
    if not address.rpartition(":")[2].isdigit():
        raise UserError(
            f"coordinator_address={address!r} must be HOST:PORT of process 0, such as "
            "10.0.0.2:8476"
        )
    return Cluster(address, count, number) if count > 1 else None


def start(
    given: Mapping[str, Any], heartbeat_seconds: int, connect_seconds: int = 300
) -> None:
    """Joins the other processes, if there are any; before anything asks for devices.

    Args:
      given: See `find_cluster`.
      heartbeat_seconds: A process that is silent for so long is taken for dead.
      connect_seconds: How long to wait for the others at the start.

    Raises:
      UserError: See `find_cluster`; or JAX cannot tell who this process is, or process
        0 cannot be the coordinator.

    If the others do not come, XLA ends the process (status 134) and tells why.
    """
    cluster = find_cluster(given, os.environ, jax.config.values["jax_platforms"])
    if cluster is None:
        return
    address = cluster.coordinator_address or "process 0"
    logging.info("joining the other processes at %s", address)
    try:
        jax.distributed.initialize(
            cluster.coordinator_address,
            cluster.num_processes,
            cluster.process_id,
            cluster_detection_method=cluster.method,
            initialization_timeout=connect_seconds,
            heartbeat_timeout_seconds=heartbeat_seconds,
        )
    except RuntimeError as err:
        raise UserError(
            f"cannot join the other processes at {address}: "
            f"{' '.join(str(err).split())[:200]}; see that the address is that of the "
            "first machine, that its port is free and that each can reach it"
        ) from err


def count_ahead(given: Mapping[str, Any]) -> int:
    """Returns how many processes would start together, before any has.

    Args:
      given: See `find_cluster`.

    Raises:
      UserError: See `find_cluster`.
    """
    cluster = find_cluster(given, os.environ, jax.config.values["jax_platforms"])
    if cluster is None:
        return 1
    if cluster.method == "slurm":
        return int(os.environ["SLURM_NTASKS"])
    return cluster.num_processes or _count_hosts_of_tpu()


def _count_hosts_of_tpu() -> int:
    """Asks what JAX will ask; it has no public name for that."""
    from jax._src.clusters import cloud_tpu_cluster

    for place in (cloud_tpu_cluster.GkeTpuCluster, cloud_tpu_cluster.GceTpuCluster):
        if place.is_env_present():
            return place.get_process_count()
    return 1


def failed_processes(failed: bool) -> list[int]:
    """Returns the numbers of the processes that failed; all must ask at a time.

    Args:
      failed: Whether this one did.
    """
    if jax.process_count() == 1:
        return [0] if failed else []
    from jax.experimental import multihost_utils

    answers = multihost_utils.process_allgather(np.asarray(failed))
    return [int(number) for number in np.flatnonzero(answers)]


def wait_for_all(name: str) -> None:
    """Returns when every process has come here; at once where there is only one."""
    if jax.process_count() > 1:
        # Imported here: it asks for devices.
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


class Together:
    """A context that ends all processes with the first failure of one of them."""

    def __init__(self, show: Callable[[BaseException], int]):
        """Does nothing yet.

        Args:
          show: Tells the user about an error and returns the exit status.
        """
        self._show = show
        self._left = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        """Begins to look after the others."""
        if jax.process_count() > 1:
            self._watch.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the process if there was an error and there are others."""
        if jax.process_count() == 1:
            return
        self._left.set()
        self._watch.join()
        if error is None:
            return
        # An error here may well follow from that of another process.
        end_if_told()
        end_all(self._show(error), f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        while not self._left.wait(_POLL_SECONDS):
            end_if_told()


def end_all(status: int, why: str) -> None:
    """Ends this process at once, and with it the others.

    Args:
      status: The exit status.
      why: What the others tell.
    """
    message = {
        "process": jax.process_index(),
        "host": socket.gethostname(),
        "status": status,
        "why": " ".join(why.split())[:1000],
    }
    if jax.process_count() > 1:
        try:
            _store().key_value_set(_KEY, json.dumps(message))
        except jax.errors.JaxRuntimeError:
            end_if_told()  # Another one was first, or the coordinator is gone.
        if jax.process_index() == 0:
            time.sleep(3 * _POLL_SECONDS)  # The store ends with this process.
    _exit(status)


def end_if_told() -> None:
    """Ends this process if another one has failed."""
    try:
        told = json.loads(_store().key_value_try_get(_KEY))
    except jax.errors.JaxRuntimeError:
        return
    if told["process"] == jax.process_index():
        return
    sys.stderr.write(
        f"error: process {told['process']} on {told['host']} ended the run: "
        f"{told['why']}\n"
    )
    if jax.process_index() == 0:
        time.sleep(3 * _POLL_SECONDS)
    _exit(told["status"])


def _store() -> Any:
    """Returns JAX's connection to the coordinator, which has no public name."""
    from jax._src import distributed

    return distributed.global_state.client


def _exit(status: int) -> None:
    """Ends the process without waiting for threads that wait for other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

# SPDX-License-Identifier: Apache-2.0
"""How long checkpoints of a training state take, and how long the training waits."""

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
from etils import epath

from vit_jax import models, sharding
from vit_jax.benchmark.step import NUM_CLASSES, make_state
from vit_jax.checkpoints.train_state import TrainCheckpoints
from vit_jax.errors import UserError
from vit_jax.train.state import TrainState

SAVES = 3
"""How many checkpoints are written; the medians are told."""


def measure(name: str, resolution: int, folder: str | None) -> dict[str, Any]:
    """Saves the state of AdamW of a model, and restores it.

    A local file is read again from the system's memory, not from the disk.

    Args:
      name: Of the model; its parameters and both moments are float32.
      resolution: Side of its images in pixels.
      folder: Where to write; None takes a temporary folder.

    Raises:
      UserError: An unknown model, or a folder that is there already.
    """
    mesh = sharding.make_mesh()
    model = models.build_model(name, num_classes=NUM_CLASSES)
    state, _ = make_state(model, resolution, mesh)
    jax.block_until_ready(state)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    with _empty(folder) as place:
        blocked, saved = _save(place, state)
        restored = _restore(place, state)
    return {
        "model": name,
        "state_mb": round(size / 1e6, 1),
        "blocking_seconds": round(statistics.median(blocked), 3),
        "save_seconds": round(statistics.median(saved), 3),
        "restore_seconds": round(restored, 3),
        "save_mb_per_second": round(size / 1e6 / statistics.median(saved), 1),
        "saves": SAVES,
        "devices": jax.device_count(),
        "device": jax.devices()[0].device_kind,
    }


@contextlib.contextmanager
def _empty(folder: str | None) -> Iterator[str]:
    if folder is None:
        with tempfile.TemporaryDirectory() as place:
            yield f"{place}/checkpoints"
        return
    if "://" not in folder:
        folder = os.path.abspath(os.path.expanduser(folder))
    place = epath.Path(folder)
    if place.exists():
        raise UserError(
            f"--folder={folder} is there already, and the benchmark removes what it "
            "writes; name one that is not there yet"
        )
    try:
        yield folder
    finally:
        if place.exists():
            place.rmtree()


def _save(place: str, state: TrainState) -> tuple[list[float], list[float]]:
    """Returns the seconds until training could go on, and until all was written."""
    checkpoints = TrainCheckpoints(place, keep_last=1)
    blocked, saved = [], []
    for step in range(1, SAVES + 1):
        start = time.perf_counter()
        checkpoints.save(step, state)
        blocked.append(time.perf_counter() - start)
        checkpoints.wait()
        saved.append(time.perf_counter() - start)
    checkpoints.close()
    return blocked, saved


def _restore(place: str, state: TrainState) -> float:
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    checkpoints = TrainCheckpoints(place)
    start = time.perf_counter()
    jax.block_until_ready(checkpoints.restore_latest(like))
    seconds = time.perf_counter() - start
    checkpoints.close()
    return seconds

# SPDX-License-Identifier: Apache-2.0
"""What a run tells: its start in the log, its files for later readers, its end.

Files in the run's directory: `config.json` (enough to repeat the run), `run.json`
(versions, commit, devices, command line), `checkpoint.json` (what a reader needs to use
the weights), `augmented.png` (after a check). Metrics and checkpoints are written
elsewhere.
"""

import json
import math
import pathlib
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath
from jax.sharding import Mesh

import vit_jax
from vit_jax import distributed, metrics, sharding
from vit_jax.data import contact_sheet
from vit_jax.data.examples import Source
from vit_jax.errors import UserError
from vit_jax.train.state import TrainState

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def prepare_workdir(workdir: str, config: Mapping[str, Any]) -> None:
    """Makes the directory, and keeps the config that the run has now.

    Args:
      workdir: Absolute path or URL.
      config: The resolved config as plain dictionaries.

    Raises:
      UserError: The directory cannot be made or written, or it is not the same one for
        all processes.
    """
    path = epath.Path(workdir)
    content = json.loads(json.dumps(config, default=list))
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = path / "config.json"
        before = json.loads(file.read_text()) if file.exists() else content
        if jax.process_index() == 0:
            metrics.write_json(str(file), content)
    except (OSError, json.JSONDecodeError) as err:
        raise UserError(
            f"cannot use the workdir {workdir}: {err}; name a folder that can be "
            "written with --workdir"
        ) from err
    distributed.wait_for_all("workdir")
    if not file.exists():
        raise UserError(
            f"the workdir {workdir} of process {jax.process_index()} is not that of "
            "process 0; name a folder that all hosts share, such as gs://BUCKET/RUN"
        )
    changed = sorted(_differences(before, content))
    if changed:
        logging.warning(
            "the config differs from that of the run so far in %s", ", ".join(changed)
        )


def _differences(before: Any, now: Any, name: str = "config") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            difference
            for key in before.keys() | now.keys()
            for difference in _differences(
                before.get(key), now.get(key), f"{name}.{key}"
            )
        ]
    return [] if before == now else [f"{name} ({before!r}, now {now!r})"]


def log_inputs(
    mesh: Mesh, batch_size: int, splits: Mapping[str, tuple[str, int]]
) -> None:
    """Tells on what the run runs.

    Args:
      mesh: The device mesh.
      batch_size: Global batch size.
      splits: Use of each split -> its description and number of examples.
    """
    devices = mesh.devices.flatten()
    parts = sharding.batch_parts(mesh)
    logging.info("vit_jax %s, jax %s", vit_jax.__version__, jax.__version__)
    logging.info(
        "devices: %d x %s in %d process(es), mesh %s",
        len(devices),
        devices[0].device_kind,
        jax.process_count(),
        " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items()),
    )
    logging.info("batch: %d images, %d per device", batch_size, batch_size // parts)
    for use, (description, count) in splits.items():
        logging.info("data for %s: %s, %s examples", use, description, f"{count:,}")


def log_state(state: TrainState, decayed: Sequence[str], frozen: Sequence[str]) -> None:
    """Tells what is trained and what memory it takes.

    Args:
      state: The state or its shapes.
      decayed: Names of the decayed parameters.
      frozen: Names of the frozen parameters.
    """
    # Imported here: clu is needed by nothing else in this module.
    from clu import parameter_overview

    table = parameter_overview.get_parameter_overview(state.params, include_stats=False)
    logging.info("parameters:\n%s", table)
    logging.info("weight decay on %d arrays: %s", len(decayed), _patterns(decayed))
    if frozen:
        logging.info("frozen: %d arrays: %s", len(frozen), _patterns(frozen))
    logging.info(
        "memory: state %s, this process %s, %s",
        _size(tree_bytes(state)),
        _size(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss),
        _device_memory(jax.local_devices()[0]),
    )


def log_position(step: int, total: int) -> None:
    """Tells where the run is."""
    verb = "resuming after" if step else "starting at"
    logging.info("%s step %s of %s", verb, f"{step:,}", f"{total:,}")


def log_examples(use: str, source: Source, batch: Mapping[str, Any]) -> None:
    """Tells what a split holds: its names, its ends, and what its batches look like.

    Args:
      use: What the split is for.
      source: The examples.
      batch: The first batch.
    """
    names = source.class_names
    if names:
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        logging.info("%s: %d classes: %s", use, len(names), shown)
    ends = np.array([0, len(source) - 1])
    for end, row, name in zip(("first", "last"), ends, source.names(ends), strict=True):
        logging.info("%s: %s example %s, label %s", use, end, name, source.labels[row])
    arrays = [f"{k} {v.dtype} {tuple(v.shape)}" for k, v in batch.items()]
    logging.info("%s: batches of %s", use, ", ".join(arrays))


def write_contact_sheet(
    workdir: str, batch: Mapping[str, Any], class_names: Sequence[str] | None
) -> None:
    """Draws the first images of a batch into `augmented.png` of the workdir.

    Raises:
      UserError: The file cannot be written.
    """
    if jax.process_index() != 0:
        return
    images = np.asarray(batch["image"])[:32]
    targets = batch.get("labels", batch.get("label"))
    captions = [""] * len(images)
    if targets is not None:
        captions = [_caption(target, class_names) for target in targets[:32]]
    sheet = contact_sheet.contact_sheet(images, captions)
    path = epath.Path(workdir) / "augmented.png"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        contact_sheet.save(str(path), sheet)
    except OSError as err:
        raise UserError(
            f"cannot write {path}: {err}; name a folder that can be written with "
            "--workdir"
        ) from err
    logging.info("training images as the model sees them: %s", path)


def _caption(target: Any, class_names: Sequence[str] | None) -> str:
    if np.ndim(target):
        return ", ".join(_caption(k, class_names) for k in np.flatnonzero(target)[:3])
    if np.issubdtype(np.asarray(target).dtype, np.floating):
        return f"{target:.4g}"
    if target == -1:  # without a label
        return ""
    return class_names[int(target)] if class_names else str(int(target))


def tree_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays of a tree, as if each was whole."""
    return sum(
        math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _patterns(names: Sequence[str]) -> str:
    """Shortens names that differ only in the number of their block."""
    seen = dict.fromkeys(re.sub(r"_\d+/", "_*/", name, count=1) for name in names)
    return ", ".join(seen) if seen else "none"


def _device_memory(device: Any) -> str:
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return f"{device.platform} memory is the host's"
    return f"{_size(stats['bytes_limit'])} on each device"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise ValueError(count)


def log_compiled(compiled: Any, seconds: float) -> None:
    """Tells how long the step took to compile and what memory it takes."""
    analysis = compiled.memory_analysis()
    temporary = getattr(analysis, "temp_size_in_bytes", None)
    logging.info(
        "compiled the step in %.1f s%s",
        seconds,
        "" if temporary is None else f"; {_size(temporary)} of temporaries a device",
    )


def write_run(workdir: str, params: Any) -> None:
    """Writes `run.json`: what the run was made with."""
    if jax.process_index() != 0:
        return
    devices = jax.devices()
    content = {
        "command": [sys.executable, *sys.orig_argv[1:]],
        "commit": _git_commit(),
        "versions": {
            "vit_jax": vit_jax.__version__,
            "python": platform.python_version(),
            **{package: metadata.version(package) for package in _PACKAGES},
        },
        "devices": {
            "count": len(devices),
            "kind": devices[0].device_kind,
            "platform": devices[0].platform,
            "processes": jax.process_count(),
        },
        "parameters": sum(math.prod(p.shape) for p in jax.tree.leaves(params)),
    }
    metrics.write_json(str(epath.Path(workdir) / "run.json"), content)


def _git_commit() -> str | None:
    """Returns the commit of the source tree, with `+` when it was changed since."""
    folder = str(epath.Path(vit_jax.__file__).parent)
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def _mark_finished(workdir: str, step: int) -> None:
    """Notes in `run.json` that the run came to its end, which the next start drops."""
    path = epath.Path(workdir) / "run.json"
    content = json.loads(path.read_text())
    metrics.write_json(str(path), {**content, "finished_step": step})


def write_checkpoint_description(workdir: str, content: Mapping[str, Any]) -> None:
    """Writes `checkpoint.json`: model, preprocessing, class names and so on."""
    if jax.process_index() == 0:
        path = epath.Path(workdir) / "checkpoint.json"
        metrics.write_json(str(path), json.loads(json.dumps(content, default=list)))


def profiler(workdir: str, step: int | None) -> Callable[[int], Any]:
    """Returns a function of the step that traces five updates after step `step`."""
    if step is None:
        return lambda now: None
    # Imported here: clu's periodic actions import TensorFlow.
    from clu import periodic_actions

    return periodic_actions.Profile(
        logdir=workdir,
        num_profile_steps=5,
        profile_duration_ms=None,
        first_profile=step,
        every_secs=None,
    )


def summarize(workdir: str, seconds: float) -> None:
    """Tells how a run ended, from its metrics, and what to do with it."""
    if jax.process_index() != 0:
        return
    lines = metrics.read_metrics(workdir)
    results: dict[str, float] = {}
    for line in lines:
        results.update({k: v for k, v in line.items() if "/" in k})
    step = lines[-1]["step"] if lines else 0
    _mark_finished(workdir, step)
    logging.info(
        "done: step %s, this start took %s", f"{step:,}", metrics.duration(seconds)
    )
    for name, value in results.items():
        if name.endswith(("/top1", "/top5")):
            examples = results.get(name.split("/", 1)[0] + "/examples", 0)
            logging.info("%s: %.2f %% of %s", name, 100 * value, f"{examples:,.0f}")
    here = pathlib.Path.cwd()
    path = pathlib.Path(workdir)
    shown = path.relative_to(here) if path.is_relative_to(here) else workdir
    described = json.loads((epath.Path(workdir) / "checkpoint.json").read_text())
    if described["model"]["num_classes"]:
        logging.info("name what is in a picture with")
        logging.info("  python -m vit_jax.predict --checkpoint=%s PICTURE", shown)
    else:
        logging.info("teach it classes with")
        logging.info(
            "  python -m vit_jax.finetune --init=%s --workdir=DIR "
            "--config=configs/finetune.py:dataset=DATASET",
            shown,
        )
    logging.info("write a page about the run with")
    logging.info("  python -m vit_jax.report %s", shown)

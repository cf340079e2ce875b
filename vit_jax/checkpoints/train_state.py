# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run, through Orbax: `checkpoints/STEP/`, one a step.

A checkpoint is complete or it does not exist: Orbax writes it under a temporary name
and renames it when all processes are done. What a killed process leaves behind is
named in the log and never read. Saving is asynchronous: `save` returns once the
state is safe from the next update.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from vit_jax import distributed, trees
from vit_jax.errors import UserError

# Written last by Orbax; a folder without it is no finished checkpoint.
_COMMIT = "commit_success.txt"

BEST = "best"
"""Name of the file that says which checkpoint is the best."""

# What reading a damaged checkpoint can raise (tensorstore reports damage as
# ValueError, missing files as OSError, bad metadata as KeyError or TypeError).
_DAMAGE = (ValueError, OSError, KeyError, TypeError)


class TrainCheckpoints:
    """Saves, finds, restores and prunes the checkpoints of one run."""

    def __init__(
        self,
        directory: str,
        *,
        keep_last: int = 2,
        keep_every_steps: int | None = None,
    ):
        """Looks at the folder and names what in it is no complete checkpoint.

        Args:
          directory: An absolute path or URL; made when something is saved.
          keep_last: How many of the newest checkpoints to keep, at least 1.
          keep_every_steps: Keep every checkpoint whose step is a multiple of this.

        Raises:
          UserError: `keep_last` below 1.
        """
        if keep_last < 1:
            raise UserError(f"keep_checkpoints={keep_last} must be at least 1")
        self._directory = epath.Path(directory)
        self._keep_last = keep_last
        self._keep_every = keep_every_steps
        self._handler = ocp.StandardCheckpointHandler()
        self._checkpointer = ocp.AsyncCheckpointer(self._handler)
        complete, junk = _list_folder(self._directory)
        self._saved = complete
        self._best: int | None = None
        for name in junk:
            logging.warning(
                "ignored %s: not a complete checkpoint (the process that wrote it was "
                "stopped)",
                self._directory / name,
            )

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps of the complete checkpoints, in order."""
        return tuple(self._saved)

    def restore_latest(self, like: Any) -> Any:
        """Reads the newest checkpoint that can be read, by all processes.

        Args:
          like: A tree of `jax.ShapeDtypeStruct` with shardings; the mesh may differ
            from the one the checkpoint was written on.

        Returns:
          The state, or None when there is no checkpoint.

        Raises:
          UserError: The newest readable checkpoint is of another model or optimizer,
            or there are checkpoints and none can be read.
        """
        for step in reversed(self._saved):
            restored, damage = self._read(step, like)
            # What one process cannot read, all leave: they must start at the same step.
            failed = distributed.failed_processes(damage is not None)
            if not failed:
                # A broken one that is newer must not stand in the way of later saves.
                self._saved = [s for s in self._saved if s <= step]
                return restored
            logging.warning(
                "skipped the broken checkpoint %s: %s",
                self._directory / str(step),
                damage or f"read here, but not by the processes {failed}",
            )
        if self._saved:
            raise UserError(
                f"none of the checkpoints {self._saved} in {self._directory} can be "
                "read; move the folder away to start the run anew"
            )
        return None

    def _read(self, step: int, like: Any) -> tuple[Any, str | None]:
        """Returns the state of a checkpoint, or None and what is wrong with it.

        The handler reads it, and not the checkpointer, which waits for the other
        processes at the end: for ever if one of them cannot read its part.
        """
        path = self._directory / str(step)
        _ignore_closed_loops()
        try:
            self._check_same(step, self._stored_shapes(step), like)
            args = ocp.args.StandardRestore(like)
            return self._handler.restore(path, args=args), None
        except UserError:
            raise
        except _DAMAGE as err:
            return None, " ".join(str(err).split())[:200] or type(err).__name__

    def save(self, step: int, state: Any) -> None:
        """Begins to write the checkpoint of a step; an older save is finished first."""
        self.wait()
        if step in self._saved:
            return
        # force: a leftover of that name was found incomplete or broken before.
        self._checkpointer.save(
            self._directory / str(step), args=ocp.args.StandardSave(state), force=True
        )
        self._saved.append(step)

    def keep(self, step: int) -> None:
        """Keeps the checkpoint of a step, the best so far, instead of an older one.

        The file `best` beside the checkpoints says which one it is.
        """
        if step != self._best and jax.process_index() == 0:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / BEST).write_text(f"{step}\n")
        self._best = step

    def wait(self) -> None:
        """Returns when every save is on disk and old checkpoints are removed."""
        self._checkpointer.wait_until_finished()
        kept = set(self._saved[-self._keep_last :])
        if self._keep_every:
            kept |= {step for step in self._saved if step % self._keep_every == 0}
        for step in set(self._saved) - kept - {self._best}:
            if jax.process_index() == 0:
                (self._directory / str(step)).rmtree()
            self._saved.remove(step)

    def close(self) -> None:
        """Finishes every save and frees the threads."""
        self.wait()
        self._checkpointer.close()

    def _stored_shapes(self, step: int) -> dict[str, tuple[int, ...]]:
        return _shapes(_stored_tree(self._checkpointer, self._directory / str(step)))

    def _check_same(
        self, step: int, stored: dict[str, tuple[int, ...]], like: Any
    ) -> None:
        wanted = _shapes(like)
        differing = [
            name
            for name in sorted(stored.keys() | wanted.keys())
            if stored.get(name) != wanted.get(name)
        ]
        # Those of the parameters say most; their moments and averages follow.
        differing.sort(key=lambda name: not name.startswith("params/"))
        if differing:
            lines = [
                f"{name} (stored {stored.get(name, 'none')}, config "
                f"{wanted.get(name, 'none')})"
                for name in differing[:3]
            ]
            raise UserError(
                f"the checkpoint {self._directory / str(step)} is of another model or "
                f"optimizer than the config: {len(differing)} arrays differ, such as "
                f"{'; '.join(lines)}; use the config of that run or another --workdir"
            )


class _IgnoreClosedLoops:
    """A `sys.unraisablehook` without the aftermath of a damaged checkpoint.

    When one array cannot be read, Orbax closes its event loop while TensorStore still
    reports the other reads to it, from threads of its own and at any later time. Each
    report would print a traceback that says nothing about the damage.
    """

    def __init__(self, shown: Callable[[Any], None]):
        self._shown = shown

    def __call__(self, unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and "loop is closed" in str(error)):
            self._shown(unraisable)


def _ignore_closed_loops() -> None:
    if not isinstance(sys.unraisablehook, _IgnoreClosedLoops):
        sys.unraisablehook = _IgnoreClosedLoops(sys.unraisablehook)


def latest_step(directory: str) -> int:
    """Returns the step of the newest complete checkpoint in a folder.

    Raises:
      UserError: There is none.
    """
    complete, _ = _list_folder(epath.Path(directory))
    if not complete:
        raise UserError(
            f"no complete checkpoint in {directory}; train first, or name the workdir "
            "of a run"
        )
    return complete[-1]


def restore_weights(directory: str, step: int, averaged: bool) -> dict[str, Any]:
    """Reads the weights alone, as NumPy arrays, without knowing the model.

    Args:
      directory: The `checkpoints` folder of a run.
      step: A complete checkpoint.
      averaged: Take the moving average if the run kept one, else the parameters.

    Returns:
      The parameter tree.

    Raises:
      UserError: The checkpoint is missing or cannot be read.
    """
    path = epath.Path(directory) / str(step)
    complete, _ = _list_folder(epath.Path(directory))
    if step not in complete:
        raise UserError(f"no checkpoint {step} in {directory}; there are {complete}")
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            tree = _stored_tree(checkpointer, path)
            key = "ema" if averaged and tree.get("ema") else "params"
            wanted = {key: jax.tree.map(lambda leaf: 0, tree[key])}
            numpy = jax.tree.map(
                lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), wanted
            )
            args = ocp.args.PyTreeRestore(
                item=wanted, restore_args=numpy, partial_restore=True
            )
            return checkpointer.restore(path, args=args)[key]
    except _DAMAGE as err:
        raise UserError(
            f"cannot read the checkpoint {path}: {' '.join(str(err).split())[:200]}"
        ) from err


def _stored_tree(checkpointer: ocp.Checkpointer, path: epath.Path) -> Any:
    """Returns the tree of array descriptions that a checkpoint holds."""
    metadata = checkpointer.metadata(path).item_metadata
    if metadata is None:
        raise ValueError("its list of arrays is missing")
    return metadata.tree


def _list_folder(directory: epath.Path) -> tuple[list[int], list[str]]:
    """Returns the steps of complete checkpoints in order, and all other names."""
    if not directory.exists():
        return [], []
    complete, junk = [], []
    for entry in directory.iterdir():
        if entry.name.isdigit() and (entry / _COMMIT).exists():
            complete.append(int(entry.name))
        elif entry.name != BEST:
            junk.append(entry.name)
    return sorted(complete), sorted(junk)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(leaf.shape)
        for name, leaf in trees.flatten(tree).items()
        if hasattr(leaf, "shape")
    }

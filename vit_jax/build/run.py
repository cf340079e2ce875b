# SPDX-License-Identifier: Apache-2.0
"""A blueprint gets its arrays and files, or is tried without training."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from absl import logging
from etils import epath

from vit_jax import metrics, record
from vit_jax.build import fields as fields_lib, pretrained
from vit_jax.build.blueprint import Blueprint
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.checkpoints.train_state import TrainCheckpoints
from vit_jax.train.loop import Run
from vit_jax.train.state import TrainState
from vit_jax.train.step import Batch


@contextlib.contextmanager
def build_run(blueprint: Blueprint, workdir: str) -> Iterator[Run]:
    """Gives a blueprint its arrays and files, resuming `workdir` if it can.

    Args:
      blueprint: What to build.
      workdir: Absolute path or URL of the run's directory.

    Yields:
      The run; files, threads and pending saves are finished on leaving.

    Raises:
      UserError: The workdir cannot be used, or holds another run.
    """
    data, schedule, like = blueprint.data, blueprint.schedule, blueprint.like
    with contextlib.ExitStack() as stack:
        record.prepare_workdir(workdir, blueprint.fields)
        record.log_inputs(data.mesh, data.batch_size, blueprint.splits)
        checkpoints = _checkpoints(blueprint, workdir)
        stack.callback(checkpoints.close)
        state = checkpoints.restore_latest(like)
        if state is None:
            state = _first_state(blueprint)
        step = int(state.step)
        optimizer = blueprint.optimizer
        record.log_state(like, optimizer.decayed, optimizer.frozen)
        record.log_position(step, schedule.total)

        batches = stack.enter_context(contextlib.closing(data.batches(step)))
        first = next(batches)
        update: Any = blueprint.update
        if step < schedule.total:
            update = _compile(update, like, first)
        writer = metrics.MetricWriter(workdir, step)
        stack.callback(writer.close)
        record.write_run(workdir, like.params)
        record.write_checkpoint_description(workdir, _description(blueprint))
        yield Run(
            state=state,
            update=update,
            batches=itertools.chain([first], batches),
            schedule=schedule,
            batch_size=data.batch_size,
            num_examples=len(data.source),
            learning_rate=optimizer.schedule,
            evaluations=blueprint.evaluations,
            checkpoints=checkpoints,
            writer=writer,
            profile=record.profiler(workdir, schedule.profile),
            early_stopping=blueprint.early_stopping,
        )


def check_run(blueprint: Blueprint, workdir: str) -> None:
    """Tries a run without training: reads data, traces the step, draws a sheet.

    Args:
      blueprint: What to check.
      workdir: Gets one file, `augmented.png`: training images as the model sees them.

    Raises:
      UserError: An image that cannot be read, or a workdir that cannot be written.
    """
    data, optimizer = blueprint.data, blueprint.optimizer
    record.log_inputs(data.mesh, data.batch_size, blueprint.splits)
    with contextlib.closing(data.host_batches(0)) as batches:
        batch = next(batches)
    shapes = {k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in batch.items()}
    jax.eval_shape(blueprint.update, blueprint.like, shapes)
    record.log_state(blueprint.like, optimizer.decayed, optimizer.frozen)
    record.log_examples("training", data.source, batch)
    for name, opened in blueprint.evaluators.items():
        with contextlib.closing(opened.feed.batches()) as batches:
            record.log_examples(name, opened.feed.source, next(batches))
    record.write_contact_sheet(workdir, batch, data.source.class_names)


def _first_state(blueprint: Blueprint) -> TrainState:
    places = jax.tree.map(lambda leaf: leaf.sharding, blueprint.like)
    params = jax.jit(blueprint.init, out_shardings=places.params)(blueprint.init_key)
    if blueprint.pretrained is not None:
        params = pretrained.apply(
            blueprint.pretrained,
            params,
            blueprint.fields["model"],
            blueprint.data.image_shape(),
            blueprint.optimizer.frozen,
        )
    create = jax.jit(blueprint.create, out_shardings=places, donate_argnums=0)
    return create(params)


def _checkpoints(blueprint: Blueprint, workdir: str) -> TrainCheckpoints:
    fields = blueprint.fields
    keep_last = fields.get("keep_checkpoints")
    return TrainCheckpoints(
        str(epath.Path(workdir) / "checkpoints"),
        keep_last=2 if keep_last is None else keep_last,
        keep_every_steps=fields_lib.steps_of(
            fields, "keep_checkpoint", blueprint.data, blueprint.schedule.total
        ),
    )


def _compile(update: Any, like: TrainState, batch: Batch) -> Any:
    """Compiles the step ahead of time; the old state's memory is reused."""
    start = time.monotonic()
    places = jax.tree.map(lambda leaf: leaf.sharding, like)
    jitted = jax.jit(update, donate_argnums=0, out_shardings=(places, None))
    compiled = jitted.lower(like, batch).compile()
    record.log_compiled(compiled, time.monotonic() - start)
    return compiled


def _description(blueprint: Blueprint) -> Mapping[str, Any]:
    """Returns what a reader of the weights needs, for `checkpoint.json`."""
    # New pictures are prepared as the first evaluator prepares its own, if it shows
    # the model what it was trained for.
    evaluators = sorted(
        blueprint.evaluators.values(), key=lambda e: e.opened.own_classes
    )
    ops = next((e.feed.ops for e in evaluators), None)
    if ops is None:
        logging.warning(
            "the config has no evaluator, so checkpoint.json names no preprocessing "
            "for new pictures, which predict needs"
        )
    height, width, channels = blueprint.data.image_shape()
    return Checkpoint(
        params={},
        model=blueprint.fields["model"],
        image_shape=(height, width, channels),
        preprocessing=ops,
        class_names=blueprint.data.source.class_names,
        loss=(blueprint.fields.get("loss") or {}).get("name", "softmax"),
        averaged=blueprint.averaged,
    ).description()

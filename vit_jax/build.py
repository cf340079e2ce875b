# SPDX-License-Identifier: Apache-2.0
"""From a config to a run: the last place that sees a ConfigDict.

Each section of the config is the keyword arguments of one function, so the signature
of that function is the schema of the section. What needs no device is checked first:
a typo fails in seconds, not after a pod has compiled.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from absl import logging
from etils import epath
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax import losses, metrics, record, sharding
from vit_jax.checkpoints.train_state import TrainCheckpoints
from vit_jax.config import UNITS, section_call, steps
from vit_jax.data.feed import EvalFeed, TrainFeed, open_eval, open_train
from vit_jax.errors import UserError, unknown
from vit_jax.evaluators import EVALUATORS
from vit_jax.models import build_model
from vit_jax.optim import Optimizer, averaging, build_optimizer
from vit_jax.train.loop import Evaluation, Run, Schedule
from vit_jax.train.state import TrainState
from vit_jax.train.step import Batch, Update, make_update

_SECTIONS = ("data", "model", "loss", "optimizer", "mesh")


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A run without its arrays: checked, but nothing is compiled or allocated.

    Attributes:
      fields: The config as plain dictionaries.
      data: The training data.
      evaluators: The evaluators' data.
      schedule: Length and cadences.
      optimizer: The optimizer, for what there is to say about it.
      create: Makes the first state from a random key.
      init_key: That key.
      like: Shapes and places of the state.
      update: The step.
      evaluations: The evaluators bound to the model.
      averaged: Whether the run keeps averaged weights.
    """

    fields: dict[str, Any]
    data: TrainFeed
    evaluators: dict[str, "OpenEvaluator"]
    schedule: Schedule
    optimizer: Optimizer
    create: Callable[[jax.Array], TrainState]
    init_key: jax.Array
    like: TrainState
    update: Update
    evaluations: dict[str, Evaluation]
    averaged: bool

    @property
    def splits(self) -> dict[str, tuple[str, int]]:
        """The description and number of examples of each split, by its use."""
        sources = {"training": self.data.source}
        for name, opened in self.evaluators.items():
            sources[name] = opened.feed.source
        return {use: (s.description, len(s)) for use, s in sources.items()}


def make_blueprint(config: ConfigDict) -> Blueprint:
    """Reads a config whole.

    Raises:
      UserError: Anything in the config or the data that the user can mend.
    """
    fields = config.to_dict()
    sections = {name: fields.get(name) or {} for name in _SECTIONS}
    model = section_call(build_model, sections["model"], "model")
    loss = section_call(losses.build_loss, sections["loss"], "loss")
    mesh_sizes, rules = _take(sections["mesh"], "rules")
    mesh = section_call(sharding.make_mesh, mesh_sizes, "mesh")
    seed = fields.get("seed") or 0
    classes = _class_limit(sections)
    data = section_call(
        open_train,
        sections["data"],
        "data",
        mesh=mesh,
        seed=seed,
        num_classes=classes,
    )
    schedule = _schedule(fields, data)
    evaluators = _open_evaluators(fields.get("evaluators") or {}, data, classes)

    init_key, step_key = jax.random.split(jax.random.key(seed))
    init = _initializer(model, data.image_shape())
    optimizer, average = _optimizer(
        sections["optimizer"], jax.eval_shape(init, init_key), data, schedule.total
    )
    averaged = average is not None
    create = functools.partial(TrainState.create, init, optimizer.tx, averaged=averaged)
    return Blueprint(
        fields=fields,
        data=data,
        evaluators=evaluators,
        schedule=schedule,
        optimizer=optimizer,
        create=create,
        init_key=init_key,
        like=_place(jax.eval_shape(create, init_key), mesh, rules),
        update=make_update(
            _train_apply(model),
            loss,
            optimizer.tx,
            key=step_key,
            average=average,
            mix=data.mix,
        ),
        evaluations=_evaluations(evaluators, model, loss, averaged),
        averaged=averaged,
    )


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
        checkpoints = _checkpoints(blueprint.fields, workdir, data, schedule.total)
        stack.callback(checkpoints.close)
        state = checkpoints.restore_latest(like)
        if state is None:
            places = jax.tree.map(lambda leaf: leaf.sharding, like)
            state = jax.jit(blueprint.create, out_shardings=places)(blueprint.init_key)
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


@dataclasses.dataclass(frozen=True)
class OpenEvaluator:
    """An evaluator before there is a model to evaluate."""

    make: Callable[..., Any]
    feed: EvalFeed
    every: int | None


def _open_evaluators(
    section: Mapping[str, Any], train: TrainFeed, num_classes: int | None
) -> dict[str, OpenEvaluator]:
    opened = {}
    for name, given in section.items():
        every = _steps(given, "every", train, None)
        fields, kind, flip = _take(_without_duration(given, "every"), "type", "flip")
        if kind not in EVALUATORS:
            raise unknown(f"config.evaluators.{name}.type:", str(kind), EVALUATORS)
        feed = section_call(
            open_eval,
            fields,
            f"evaluators.{name}",
            train=train,
            num_classes=num_classes,
        )
        make = EVALUATORS[kind]
        if feed.classes is not None:
            make = functools.partial(make, classes=feed.classes)
        if flip:
            make = functools.partial(make, flip=True)
        opened[name] = OpenEvaluator(make, feed, every)
    return opened


def _evaluations(
    evaluators: Mapping[str, OpenEvaluator],
    model: nn.Module,
    loss: losses.Loss,
    averaged: bool,
) -> dict[str, Evaluation]:
    """Binds each evaluator to the model; averaged weights are evaluated as well."""

    def predict(params: Any, image: jax.Array) -> jax.Array:
        return model.apply({"params": params}, image, train=False)[0]

    def bind(name: str, evaluator: Any) -> Callable[..., Iterator[tuple[str, float]]]:
        def run(state: TrainState) -> Iterator[tuple[str, float]]:
            for metric, value in evaluator.run(state.params):
                yield f"{name}/{metric}", value
            if averaged:
                for metric, value in evaluator.run(state.ema):
                    yield f"{name}_ema/{metric}", value

        return run

    return {
        name: Evaluation(
            bind(name, opened.make(predict, loss, opened.feed.batches)), opened.every
        )
        for name, opened in evaluators.items()
    }


def _optimizer(
    section: Mapping[str, Any], shapes: Any, data: TrainFeed, total: int
) -> tuple[Optimizer, Callable[..., Any] | None]:
    """Returns the optimizer and the averaging of the weights."""
    fields, ema_decay, ema_warmup = _take(dict(section), "ema_decay", "ema_warmup")
    warmup = _steps(fields, "warmup", data, total) or 0
    fields = _without_duration(fields, "warmup")
    optimizer = section_call(
        build_optimizer,
        fields,
        "optimizer",
        params=shapes,
        total_steps=total,
        warmup_steps=warmup,
    )
    if ema_decay is None:
        return optimizer, None
    if not 0.0 <= ema_decay < 1.0:
        raise UserError(
            f"config.optimizer.ema_decay={ema_decay} must lie in 0 <= decay < 1, such "
            "as 0.9999"
        )

    def average(ema: Any, params: Any, step: jax.Array) -> Any:
        decay = averaging.ema_decay_at(ema_decay, step - 1, bool(ema_warmup))
        return averaging.update_ema(ema, params, decay)

    return optimizer, average


def _schedule(config: Mapping[str, Any], data: TrainFeed) -> Schedule:
    total = _steps(config, "total", data, None)
    if total is None:
        raise UserError(
            "config.total_steps (or _epochs, _examples) is missing; say how long to "
            "train, such as --config.total_steps=1000"
        )
    return Schedule(
        total=total,
        log=_steps(config, "log", data, total) or 50,
        checkpoint=_steps(config, "checkpoint", data, total),
        profile=config.get("profile_steps"),
    )


def _checkpoints(
    config: Mapping[str, Any], workdir: str, data: TrainFeed, total: int
) -> TrainCheckpoints:
    keep_last = config.get("keep_checkpoints")
    return TrainCheckpoints(
        str(epath.Path(workdir) / "checkpoints"),
        keep_last=2 if keep_last is None else keep_last,
        keep_every_steps=_steps(config, "keep_checkpoint", data, total),
    )


def _steps(
    section: Mapping[str, Any], name: str, data: TrainFeed, total: int | None
) -> int | None:
    return steps(
        name,
        section,
        batch_size=data.batch_size,
        num_examples=len(data.source),
        total_steps=total,
    )


def _class_limit(sections: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Returns how many classes labels may have, or None where they are numbers."""
    if sections["loss"].get("name") == "mse":
        return None
    return sections["model"].get("num_classes")


def _take(fields: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """Returns the fields without `names`, and the values of `names` (None if unset)."""
    rest = {key: value for key, value in fields.items() if key not in names}
    return rest, *(fields.get(name) for name in names)


def _without_duration(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the fields without the duration `name`, whatever its unit."""
    units = {f"{name}_{unit}" for unit in UNITS}
    return {key: value for key, value in fields.items() if key not in units}


def _initializer(
    model: nn.Module, image_shape: tuple[int, int, int]
) -> Callable[[jax.Array], Any]:
    def init(key: jax.Array) -> Any:
        image = jnp.zeros((1, *image_shape), jnp.float32)
        return model.init(key, image, train=False)["params"]

    return init


def _train_apply(model: nn.Module) -> Callable[..., jax.Array]:
    def apply(params: Any, image: jax.Array, rngs: dict[str, jax.Array]) -> Any:
        return model.apply({"params": params}, image, train=True, rngs=rngs)[0]

    return apply


def _place(shapes: Any, mesh: Mesh, rules: Any) -> Any:
    """Adds to each shape where on the mesh the array lies."""
    places = sharding.tree_shardings(shapes, mesh, rules or sharding.REPLICATED)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
        ),
        shapes,
        places,
    )


def _compile(update: Any, like: TrainState, batch: Batch) -> Any:
    """Compiles the step ahead of time; the old state's memory is reused."""
    start = time.monotonic()
    places = jax.tree.map(lambda leaf: leaf.sharding, like)
    jitted = jax.jit(update, donate_argnums=0, out_shardings=(places, None))
    compiled = jitted.lower(like, batch).compile()
    record.log_compiled(compiled, time.monotonic() - start)
    return compiled


def _description(blueprint: Blueprint) -> dict[str, Any]:
    """Returns what a reader of the weights needs, for `checkpoint.json`."""
    # New pictures are prepared as the first evaluator prepares its own.
    ops = next((e.feed.ops for e in blueprint.evaluators.values()), None)
    if ops is None:
        logging.warning(
            "the config has no evaluator, so checkpoint.json names no preprocessing "
            "for new pictures, which predict needs"
        )
    return {
        "model": blueprint.fields["model"],
        "loss": (blueprint.fields.get("loss") or {}).get("name", "softmax"),
        "averaged": blueprint.averaged,
        "preprocessing": ops,
        "class_names": blueprint.data.source.class_names,
        "image_shape": blueprint.data.image_shape(),
    }

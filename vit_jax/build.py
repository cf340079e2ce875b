# SPDX-License-Identifier: Apache-2.0
"""From a config to a run: the last place that sees a ConfigDict.

Each section of the config is the keyword arguments of one function, so the signature
of that function is the schema of the section. What needs no device is checked first:
a typo fails in seconds, not after a pod has compiled.
"""

import contextlib
import dataclasses
import functools
import inspect
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
from vit_jax.config import UNITS, steps
from vit_jax.data.feed import EvalFeed, TrainFeed, open_eval, open_train
from vit_jax.errors import UserError, unknown
from vit_jax.evaluators import EVALUATORS
from vit_jax.models import build_model
from vit_jax.optim import Optimizer, averaging, build_optimizer
from vit_jax.train.loop import Evaluation, Run, Schedule
from vit_jax.train.state import TrainState
from vit_jax.train.step import Batch, make_update

_SECTIONS = ("data", "model", "loss", "optimizer", "mesh")


@contextlib.contextmanager
def build_run(config: ConfigDict, workdir: str) -> Iterator[Run]:
    """Builds everything that a training run needs, resuming `workdir` if it can.

    Args:
      config: The resolved config.
      workdir: Absolute path or URL of the run's directory.

    Yields:
      The run; files, threads and pending saves are finished on leaving.

    Raises:
      UserError: Anything in the config, the data or the workdir that the user can
        mend.
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
    splits = {"training": data.source}
    splits |= {name: opened.feed.source for name, opened in evaluators.items()}

    with contextlib.ExitStack() as stack:
        record.prepare_workdir(workdir, fields)
        record.log_inputs(
            mesh,
            data.batch_size,
            {use: (source.description, len(source)) for use, source in splits.items()},
        )
        image = jax.ShapeDtypeStruct((1, *data.image_shape()), jnp.float32)
        init_key, step_key = jax.random.split(jax.random.key(seed))
        init = _initializer(model, image)
        optimizer, average = _optimizer(
            sections["optimizer"], jax.eval_shape(init, init_key), data, schedule.total
        )
        create = functools.partial(
            TrainState.create, init, optimizer.tx, averaged=average is not None
        )
        like = _place(jax.eval_shape(create, init_key), mesh, rules)

        checkpoints = _checkpoints(fields, workdir, data, schedule.total)
        stack.callback(checkpoints.close)
        state = checkpoints.restore_latest(like)
        if state is None:
            places = jax.tree.map(lambda leaf: leaf.sharding, like)
            state = jax.jit(create, out_shardings=places)(init_key)
        step = int(state.step)
        record.log_state(like, optimizer.decayed, optimizer.frozen)
        record.log_position(step, schedule.total)

        batches = stack.enter_context(contextlib.closing(data.batches(step)))
        first = next(batches)
        update = make_update(
            _train_apply(model),
            loss,
            optimizer.tx,
            key=step_key,
            average=average,
            mix=data.mix,
        )
        compiled = _compile(update, like, first) if step < schedule.total else update
        writer = metrics.MetricWriter(workdir, step)
        stack.callback(writer.close)
        record.write_run(workdir, like.params)
        record.write_checkpoint_description(
            workdir,
            {
                "model": sections["model"],
                "loss": sections["loss"].get("name", "softmax"),
                "averaged": average is not None,
                "preprocessing": _deployed_ops(evaluators, data),
                "class_names": data.source.class_names,
                "image_shape": data.image_shape(),
            },
        )
        yield Run(
            state=state,
            update=compiled,
            batches=itertools.chain([first], batches),
            schedule=schedule,
            batch_size=data.batch_size,
            num_examples=len(data.source),
            learning_rate=optimizer.schedule,
            evaluations=_evaluations(evaluators, model, loss, average is not None),
            checkpoints=checkpoints,
            writer=writer,
            profile=record.profiler(workdir, schedule.profile),
        )


def section_call(
    function: Callable[..., Any], section: Mapping[str, Any], name: str, **given: Any
) -> Any:
    """Calls `function(**section, **given)`, naming a field that it does not know.

    Args:
      function: Its keyword arguments are the schema of the section.
      section: The fields of a section of the config.
      name: The section's name, for the error text.
      **given: Arguments that do not come from the config.

    Raises:
      UserError: An unknown or a missing field, or a value that the function refuses.
    """
    parameters = inspect.signature(function).parameters.values()
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    known = [name for name in named if name not in given]
    for field in section:
        if field not in known and not open_ended:
            raise unknown(f"field of config.{name}:", field, known)
    for p in parameters:
        required = p.default is p.empty and p.kind is not p.VAR_KEYWORD
        if required and p.name not in section and p.name not in given:
            raise UserError(
                f"config.{name}.{p.name} is missing; set it in the config file or with "
                f"--config.{name}.{p.name}=VALUE"
            )
    return function(**section, **given)


@dataclasses.dataclass(frozen=True)
class _OpenEvaluator:
    """An evaluator before there is a model to evaluate."""

    make: Callable[..., Any]
    feed: EvalFeed
    every: int | None


def _open_evaluators(
    section: Mapping[str, Any], train: TrainFeed, num_classes: int | None
) -> dict[str, _OpenEvaluator]:
    opened = {}
    for name, given in section.items():
        every = _steps(given, "every", train, None)
        fields, kind = _take(_without_duration(given, "every"), "type")
        if kind not in EVALUATORS:
            raise unknown(f"config.evaluators.{name}.type:", str(kind), EVALUATORS)
        feed = section_call(
            open_eval,
            fields,
            f"evaluators.{name}",
            train=train,
            num_classes=num_classes,
        )
        opened[name] = _OpenEvaluator(EVALUATORS[kind], feed, every)
    return opened


def _evaluations(
    evaluators: Mapping[str, _OpenEvaluator],
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
    model: nn.Module, image: jax.ShapeDtypeStruct
) -> Callable[[jax.Array], Any]:
    def init(key: jax.Array) -> Any:
        zeros = jnp.zeros(image.shape, image.dtype)
        return model.init(key, zeros, train=False)["params"]

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


def _deployed_ops(evaluators: Mapping[str, _OpenEvaluator], data: TrainFeed) -> str:
    """Returns the preprocessing that users of the weights should apply."""
    for evaluator in evaluators.values():
        return evaluator.feed.ops
    logging.warning(
        "the config has no evaluator, so checkpoint.json names no preprocessing for "
        "new pictures; predict will need one"
    )
    return data.ops

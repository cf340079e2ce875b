# SPDX-License-Identifier: Apache-2.0
"""A run without its arrays: what the config says, checked and put together."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax import sharding
from vit_jax.build import fields as fields_lib, pretrained
from vit_jax.build.evaluators import OpenEvaluator, bind_evaluators, open_evaluators
from vit_jax.build.objective import Objective, make_objective
from vit_jax.config import section_call
from vit_jax.data.feed import TrainFeed, open_train
from vit_jax.errors import UserError, unknown
from vit_jax.evaluators.subject import Subject
from vit_jax.models import FAMILIES, build_model, catalog
from vit_jax.optim import Optimizer, averaging, build_optimizer, layers
from vit_jax.train.early_stopping import EarlyStopping
from vit_jax.train.loop import Evaluation, Schedule
from vit_jax.train.state import TrainState
from vit_jax.train.step import Update, make_update

_SECTIONS = ("data", "model", "loss", "optimizer", "mesh")


@dataclasses.dataclass(frozen=True)
class Blueprint:
    """A run without its arrays: checked, but nothing is compiled or allocated.

    Attributes:
      fields: The config as plain dictionaries, with what a checkpoint filled in.
      data: The training data.
      evaluators: The evaluators' data.
      schedule: Length and cadences.
      optimizer: The optimizer, for what there is to say about it.
      init: Makes the first parameters from a random key.
      create: Makes the first state from parameters.
      init_key: The random key.
      pretrained: Weights that replace the first parameters, or None.
      like: Shapes and places of the state.
      update: The step.
      evaluations: The evaluators bound to the model.
      averaged: Whether the run keeps averaged weights.
      early_stopping: When to end before the schedule does, or None.
    """

    fields: dict[str, Any]
    data: TrainFeed
    evaluators: dict[str, OpenEvaluator]
    schedule: Schedule
    optimizer: Optimizer
    init: Callable[[jax.Array], Any]
    create: Callable[[Any], TrainState]
    init_key: jax.Array
    pretrained: pretrained.Pretrained | None
    like: TrainState
    update: Update
    evaluations: dict[str, Evaluation]
    averaged: bool
    early_stopping: EarlyStopping | None

    @property
    def splits(self) -> dict[str, tuple[str, int]]:
        """The description and number of examples of each split, by its use."""
        sources = {"training": self.data.source}
        for name, opened in self.evaluators.items():
            sources[name] = opened.feed.source
        return {use: (s.description, len(s)) for use, s in sources.items()}


def make_blueprint(
    config: ConfigDict, devices: Sequence[Any] | None = None
) -> Blueprint:
    """Reads a config whole.

    Args:
      config: The config.
      devices: What the mesh is made of; None is all devices of all processes.

    Raises:
      UserError: Anything in the config or the data that the user can mend.
    """
    fields = config.to_dict()
    start = pretrained.load(fields.get("init"))
    fields = pretrained.fill(fields, start)
    sections = {name: fields.get(name) or {} for name in _SECTIONS}
    # Before the data is opened, which may take a while, for the sake of typos.
    objective = make_objective(
        sections["loss"],
        sections["model"],
        _model(sections["model"], sections["mesh"], 1),
        sections["data"].get("ops"),
    )
    objective.check_evaluators(fields.get("evaluators") or {})
    sections["model"] = {**sections["model"], **objective.model}
    mesh_sizes, rules, over_data, _, _ = fields_lib.take(
        sections["mesh"], "rules", "shard_update", "scan", "remat"
    )
    mesh = section_call(sharding.make_mesh, mesh_sizes, "mesh", devices=devices)
    over_data = sharding.on_tpu(mesh) if over_data is None else over_data
    seed = fields.get("seed") or 0
    data = section_call(
        open_train,
        sections["data"],
        "data",
        mesh=mesh,
        seed=seed,
        num_classes=sections["model"].get("num_classes"),
        has_classes=objective.has_classes,
    )
    num_outputs = _num_outputs(sections["model"], data, objective)
    fields["model"] = sections["model"] | {"num_classes": num_outputs}
    model = _model(sections["model"], sections["mesh"], num_outputs)
    schedule = fields_lib.schedule(fields, data)
    evaluators = open_evaluators(fields.get("evaluators") or {}, data, data.num_classes)
    stopping = _early_stopping(fields.get("early_stopping"), evaluators)

    init_key, step_key = jax.random.split(jax.random.key(seed))
    init = _initializer(model, data.image_shape())
    shapes = jax.eval_shape(init, init_key)
    section, accumulation = fields_lib.take(sections["optimizer"], "accumulation_steps")
    optimizer, average = _optimizer(section, shapes, data, schedule.total)
    averaged = average is not None
    create = functools.partial(TrainState.create, tx=optimizer.tx, averaged=averaged)
    return Blueprint(
        fields=fields,
        data=data,
        evaluators=evaluators,
        schedule=schedule,
        optimizer=optimizer,
        init=init,
        create=create,
        init_key=init_key,
        pretrained=start,
        like=_place(jax.eval_shape(create, shapes), mesh, rules, over_data),
        update=make_update(
            objective.train_apply(model),
            objective.loss,
            optimizer.tx,
            key=step_key,
            average=average,
            mix=objective.change(data.mix),
            accumulation_steps=_accumulation(accumulation, data),
            gathering=sharding.make_gathering(
                shapes,
                mesh,
                rules,
                sections["model"].get("dtype") or "float32",
                over_data=over_data,
            ),
        ),
        evaluations=bind_evaluators(
            evaluators,
            Subject(model, shapes, data.image_shape()),
            objective.loss,
            averaged,
        ),
        averaged=averaged,
        early_stopping=stopping,
    )


def _model(
    section: Mapping[str, Any], mesh: Mapping[str, Any], num_classes: int
) -> nn.Module:
    # How a model is laid out in memory and in the program is told with the mesh.
    layout = {
        key: mesh[key]
        for key in ("scan", "remat")
        if mesh.get(key) not in (None, False, "none")
    }
    for key in layout:
        _check_layout(section.get("name"), key)
    return section_call(
        build_model, dict(section) | layout | {"num_classes": num_classes}, "model"
    )


def _check_layout(name: str | None, key: str) -> None:
    variant = catalog.find(name) if name is not None else None
    if variant is None or key in FAMILIES[variant.family].__dataclass_fields__:
        return
    able = [f for f, family in FAMILIES.items() if key in family.__dataclass_fields__]
    raise UserError(
        f"config.mesh.{key} is for the families {', '.join(able)}; {name} is of the "
        f"family {variant.family}: set it to None"
    )


def _num_outputs(
    section: Mapping[str, Any], data: TrainFeed, objective: Objective
) -> int:
    given = section.get("num_classes")
    if given is not None:
        return given
    return (data.num_classes or 0) if objective.has_classes else 1


def _early_stopping(
    section: Mapping[str, Any] | None, evaluators: Mapping[str, OpenEvaluator]
) -> EarlyStopping | None:
    if not section or section.get("metric") is None:
        return None
    stopping = section_call(EarlyStopping, section, "early_stopping")
    evaluator = stopping.metric.partition("/")[0]
    if evaluator.removesuffix("_ema") not in evaluators:
        raise unknown("evaluator in early_stopping.metric", evaluator, evaluators)
    return stopping


def _accumulation(steps: int | None, data: TrainFeed) -> int:
    if steps is None:
        return 1
    parts = sharding.batch_parts(data.mesh)
    if not isinstance(steps, int) or not 1 <= steps <= data.batch_size // parts:
        raise UserError(
            f"config.optimizer.accumulation_steps={steps!r} must be a whole number "
            f"from 1 to the images of a device, {data.batch_size // parts}"
        )
    return steps


def _optimizer(
    section: Mapping[str, Any], shapes: Any, data: TrainFeed, total: int
) -> tuple[Optimizer, Callable[..., Any] | None]:
    """Returns the optimizer and the averaging of the weights."""
    fields, ema_decay, ema_warmup, layer_decay = fields_lib.take(
        section, "ema_decay", "ema_warmup", "layer_decay"
    )
    fields, warmup = fields_lib.take_steps(fields, "warmup", data, total)
    if layer_decay is not None:
        if fields.get("lr_rules"):
            raise UserError(
                "config.optimizer has layer_decay and lr_rules; set one of them to None"
            )
        fields["lr_rules"] = layers.decay_rules(shapes, layer_decay)
    optimizer = section_call(
        build_optimizer,
        fields,
        "optimizer",
        params=shapes,
        total_steps=total,
        warmup_steps=warmup or 0,
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


def _initializer(
    model: nn.Module, image_shape: tuple[int, int, int]
) -> Callable[[jax.Array], Any]:
    def init(key: jax.Array) -> Any:
        image = jnp.zeros((1, *image_shape), jnp.float32)
        return model.init(key, image, train=False)["params"]

    return init


def _place(shapes: Any, mesh: Mesh, rules: Any, over_data: bool) -> Any:
    """Adds to each shape where on the mesh the array lies."""
    places = sharding.tree_shardings(shapes, mesh, rules, over_data=over_data)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=place
        ),
        shapes,
        places,
    )

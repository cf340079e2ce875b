# SPDX-License-Identifier: Apache-2.0
"""Compiles the training step of a config for a slice."""

import dataclasses
import math
from typing import Any

import jax
from ml_collections import ConfigDict

from vit_jax import build, sharding
from vit_jax.build.pretrained import NORMALIZE
from vit_jax.config import UNITS, steps
from vit_jax.errors import UserError
from vit_jax.planning import published
from vit_jax.tpu import compiler, cost
from vit_jax.tpu.compiler import OutOfMemoryError, Slice
from vit_jax.tpu.cost import Cost


@dataclasses.dataclass(frozen=True)
class Plan:
    """The step of a config on a slice.

    Attributes:
      slice: What it is compiled for.
      model: Name of the model.
      dataset: The config's data set.
      batch_size: Images a step over all cores.
      total_steps: Length of the run, or None where it is not known: epochs of data
        whose size is not in `published.py`.
      state_bytes: Bytes of a core's part of parameters, moments and averages.
      mesh: Sizes of the mesh.
      changes: What was changed to make it fit: flags and their values.
      cost: What the step costs, or by how much it does not fit.
    """

    slice: Slice
    model: str
    dataset: str
    batch_size: int
    total_steps: int | None
    state_bytes: int
    mesh: dict[str, int]
    changes: dict[str, Any]
    cost: Cost | OutOfMemoryError

    @property
    def cores(self) -> int:
        """Devices of the slice."""
        return len(self.slice.devices)

    @property
    def fits(self) -> bool:
        """Whether the compiler found room for the step."""
        return isinstance(self.cost, Cost)


def make_plan(
    config: ConfigDict, slice_: Slice, changes: dict[str, Any] | None = None
) -> Plan:
    """Compiles the step of a config; its data need not be here.

    Args:
      config: The config.
      slice_: From `compiler.open_slice`.
      changes: Dotted names of fields and the values that they get instead.

    Raises:
      UserError: Whatever is wrong with the config, or a batch that the cores cannot
        share.
    """
    fields = config.to_dict()
    dataset, total = fields["data"].get("dataset"), _replace_durations(fields)
    for path, value in (changes or {}).items():
        section, _, key = path.partition(".")
        fields[section] = (fields.get(section) or {}) | {key: value}
    _replace_data(fields)
    blueprint = build.make_blueprint(ConfigDict(fields), devices=slice_.devices)
    batch = _batch_shapes(blueprint)
    places = jax.tree.map(lambda leaf: leaf.sharding, blueprint.like)
    try:
        traced, compiled, seconds = compiler.compile_for_tpu(
            blueprint.update,
            (blueprint.like, batch),
            donate_argnums=0,
            out_shardings=(places, None),
        )
        result: Cost | OutOfMemoryError = cost.measure(
            traced, compiled, slice_.chip.core, len(slice_.devices), seconds
        )
    except OutOfMemoryError as error:
        result = error
    return Plan(
        slice=slice_,
        model=fields["model"]["name"],
        dataset=dataset or "a mixture",
        batch_size=blueprint.data.batch_size,
        total_steps=total,
        state_bytes=sum(
            leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
            for leaf in jax.tree.leaves(blueprint.like)
        ),
        mesh=dict(blueprint.data.mesh.shape),
        changes=changes or {},
        cost=result,
    )


def _replace_durations(fields: dict[str, Any]) -> int | None:
    """Turns epochs of data that is not here into steps; returns the length."""
    data, optimizer = fields["data"], fields.setdefault("optimizer", {})
    examples = published.count_examples(data.get("dataset"), data.get("split"))
    known = {"batch_size": data["batch_size"], "num_examples": examples or 1}
    if fields.get("total_epochs") is not None and examples is None:
        # The schedule needs some length; it does not change what a step costs.
        fields.update(total_epochs=None, total_steps=1_000_000)
        _in_steps(optimizer, known, 1_000_000)
        return None
    total = steps("total", fields, **known)
    _in_steps(fields, known, total)
    _in_steps(optimizer, known, total)
    return total


def _in_steps(
    section: dict[str, Any], known: dict[str, int], total: int | None
) -> None:
    for name in {key.rpartition("_")[0] for key in section if _is_duration(key)}:
        value = steps(name, section, **known, total_steps=total)
        section.update({f"{name}_{unit}": None for unit in UNITS})
        section[f"{name}_steps"] = value


def _is_duration(key: str) -> bool:
    name, _, unit = key.rpartition("_")
    return unit in UNITS and name not in ("profile", "accumulation")


def _replace_data(fields: dict[str, Any]) -> None:
    """Puts noise of the same form in the place of all data, and drops evaluators."""
    data, model = fields["data"], fields["model"]
    if model.get("name") is None:
        raise UserError(
            "the config leaves its model to a checkpoint; a plan needs its name, such "
            "as --config.model.name=ViT-L/16"
        )
    name = published.dataset_name(data.get("dataset"))
    classes = model.get("num_classes") or published.CLASSES.get(name, 1000)
    model["num_classes"] = classes
    data.update(
        dataset=f"synthetic:{classes}@size=32;train={data['batch_size']}",
        split="train",
        ops=data["ops"].replace(NORMALIZE, "value_range(-1, 1)"),
        mixture=None,
        data_dir=None,
    )
    fields.update(evaluators={}, init=None, early_stopping=None, sweep=None)


def _batch_shapes(blueprint: build.Blueprint) -> dict[str, jax.ShapeDtypeStruct]:
    data = blueprint.data
    place = sharding.batch_sharding(data.mesh)
    return {
        key: jax.ShapeDtypeStruct(
            (data.batch_size, *value.shape[1:]), value.dtype, sharding=place
        )
        for key, value in data.one_example().items()
    }

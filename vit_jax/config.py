# SPDX-License-Identifier: Apache-2.0
"""What config files use, and how a config is loaded, overridden and taken apart.

A config file defines `get_config(arg="") -> ConfigDict` and may call `parse_arg` and
`smoke`. `load` runs it, `override` applies the command line, `section_call` hands a
section to the function whose keyword arguments are its schema. A field whose name ends
in `_steps`, `_epochs`, `_examples` or `_percent` is a duration; `steps` turns any of
the four units into a number of updates.
"""

import ast
import importlib.util
import inspect
import math
import pathlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from vit_jax.errors import UserError, nearest, unknown

UNITS = ("steps", "epochs", "examples", "percent")

# Every field that a config may have at its top level (see the table in README.md).
SECTIONS = (
    "init",
    "data",
    "model",
    "loss",
    "optimizer",
    "mesh",
    "early_stopping",
    "sweep",
    "study",
    "evaluators",
)
FIELDS = (
    *SECTIONS,
    "seed",
    "profile_steps",
    "keep_checkpoints",
    "watchdog_seconds",
    *(
        f"{name}_{unit}"
        for name in ("total", "log", "checkpoint", "keep_checkpoint")
        for unit in UNITS
    ),
)


AUGREG = {
    "none": (None, ""),
    "light1": (None, "|randaug(2, 0)"),  # contrast, histogram, negative; no no-op
    "light2": (0.2, "|randaug(2, 10)"),
    "medium1": (0.2, "|randaug(2, 15)"),
    "medium2": (0.5, "|randaug(2, 15)"),
    "strong1": (0.5, "|randaug(2, 20)"),
    "strong2": (0.8, "|randaug(2, 20)"),
}
"""Levels of augmentation of AugReg (arXiv:2106.10270, section 3.3), as big_vision has
them: name to the parameter of mixup and what comes between `flip_lr` and
`value_range` in the op string."""


def parse_arg(arg: str, **defaults: Any) -> ConfigDict:
    """Parses the ARGS of `--config=FILE:ARGS`.

    Args:
      arg: Comma-separated `name=value` pairs; a bare `name` means true.
      **defaults: Every allowed name with its default. A default that is a tuple lists
        the allowed values, its first being the default.

    Returns:
      All names with their values. A value takes the type of its default.

    Raises:
      UserError: An unknown name, or a value that is not allowed.

    Example:
      >>> dict(parse_arg("dataset=jft,smoke", dataset=("i21k", "jft"), smoke=False))
      {'dataset': 'jft', 'smoke': True}
    """
    values = {
        name: default[0] if isinstance(default, tuple) else default
        for name, default in defaults.items()
    }
    for part in filter(None, arg.split(",")):
        name, _, text = part.partition("=")
        if name not in defaults:
            raise unknown("config argument", name, defaults)
        value = _parse_value(text, values[name]) if "=" in part else True
        allowed = defaults[name]
        if isinstance(allowed, tuple) and value not in allowed:
            known = [str(each) for each in allowed]
            raise unknown(f"value of config argument {name!r}:", str(value), known)
        values[name] = _as_type_of(values[name], value, f"config argument {name!r}")
    return ConfigDict(values)


def smoke(config: ConfigDict, resolution: int, /, **sizes: Any) -> ConfigDict:
    """Shrinks a recipe to two steps of a tiny model on synthetic data, in place.

    The recipe's own preprocessing, optimizer, schedule, loss and evaluators stay, and
    the weights of a mixture, so that a smoke run passes through all of them.

    Args:
      config: The full recipe, whose op strings already produce `resolution`.
      resolution: Side of the pictures in pixels.
      **sizes: Fields that make the model tiny; those of a tiny ViT if there are none.

    Returns:
      The same `config`.
    """
    classes = min(config.model.num_classes or 10, 10)
    dataset = f"synthetic:{classes}@size={resolution};train=64;test=16"
    parts = (config.data.get("mixture") or {}).values()
    for part in parts or [config.data]:
        part.update(dataset=dataset, split="train")
    config.data.batch_size = 8
    for evaluator in config.evaluators.values():
        evaluator.update(dataset=dataset, split="test")
        if "train_split" in evaluator:
            evaluator.train_split = "train"
    tiny = {"width": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64}
    config.model.update(sizes or tiny)
    config.model.num_classes = min(config.model.num_classes, 10)
    if config.model.get("representation_size"):
        config.model.representation_size = 32
    override(config, [("total_steps", "2"), ("log_steps", "1")])
    config.optimizer.warmup_steps = min(config.optimizer.get("warmup_steps", 0), 1)
    return config


def load(spec: str) -> ConfigDict:
    """Runs `get_config` of a config file.

    Args:
      spec: `FILE` or `FILE:ARGS`.

    Raises:
      UserError: The file is missing or broken, has no `get_config`, or returns
        something else than a `ConfigDict` of known fields.
    """
    name, _, arg = spec.partition(":")
    path = pathlib.Path(name)
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else pathlib.Path("configs")
        files = [str(p) for p in folder.glob("*.py")]
        raise unknown("config file", name, files)
    module_spec = importlib.util.spec_from_file_location("vit_jax_config_file", path)
    if module_spec is None or module_spec.loader is None:
        raise UserError(f"config file {name!r} is not a Python file; name a .py file")
    module = importlib.util.module_from_spec(module_spec)
    try:
        module_spec.loader.exec_module(module)
        config = module.get_config(arg)
    except UserError:
        raise
    except (
        ArithmeticError,
        AttributeError,
        ImportError,
        LookupError,
        NameError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as err:
        lines = [f for f in traceback.extract_tb(err.__traceback__) if name in f[0]]
        line = f" line {lines[-1].lineno}" if lines else ""
        raise UserError(
            f"config file {name}{line}: {type(err).__name__}: {err}; mend the file"
        ) from err
    if not isinstance(config, ConfigDict):
        raise UserError(
            f"get_config in {name} returned {type(config).__name__}; it must return an "
            "ml_collections.ConfigDict"
        )
    for field in config:
        if field not in FIELDS:
            raise unknown(f"field of the config in {name}:", field, FIELDS)
    return config


def override(config: ConfigDict, assignments: Sequence[tuple[str, str]]) -> None:
    """Applies `--config.PATH=TEXT` assignments in place.

    A value is a Python literal, else a string. It takes the type of the value that it
    replaces (an integer may become a float). A duration given in one unit replaces
    the file's, whatever unit that has.

    Args:
      config: The config to change.
      assignments: Pairs of a dotted path below the config and a text.

    Raises:
      UserError: A path that leads nowhere, a value of another type, or two overrides
        of the same duration.
    """
    seen: dict[str, str] = {}
    for path, text in assignments:
        *parents, key = path.split(".")
        section = _descend(config, parents, path)
        siblings = _same_duration(section, key)
        duration = ".".join([*parents, key.rsplit("_", 1)[0]]) if siblings else path
        if seen.get(duration, path) != path:
            raise UserError(
                f"--config.{seen[duration]} and --config.{path} set the same duration; "
                "give one of them"
            )
        seen[duration] = path
        if not parents and not siblings and key not in config:
            if key not in FIELDS:
                raise unknown("config field", key, [*config, *FIELDS])
        for sibling in siblings:
            if sibling != key:
                section[sibling] = None
        current = section.get(key)
        value = _as_type_of(current, _parse_value(text, current), f"config.{path}")
        with section.ignore_type():
            section[key] = value


def steps(
    name: str,
    section: Mapping[str, Any],
    *,
    batch_size: int,
    num_examples: int,
    total_steps: int | None = None,
    default: int | None = None,
) -> int | None:
    """Returns the duration `name` of a section as a number of steps.

    Args:
      name: The name without unit, such as "total" or "warmup".
      section: Holds at most one of `NAME_steps`, `NAME_epochs`, `NAME_examples`,
        `NAME_percent` that is not None.
      batch_size: Global batch size.
      num_examples: Examples in one epoch of the training data.
      total_steps: Steps of the whole run, which a percentage refers to.
      default: Returned when no unit is set.

    Returns:
      The steps, rounded to the nearest; at least 1 for a duration above zero.

    Raises:
      UserError: Two units are set, the value is negative or no number, or a
        percentage of an unknown total.
    """
    keys = [f"{name}_{unit}" for unit in UNITS]
    given = {k: section[k] for k in keys if section.get(k) is not None}
    if not given:
        return default
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} set the same duration; keep one")
    (key, value), *_ = given.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise UserError(f"{key}={value!r} must be a number that is not negative")
    unit = key.rsplit("_", 1)[1]
    if unit == "percent" and total_steps is None:
        raise UserError(f"{key} is a share of the whole run; set its length otherwise")
    exact = {
        "steps": lambda: value,
        "examples": lambda: value / batch_size,
        "epochs": lambda: value * num_examples / batch_size,
        "percent": lambda: value / 100 * (total_steps or 0),
    }[unit]()
    return max(round(exact), math.ceil(min(exact, 1)))


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


def _descend(config: ConfigDict, parents: Sequence[str], path: str) -> ConfigDict:
    node = config
    for depth, parent in enumerate(parents):
        where = ".".join(["config", *parents[:depth]])
        if parent not in node:
            known = [k for k, v in node.items() if isinstance(v, ConfigDict)]
            raise unknown(f"section in --config.{path}: {where} has no", parent, known)
        node = node[parent]
        if not isinstance(node, ConfigDict):
            raise UserError(
                f"--config.{path}: {where}.{parent} is a value, not a section; set it "
                f"with --{where}.{parent}=VALUE"
            )
    return node


def _same_duration(section: ConfigDict, key: str) -> list[str]:
    """Returns the fields of the section that hold the duration of `key`."""
    name, _, unit = key.rpartition("_")
    if unit not in UNITS or not name:
        return []
    return [f"{name}_{u}" for u in UNITS if f"{name}_{u}" in section]


def _parse_value(text: str, current: Any) -> Any:
    if isinstance(current, str):
        return text
    if text.lower() in ("true", "false", "none"):
        text = text.capitalize()
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _as_type_of(current: Any, value: Any, what: str) -> Any:
    if current is None or value is None or type(value) is type(current):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(current, float) and number:
        return float(value)
    if type(current) is int and number and float(value).is_integer():
        return int(value)
    if isinstance(current, list | tuple) and isinstance(value, list | tuple):
        return type(current)(value)
    if isinstance(current, ConfigDict) and isinstance(value, dict):
        return ConfigDict(value)
    hint = ""
    if isinstance(current, bool) and isinstance(value, str):
        close = nearest(value, ["true", "false"])
        hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UserError(
        f"{what}={value!r} is of type {type(value).__name__}; it must be of type "
        f"{type(current).__name__}, as {current!r}{hint}"
    )

# SPDX-License-Identifier: Apache-2.0
"""Finds finished and unfinished runs below a folder and reads what they measured."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from absl import logging
from etils import epath

from vit_jax import cells
from vit_jax.data.buckets import bucket_errors, exists, is_folder
from vit_jax.errors import UserError
from vit_jax.models import FAMILIES, catalog, presets
from vit_jax.published_results import IMAGENET, IMAGENET21K, JFT

_WORD = "(?<![a-z0-9])"
_KNOWN = {
    IMAGENET21K: rf"imagenet[-_]?2[12]k|{_WORD}in?2[12]k",
    IMAGENET: rf"imagenet[-_]?(2012|1k)|{_WORD}in?1k",
    JFT: f"{_WORD}jft",
}
_FILES = (".npz", ".safetensors", ".pth", ".pt", ".bin")
_SUFFIX = re.compile(r"(@(\d+|best))?(:(ema|raw))?$")
_WHOLE = ("train", "train[:99%]", "full", "full[51200:]")
"""Splits that stand for all of a data set; the rest of it chooses or tests."""

# Fields of a model that do not make it another one: what it was made for and how it
# computes, training, and numerics that its weights bring with them.
_NEUTRAL = {
    *("name", "num_classes", "preset", "resolution", "dtype", "param_dtype"),
    *("attention", "scan", "remat", "pad", "resize_positions"),
    *("representation_size", "representation_activation", "head_bias"),
    *("dropout_rate", "attention_dropout_rate", "drop_path_rate"),
    *("norm_eps", "gelu", "conv_eps", "conv_eps_form", "group_norm_eps"),
    *("pool_padding", "class_position", "position_stddev"),
}


class Pretraining(NamedTuple):
    """What the weights that a run started from were trained on.

    Attributes:
      name: The data set, or several joined by ", then "; None if it is not known.
      epochs: Passes over it; None if they are not known.
      optimizer: "adam", "sgd" or another name; None if it is not known.
    """

    name: str | None
    epochs: float | None = None
    optimizer: str | None = None


FROM_SCRATCH = Pretraining("none")


class Run(NamedTuple):
    """A run as its directory describes it.

    Attributes:
      path: The directory.
      config: The resolved config.
      model: Name in the catalogue.
      changes: Fields of the model that are not those of the catalogue, as far as they
        make it another model.
      resolution: Side of its images; of the shorter one.
      pretraining: What it started from.
      metrics: The last value of each metric, and the last step.
    """

    path: str
    config: Mapping[str, Any]
    model: str
    changes: Mapping[str, Any]
    resolution: int
    pretraining: Pretraining
    metrics: Mapping[str, Any]

    @property
    def init(self) -> str | None:
        """The checkpoint that it started from."""
        return (self.config.get("init") or {}).get("checkpoint")

    @property
    def finished(self) -> bool:
        """Whether it did all its steps, as far as the config tells their number."""
        return self.metrics.get("step", 0) >= (self.config.get("total_steps") or 0)

    @property
    def trained(self) -> Pretraining:
        """What its weights were trained on in the end, with all that came before."""
        return _and_then(self.pretraining, _own_training(self.config))

    def evaluations(self, kind: str) -> Iterator[tuple[str, str, str]]:
        """Yields name, data set and split of each evaluator of a type."""
        for name, section in (self.config.get("evaluators") or {}).items():
            if section.get("type") == kind:
                dataset = section.get("dataset") or self.train[0]
                yield name, dataset, section.get("split")

    @property
    def train(self) -> tuple[str, str]:
        """Data set and split of the training; of a mixture, one text for each."""
        data = self.config["data"]
        parts = (data.get("mixture") or {"": data}).values()
        return (
            " + ".join(str(part.get("dataset")) for part in parts),
            " + ".join(str(part.get("split")) for part in parts),
        )


def find_runs(folder: str) -> list[Run]:
    """Returns the runs below a folder, by their paths.

    A run that did not begin to train, and so wrote no checkpoint.json, is none.

    Raises:
      UserError: No such folder, no run in it, or a file that is damaged.
    """
    root = epath.Path(folder).expanduser()
    if not is_folder(str(root)):
        raise UserError(f"no folder {folder!r}; name one that holds workdirs of runs")
    with bucket_errors(folder):
        runs = [_read(path) for path in _walk(root)]
    if not runs:
        raise UserError(
            f"no run below {folder}: none of its folders has a config.json, "
            "checkpoint.json and metrics.jsonl of this package"
        )
    return sorted(runs, key=lambda run: run.path)


def _walk(folder: epath.Path) -> Iterator[epath.Path]:
    entries = {entry.name: entry for entry in folder.iterdir()}
    if {"config.json", "checkpoint.json", "metrics.jsonl"} <= entries.keys():
        yield folder
    for name, entry in entries.items():
        if name != "checkpoints" and entry.is_dir():
            yield from _walk(entry)


def _read(folder: epath.Path) -> Run:
    config, checkpoint = (
        _read_json(folder / f"{name}.json") for name in ("config", "checkpoint")
    )
    try:
        model = checkpoint["model"]["name"]
        changes = changes_of(checkpoint["model"])
        resolution = min(checkpoint["image_shape"][:2])
        init = (config.get("init") or {}).get("checkpoint")
        config["data"].get("dataset")
    except (AttributeError, LookupError, TypeError) as err:
        raise UserError(
            f"the files of {folder} do not describe a run ({err!r}); move the folder "
            "elsewhere, or run it again"
        ) from err
    return Run(
        path=str(folder),
        config=config,
        model=model,
        changes=changes,
        resolution=resolution,
        pretraining=pretraining_of(init),
        metrics=cells.last_metrics(str(folder)),
    )


def _read_json(path: epath.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as err:
        raise UserError(f"cannot read {path}: {err}; run it again") from err


def pretraining_of(init: str | None) -> Pretraining:
    """Returns what a checkpoint was trained on.

    A run of ours tells it. Of other files it is known if their name, or that of their
    folder, tells it as Google's do: `imagenet21k/ViT-B_16.npz`, `B_16-i21k-300ep.npz`.

    Args:
      init: The checkpoint; None for a run from scratch.
    """
    if init is None:
        return FROM_SCRATCH
    path = epath.Path(_SUFFIX.sub("", init)).expanduser()
    if _is_run(path):
        config = _read_json(path / "config.json")
        before = pretraining_of((config.get("init") or {}).get("checkpoint"))
        return _and_then(before, _own_training(config))
    return Pretraining(_data_set("/".join(path.parts[-2:])))


def _and_then(before: Pretraining, own: Pretraining) -> Pretraining:
    if before == FROM_SCRATCH:
        return own
    if before.name is None or own.name is None:
        return Pretraining(None)
    return Pretraining(f"{before.name}, then {own.name}")


def changes_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that make a model another one than the catalogue's.

    Args:
      model: Keyword arguments of `build_model`.
    """
    row = catalog.find(model["name"])
    family = FAMILIES[row.family]
    usual = {field.name: field.default for field in dataclasses.fields(family)}
    usual |= row.fields
    given = {**presets.find(model.get("preset") or row.preset).fields, **model}
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return {
        key: value
        for key, value in plain.items()
        if key not in _NEUTRAL and value != usual.get(key)
    }


def _own_training(config: Mapping[str, Any]) -> Pretraining:
    """Returns what a run itself trains on, how long and with what."""
    data = config.get("data") or {}
    parts = (data.get("mixture") or {"": data}).values()
    name = _data_set(" ".join(str(part.get("dataset")) for part in parts))
    splits = {str(part.get("split")) for part in parts} - {*_WHOLE}
    if name is not None and splits:
        name = f"{name} {' '.join(sorted(splits))}"
    if name is not None and (config.get("loss") or {}).get("name") == "masked_patch":
        name = f"{name}, masked patches"
    optimizer = (config.get("optimizer") or {}).get("name")
    optimizer = {"adamw": "adam"}.get(str(optimizer), optimizer)
    return Pretraining(name, config.get("total_epochs"), optimizer)


def _is_run(path: epath.Path) -> bool:
    """Whether there is a run of ours; not if it cannot be reached any more."""
    if path.suffix in _FILES:
        return False
    try:
        return all(exists(str(path / n)) for n in ("config.json", "metrics.jsonl"))
    except UserError as err:
        logging.warning("%s; its name is taken for its pre-training", err)
        return False


def _data_set(text: str) -> str | None:
    """Returns the data sets that a text names, in the order of pre-training."""
    found = [n for n, pattern in _KNOWN.items() if re.search(pattern, text.lower())]
    return ", then ".join(found) or None

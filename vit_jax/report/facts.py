# SPDX-License-Identifier: Apache-2.0
"""What the files of a run tell, in the words of the report."""

import dataclasses
import datetime
import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from vit_jax import metrics
from vit_jax.errors import UserError
from vit_jax.models import build_model, flops
from vit_jax.plots import series
from vit_jax.plots.series import nice
from vit_jax.report import paper


@dataclasses.dataclass(frozen=True)
class Facts:
    """The files of a run.

    Attributes:
      workdir: The run's directory, as the user named it.
      config: The resolved config.
      run: Versions, devices, command line, number of parameters.
      checkpoint: The model, its preprocessing and class names.
      lines: Of `metrics.jsonl`.
    """

    workdir: str
    config: Mapping[str, Any]
    run: Mapping[str, Any]
    checkpoint: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]

    @property
    def model(self) -> str:
        """Name in the catalogue."""
        return self.checkpoint["model"]["name"]

    @property
    def dataset(self) -> str:
        """Data set and split of the training; of a mixture, each of them."""
        data = self.config.get("data") or {}
        parts = (data.get("mixture") or {"": data}).values()
        return " + ".join(
            f"{part.get('dataset')} {part.get('split')}" for part in parts
        )

    @property
    def batch_size(self) -> int:
        """Images a step."""
        return int((self.config.get("data") or {}).get("batch_size") or 0)

    @property
    def step(self) -> int:
        """Updates done."""
        return max((int(line["step"]) for line in self.lines), default=0)

    def last(self, metric: str) -> tuple[float, int] | None:
        """Returns the last value of a metric and its step, None if there is none."""
        for line in reversed(self.lines):
            if metric in line:
                return line[metric], line["step"]
        return None

    def evaluations(self) -> list[tuple[str, str, str | None, str | None, int]]:
        """Returns the last results of every evaluator.

        Returns:
          Evaluator, metric, its value, that of the averaged weights, and the step.
        """
        rows = []
        names = dict.fromkeys(name for line in self.lines for name in line)
        for evaluator in self.config.get("evaluators") or {}:
            for name in names:
                start, _, metric = name.partition("/")
                if start != evaluator or metric == "examples":
                    continue
                value, averaged = self.last(name), self.last(f"{start}_ema/{metric}")
                if value is not None:
                    shown = [
                        None if each is None else show(metric, each[0])
                        for each in (value, averaged)
                    ]
                    rows.append((evaluator, metric, *shown, value[1]))
        return rows

    def speed(self) -> float | None:
        """Returns the median of the logged images/s, None where none is logged."""
        speeds = [
            line["train/images_per_second"]
            for line in self.lines
            if "train/images_per_second" in line
        ]
        return statistics.median(speeds) if speeds else None

    def costs(self) -> dict[str, str]:
        """Returns parameters, operations, speed and time."""
        fields = {**self.checkpoint["model"], "dtype": "float32"}
        height, width, _ = self.checkpoint["image_shape"]
        model, size = build_model(**fields), (height, width)
        adds = flops.multiply_adds(model, size)
        images = self.step * self.batch_size
        devices = self.run.get("devices") or {}
        count = int(devices.get("count") or 1)
        seconds = series.seconds_of_updates(self.lines, self.batch_size)
        found = {
            "parameters": f"{int(self.run.get('parameters') or 0):,}",
            "operations of an image": f"{nice(2 * adds / 1e9)} GFLOP forward",
            "operations of the run": f"{6 * adds * images:.3g} FLOP",
            "images seen": f"{images:,}",
            "devices": f"{count} x {devices.get('kind', 'not known')}",
        }
        speed = self.speed()
        if speed:
            found["speed"] = f"{nice(speed)} images/s"
            found["time in updates"] = metrics.duration(seconds)
            found["device-days"] = nice(count * seconds / 86_400)
        return found

    def settings(self) -> dict[str, tuple[str, str | None]]:
        """Returns settings of the training, and the paper's where Table 3 has a row."""
        data = self.config.get("data") or {}
        optimizer = self.config.get("optimizer") or {}
        model = self.config.get("model") or {}
        height, width, _ = self.checkpoint["image_shape"]
        epoch = self.last("train/epoch")
        own = {
            "data": self.dataset,
            "epochs": nice(epoch[0]) if epoch else None,
            "batch": f"{self.batch_size:,}",
            "optimizer": optimizer.get("name"),
            "learning rate": optimizer.get("lr"),
            "schedule": optimizer.get("schedule"),
            "warm-up": _duration(optimizer, "warmup"),
            "weight decay": optimizer.get("weight_decay"),
            "clipping": optimizer.get("clip_norm") or "none",
            "averaging": optimizer.get("ema_decay"),
            "dropout": model.get("dropout_rate", 0.0),
            "pixels": f"{height} x {width}",
            "training pictures": data.get("ops"),
            "started from": (self.config.get("init") or {}).get("checkpoint"),
        }
        row = None
        if own["started from"] is None:
            row = paper.find(self.model, self.dataset)
        theirs = {} if row is None else paper.compared(row)
        return {
            name: (str(value), theirs.get(name))
            for name, value in own.items()
            if value is not None
        }

    def commands(self) -> list[tuple[str, str]]:
        """Returns what to type to repeat the run and to go on with it."""
        where = shlex.quote(self.workdir)
        found = []
        command = self.run.get("command")
        if command:
            found.append(("train again", shlex.join(["python", *command[1:]])))
        for name, section in (self.config.get("evaluators") or {}).items():
            if section.get("type") == "classification":
                dataset = section.get("dataset") or self.config["data"].get("dataset")
                line = f"python -m vit_jax.evaluate --checkpoint={where}"
                line += f" --dataset={shlex.quote(str(dataset))}"
                line += f" --split={shlex.quote(str(section.get('split')))}"
                found.append((f"evaluate on {name}", line))
        predict = f"python -m vit_jax.predict --checkpoint={where} PICTURE"
        look = f"python -m vit_jax.plots rollout --checkpoint={where} PICTURE"
        return [
            *found,
            ("name what is in a picture", predict),
            ("see where it looks", f"{look} --output=rollout.png"),
            ("write this page again", f"python -m vit_jax.report {where}"),
        ]

    def origin(self) -> str:
        """Returns when and with what the run was made."""
        versions = self.run.get("versions") or {}
        parts = [f"{name} {version}" for name, version in versions.items()]
        if self.run.get("commit"):
            parts.insert(0, f"commit {self.run['commit']}")
        if self.lines:
            end = datetime.datetime.fromtimestamp(self.lines[-1]["time"], datetime.UTC)
            parts.insert(0, f"last step {end:%Y-%m-%d %H:%M} UTC")
        return ", ".join(parts)


def read_facts(workdir: str) -> Facts:
    """Reads the files of a run.

    Raises:
      UserError: No such directory, no run in it, or a file that is damaged.
    """
    path = epath.Path(workdir).expanduser()
    contents = {}
    for name in ("config", "run", "checkpoint"):
        file = path / f"{name}.json"
        try:
            contents[name] = json.loads(file.read_text())
        except FileNotFoundError as err:
            raise UserError(
                f"{workdir} has no {name}.json, so it is not the workdir of a run; "
                "name the folder that was given as --workdir"
            ) from err
        except (OSError, ValueError) as err:
            raise UserError(f"cannot read {file}: {err}; restore it") from err
    return Facts(workdir=workdir, lines=metrics.read_metrics(str(path)), **contents)


def show(metric: str, value: float) -> str:
    """Returns the value of a metric for people; accuracies are per cent."""
    kind = metric.rsplit("/", 1)[-1]
    if kind in ("top1", "top5", "map", "f1_micro", "f1_macro"):
        return f"{100 * value:.2f} %"
    return f"{value:.4g}"


def _duration(section: Mapping[str, Any], name: str) -> str | None:
    for key, value in section.items():
        if key.startswith(f"{name}_") and value is not None:
            unit = key.removeprefix(f"{name}_")
            return f"{value:,} {'%' if unit == 'percent' else unit}"
    return None

# SPDX-License-Identifier: Apache-2.0
"""All benchmarks that are watched: a file of results, and how they differ from before.

Each is a process of its own, and none runs beside another one.
"""

import datetime
import importlib.util
import json
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from vit_jax import metrics
from vit_jax.benchmark import machine
from vit_jax.errors import UserError

LINES = (
    "step --model=ViT-S/16 --batch_size=16",
    "step --model=Swin-T --batch_size=16",
    "input --dataset=bundled:mnist --batch_size=128 --steps=200",
    "input --rivals --dataset=bundled:mnist --split='train[:512]' --upscale=500x375 "
    "--batch_size=64 --steps=4 --rounds=9",
    "checkpoint --model=ViT-B/16",
    "startup",
    "compiled --model=ViT-B/16 --images_per_core=32 --topology=v3:4x4",
    "compiled --model=ViT-S/16 --images_per_core=128 --topology=v3:4x4",
    "compiled --model=ViT-L/16 --images_per_core=16 --topology=v3:4x4",
)

# What is compared with the time before.
FIGURES = {
    "step": ("images_per_second",),
    "input": ("images_per_second", "cpu_ratio"),
    "checkpoint": ("blocking_seconds", "save_seconds", "restore_seconds"),
    "startup": ("help_seconds", "smoke_seconds", "smoke_again_seconds"),
    "compiled": ("roofline_ms", "hbm_mb_per_image", "temp_gb"),
}


Key = tuple[str, str, str]


def run_all(output: str, lines: Sequence[str] = LINES) -> list[dict[str, Any]]:
    """Runs benchmarks one after the other, and writes what they say into a file.

    What the compiler for TPUs is needed for is left out where that is not installed,
    and the file says so.

    Args:
      output: The JSON file; figures in the file of that name are told beside the new.
      lines: The arguments of each benchmark.

    Returns:
      The results, in order.

    Raises:
      UserError: The file cannot be written, or, after all others have run and the file
        is written, a benchmark failed.
    """
    before: dict[Key, float] = {}
    for result in _read(output).get("results", []):
        before |= _named(result)
    content: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "results": [],
        "left_out": [],
    }
    failed = []
    for line in lines:
        command, load = f"python -m vit_jax.benchmark {line}", machine.load()
        results, why = [], None
        if line.startswith("compiled") and importlib.util.find_spec("libtpu") is None:
            why = "the TPU compiler is not installed: pip install 'jax[tpu]'"
        else:
            logging.info("%s", command)
            results, why = _run(line)
            failed += [command] if why else []
        if why:
            logging.warning("left out %s: %s", command, why)
            content["left_out"].append({"command": command, "why": why})
        for result in results:
            entry = {"command": command, "load_before": load, **result}
            content["results"].append(entry)
            for text in _changes(entry, before):
                logging.info("  %s", text)
        _write(output, content)
    if failed:
        raise UserError(
            f"{len(failed)} of {len(lines)} benchmarks failed: {'; '.join(failed)}; "
            f"{output} says why, and has the results of the others"
        )
    return content["results"]


def _run(line: str) -> tuple[list[dict[str, Any]], str | None]:
    """Returns the results of a benchmark, or why it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "vit_jax.benchmark", *shlex.split(line)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return [], f"exit status {done.returncode}: {last}"
    lines = [text for text in done.stdout.splitlines() if text.startswith("{")]
    return [json.loads(text) for text in lines], None


def _read(output: str) -> Mapping[str, Any]:
    path = pathlib.Path(output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return json.loads(path.read_text()) if path.exists() else {}
    except (OSError, json.JSONDecodeError) as err:
        raise UserError(
            f"cannot use {output}: {err}; name another file with --output"
        ) from err


def _write(output: str, content: Mapping[str, Any]) -> None:
    try:
        metrics.write_json(output, content)
    except OSError as err:
        raise UserError(
            f"cannot write {output}: {err}; name another file with --output"
        ) from err


def _named(result: Mapping[str, Any]) -> dict[Key, float]:
    """Returns the figures of a result by its command, what it measured and the name."""
    command, what = result["command"], result.get("pipeline", "")
    names = [n for n in FIGURES[result["benchmark"]] if result.get(n) is not None]
    return {(command, what, name): result[name] for name in names}


def _changes(result: Mapping[str, Any], before: Mapping[Key, float]) -> Iterator[str]:
    for key, value in _named(result).items():
        old = before.get(key)
        change = f" (before {old:g}, {value / old - 1:+.1%})" if old else ""
        yield f"{' '.join(key[1:]).strip()} {value:g}{change}"

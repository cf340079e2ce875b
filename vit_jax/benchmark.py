# SPDX-License-Identifier: Apache-2.0
r"""Measures speed on this machine; one JSON line a result.

  python -m vit_jax.benchmark step --model=ViT-S/16 --batch_size=16
  python -m vit_jax.benchmark input --dataset=bundled:mnist --batch_size=128
  python -m vit_jax.benchmark input --dataset=zip:FILE --upscale=500x375 --rivals
  python -m vit_jax.benchmark startup
  python -m vit_jax.benchmark compiled --model=ViT-B/16 --images_per_core=32 \
      --topology=v3:4x4

step: training steps (forward, backward, AdamW) on a batch that lies on the device.
input: batches of the training pipeline, nothing else; with --rivals, in turns with
plain tf.data over the same JPEG files in memory (see vit_jax/data/speed.py), one line a
pipeline, and with --ops_ms what each op of --ops costs. startup: how long --help takes,
and the smoke run of the quickstart from the command to its end, with an empty and
with a filled compilation cache.
"""

import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError, unknown

FLAGS = flags.FlagValues()
_MODEL = flags.DEFINE_string(
    "model", "ViT-S/16", "step: name of the model.", flag_values=FLAGS
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size",
    16,
    "step, input: images a step over all devices.",
    lower_bound=1,
    flag_values=FLAGS,
)
_RESOLUTION = flags.DEFINE_integer(
    "resolution",
    224,
    "step, input --rivals: side of the images in pixels.",
    lower_bound=1,
    flag_values=FLAGS,
)
_DTYPE = flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "bfloat16"],
    "step: of the computation.",
    flag_values=FLAGS,
)
_STEPS = flags.DEFINE_integer(
    "steps",
    10,
    "step, input: steps to time, after the first.",
    lower_bound=1,
    flag_values=FLAGS,
)
_DATASET = flags.DEFINE_string(
    "dataset", "bundled:mnist", "input: a DATASET.", flag_values=FLAGS
)
_SPLIT = flags.DEFINE_string("split", "train", "input: a split.", flag_values=FLAGS)
_OPS = flags.DEFINE_string(
    "ops",
    "decode|random_crop(28, padding=2)|value_range(-1, 1)",
    "input: the preprocessing.",
    flag_values=FLAGS,
)
_IMAGES_PER_CORE = flags.DEFINE_integer(
    "images_per_core",
    32,
    "compiled: images a step on each core.",
    lower_bound=1,
    flag_values=FLAGS,
)
_TOPOLOGY = flags.DEFINE_string(
    "topology", "v3:4x4", "compiled: a slice, see vit_jax.plan.", flag_values=FLAGS
)
_SHARD_UPDATE = flags.DEFINE_boolean(
    "shard_update",
    True,
    "compiled: split parameters and moments over the cores.",
    flag_values=FLAGS,
)
_OVERRIDES = flags.DEFINE_multi_string(
    "set", [], "compiled: FIELD=VALUE of the model; repeatable.", flag_values=FLAGS
)
_PROGRAM = flags.DEFINE_string(
    "program", None, "compiled: file for the program's text.", flag_values=FLAGS
)
_RIVALS = flags.DEFINE_boolean(
    "rivals", False, "input: compare with plain tf.data pipelines.", flag_values=FLAGS
)
_OPS_MS = flags.DEFINE_boolean(
    "ops_ms", False, "input: milliseconds of each op of --ops.", flag_values=FLAGS
)
_UPSCALE = flags.DEFINE_string(
    "upscale",
    None,
    "input: first make the images this large, such as 500x375, and JPEG again.",
    flag_values=FLAGS,
)
_ROUNDS = flags.DEFINE_integer(
    "rounds",
    15,
    "input --rivals, --ops_ms: turns of each pipeline, of --steps batches.",
    lower_bound=1,
    flag_values=FLAGS,
)


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark that is named on the command line."""
    if len(argv) != 1:
        raise UserError(f"name one benchmark of {', '.join(BENCHMARKS)}")
    if argv[0] not in BENCHMARKS:
        raise unknown("benchmark", argv[0], BENCHMARKS)
    results = BENCHMARKS[argv[0]]()
    for result in results if isinstance(results, list) else [results]:
        print(json.dumps({"benchmark": argv[0], **result}))


def measure_step() -> dict[str, Any]:
    """Times training steps of a model with 1,000 classes."""
    command.start_jax()
    import jax
    import numpy as np

    from vit_jax import losses, sharding
    from vit_jax.models import build_model
    from vit_jax.optim import build_optimizer
    from vit_jax.train.state import TrainState
    from vit_jax.train.step import make_update

    mesh = sharding.make_mesh()
    batch_size, side = _BATCH_SIZE.value, _RESOLUTION.value
    sharding.check_batch_size(batch_size, mesh, "--batch_size")
    model = build_model(_MODEL.value, num_classes=1000, dtype=_DTYPE.value)
    image = np.zeros((1, side, side, 3), np.float32)

    def init(key: jax.Array) -> Any:
        return model.init(key, image, train=False)["params"]

    def apply(params: Any, image: jax.Array, rngs: Any) -> jax.Array:
        return model.apply({"params": params}, image, train=True, rngs=rngs)[0]

    key = jax.random.key(0)
    shapes = jax.eval_shape(init, key)
    tx = build_optimizer(shapes, lr=1e-3, total_steps=10**6, weight_decay=0.1).tx
    everywhere = sharding.replicated(mesh)
    state = jax.jit(
        lambda key: TrainState.create(init(key), tx=tx, averaged=False),
        out_shardings=everywhere,
    )(key)
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.standard_normal((batch_size, side, side, 3), np.float32),
        "label": rng.integers(0, 1000, batch_size, np.int32),
    }
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    update = jax.jit(
        make_update(apply, losses.build_loss(), tx, key=key),
        donate_argnums=0,
        out_shardings=(everywhere, None),
    )

    def step() -> None:
        nonlocal state
        state, measured = update(state, batch)
        jax.block_until_ready(measured)

    first, seconds = _time(step)
    return {
        "model": _MODEL.value,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        "resolution": side,
        "dtype": _DTYPE.value,
        **_rate(seconds),
        "first_step_seconds": round(first, 3),
        "devices": jax.device_count(),
        "device": jax.devices()[0].device_kind,
    }


def measure_input() -> dict[str, Any] | list[dict[str, Any]]:
    """Times batches of the training pipeline on the host."""
    from vit_jax.data import speed
    from vit_jax.data.sources import check_source, open_source

    source = open_source(_DATASET.value, _SPLIT.value)
    check_source(source, batch_size=_BATCH_SIZE.value)
    with tempfile.TemporaryDirectory() as folder:
        if _UPSCALE.value:
            tar = os.path.join(folder, "upscaled.tar")
            speed.write_upscaled(source, tar, speed.parse_size(_UPSCALE.value))
            source = open_source(f"tar:{tar}", "train")
        turns = {
            "batch_size": _BATCH_SIZE.value,
            "batches": _STEPS.value,
            "rounds": _ROUNDS.value,
        }
        if _OPS_MS.value:
            return {"ops_ms": speed.ops_ms(source, _OPS.value, **turns), **turns}
        if _RIVALS.value:
            return speed.compare(source, resolution=_RESOLUTION.value, **turns)
        return _measure_batches(source)


def _measure_batches(source: Any) -> dict[str, Any]:
    from vit_jax.data import pipeline

    batches = pipeline.train_batches(
        source, batch_size=_BATCH_SIZE.value, ops=_OPS.value, seed=0
    )
    first, seconds = _time(lambda: next(batches))
    batches.close()
    return {
        "dataset": _DATASET.value,
        "split": _SPLIT.value,
        "ops": _OPS.value,
        **_rate(seconds),
        "first_batch_seconds": round(first, 3),
    }


def measure_startup() -> dict[str, Any]:
    """Times whole commands, each in a process of its own."""
    run = [sys.executable, "-m", "vit_jax.main"]
    with tempfile.TemporaryDirectory() as folder:
        smoke = [
            *run,
            "--config=configs/quickstart.py:smoke",
            f"--compilation_cache={folder}/cache",
        ]
        return {
            "help_seconds": _seconds([*run, "--help"]),
            "smoke_seconds": _seconds([*smoke, f"--workdir={folder}/cold"]),
            "smoke_again_seconds": _seconds([*smoke, f"--workdir={folder}/warm"]),
        }


def measure_compiled() -> dict[str, Any]:
    """Compiles the reference step of a model for a TPU slice."""
    from vit_jax.tpu import compiler

    compiler.set_up()
    from vit_jax import planning
    from vit_jax.models import build_model, flops
    from vit_jax.planning.reference_step import NUM_CLASSES

    slice_ = compiler.open_slice(_TOPOLOGY.value)
    per_core, overrides = _IMAGES_PER_CORE.value, parse_fields(_OVERRIDES.value)
    try:
        cost, compiled = planning.compile_reference(
            _MODEL.value,
            images_per_core=per_core,
            resolution=_RESOLUTION.value,
            slice_=slice_,
            shard_update=_SHARD_UPDATE.value,
            **overrides,
        )
    except compiler.OutOfMemoryError as err:
        raise UserError(
            f"{_MODEL.value} with {per_core} images a core {err}; use fewer"
        ) from err
    if _PROGRAM.value:
        with open(_PROGRAM.value, "w", encoding="utf-8") as file:
            file.write(compiled.as_text())
    model = build_model(_MODEL.value, num_classes=NUM_CLASSES, **overrides)
    images = per_core * len(slice_.devices)
    optimal = cost.compiler_seconds
    return {
        "model": _MODEL.value,
        "images_per_core": per_core,
        "topology": _TOPOLOGY.value,
        "cores": len(slice_.devices),
        "overrides": overrides,
        "shard_update": _SHARD_UPDATE.value,
        "roofline_ms": None if optimal is None else round(1000 * optimal, 2),
        "compute_ms": round(1000 * cost.roofline.compute, 2),
        "hbm_mb_per_image": round(cost.hbm_bytes / per_core / 1e6, 1),
        "temp_gb": round(cost.temp_bytes / 1e9, 3),
        "argument_gb": round(cost.argument_bytes / 1e9, 3),
        "multiply_adds_per_image": cost.flops // 2 // images,
        "forward_multiply_adds": flops.multiply_adds(model, _RESOLUTION.value),
        "collectives": {k: list(v) for k, v in cost.collectives.items()},
        "compile_seconds": round(cost.compile_seconds, 1),
    }


def parse_fields(assignments: Sequence[str]) -> dict[str, Any]:
    """Reads `FIELD=VALUE` texts; a value is a Python literal, else a text.

    Raises:
      UserError: A text without an equals sign.
    """
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set={assignment} must be FIELD=VALUE, as in depth=2")
        try:
            fields[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            fields[name] = text
    return fields


BENCHMARKS: dict[str, Callable[[], dict[str, Any] | list[dict[str, Any]]]] = {
    "step": measure_step,
    "input": measure_input,
    "startup": measure_startup,
    "compiled": measure_compiled,
}


def _time(step: Callable[[], Any]) -> tuple[float, list[float]]:
    """Returns the seconds of the first call, and of each of the calls after it."""
    seconds = []
    for _ in range(1 + _STEPS.value):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds[0], seconds[1:]


def _rate(seconds: Sequence[float]) -> dict[str, Any]:
    """Describes timed steps; the rate is that of all of them together."""
    return {
        "batch_size": _BATCH_SIZE.value,
        "steps": len(seconds),
        "images_per_second": round(len(seconds) * _BATCH_SIZE.value / sum(seconds), 2),
        "median_step_ms": round(1000 * statistics.median(seconds), 2),
    }


def _seconds(arguments: Sequence[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(
            f"{' '.join(arguments)} ended with {done.returncode}: "
            f"{done.stderr[-500:]}; run this benchmark from the root of the repository"
        )
    return round(time.perf_counter() - start, 2)


if __name__ == "__main__":
    command.use_huge_pages()
    command.run(main, __doc__, FLAGS)

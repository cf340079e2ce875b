# SPDX-License-Identifier: Apache-2.0
r"""Measures speed on this machine; one JSON line a result.

  python -m vit_jax.benchmark step --model=ViT-S/16 --batch_size=16
  python -m vit_jax.benchmark input --dataset=bundled:mnist --batch_size=128
  python -m vit_jax.benchmark input --dataset=zip:FILE --upscale=500x375 --rivals
  python -m vit_jax.benchmark checkpoint --model=ViT-B/16 --folder=gs://BUCKET/DIR
  python -m vit_jax.benchmark startup
  python -m vit_jax.benchmark compiled --model=ViT-B/16 --images_per_core=32 \
      --topology=v3:4x4
  python -m vit_jax.benchmark all --output=benchmarks/latest.json

step: training steps (forward, backward, AdamW) on a batch that lies on the device.
input: batches of the training pipeline, nothing else; with --rivals, in turns with
plain tf.data over the same JPEG files in memory (see vit_jax/data/speed.py), one line a
pipeline, and with --ops_ms what each op of --ops costs. checkpoint: how long saving a
training state keeps the training waiting, how long it takes until it is on disk, and
how long restoring takes. startup: how long --help takes, and the smoke run of the
quickstart from the command to its end, with an empty and with a filled compilation
cache. compiled: the reference step compiled for TPUs, on a machine without any. all:
a line of each, as `make bench` writes them.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError, unknown

FLAGS = flags.FlagValues()
_MODEL = flags.DEFINE_string(
    "model",
    "ViT-S/16",
    "step, checkpoint, compiled: name of the model.",
    flag_values=FLAGS,
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
    "step, checkpoint, compiled, input --rivals: side of the images in pixels.",
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
_FOLDER = flags.DEFINE_string(
    "folder",
    None,
    "checkpoint: where to write, a folder that is not there yet or a URL; by default "
    "among the temporary files.",
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
    "set",
    [],
    "step, compiled: FIELD=VALUE of the model, such as attention=fused; repeatable.",
    flag_values=FLAGS,
)
_PROGRAM = flags.DEFINE_string(
    "program", None, "compiled: file for the program's text.", flag_values=FLAGS
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "all: a JSON file for all results.", flag_values=FLAGS
)

Results = dict[str, Any] | list[dict[str, Any]]


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark that is named on the command line."""
    if len(argv) != 1:
        raise UserError(f"name one benchmark of {', '.join(BENCHMARKS)}")
    if argv[0] not in BENCHMARKS:
        raise unknown("benchmark", argv[0], BENCHMARKS)
    results = BENCHMARKS[argv[0]]()
    for result in results if isinstance(results, list) else [results]:
        print(json.dumps({"benchmark": argv[0], **result}), flush=True)


def _step() -> Results:
    command.start_jax()
    from vit_jax.benchmark import fields, step

    return step.measure(
        _MODEL.value,
        batch_size=_BATCH_SIZE.value,
        resolution=_RESOLUTION.value,
        dtype=_DTYPE.value,
        steps=_STEPS.value,
        overrides=fields.parse_fields(_OVERRIDES.value),
    )


def _input() -> Results:
    from vit_jax.benchmark import inputs

    turns = {
        "batch_size": _BATCH_SIZE.value,
        "batches": _STEPS.value,
        "rounds": _ROUNDS.value,
    }
    with inputs.opened(
        _DATASET.value, _SPLIT.value, _BATCH_SIZE.value, _UPSCALE.value
    ) as source:
        if _OPS_MS.value:
            return inputs.ops_ms(source, _OPS.value, turns)
        if _RIVALS.value:
            return inputs.compare(source, _RESOLUTION.value, turns)
        told = {"dataset": _DATASET.value, "split": _SPLIT.value, "ops": _OPS.value}
        return told | inputs.measure(
            source,
            batch_size=_BATCH_SIZE.value,
            ops=_OPS.value,
            steps=_STEPS.value,
        )


def _checkpoint() -> Results:
    command.start_jax()
    from vit_jax.benchmark import checkpoint

    return checkpoint.measure(_MODEL.value, _RESOLUTION.value, _FOLDER.value)


def _startup() -> Results:
    from vit_jax.benchmark import startup

    return startup.measure()


def _compiled() -> Results:
    from vit_jax.tpu import compiler

    compiler.set_up()  # Before anything imports JAX.
    from vit_jax.benchmark import compiled, fields

    return compiled.measure(
        _MODEL.value,
        images_per_core=_IMAGES_PER_CORE.value,
        resolution=_RESOLUTION.value,
        topology=_TOPOLOGY.value,
        shard_update=_SHARD_UPDATE.value,
        overrides=fields.parse_fields(_OVERRIDES.value),
        program=_PROGRAM.value,
    )


def _all() -> Results:
    from vit_jax.benchmark import suite

    if _OUTPUT.value is None:
        raise UserError("all needs --output=FILE, such as benchmarks/latest.json")
    return suite.run_all(_OUTPUT.value)


BENCHMARKS: dict[str, Callable[[], Results]] = {
    "step": _step,
    "input": _input,
    "checkpoint": _checkpoint,
    "startup": _startup,
    "compiled": _compiled,
    "all": _all,
}


if __name__ == "__main__":
    command.use_huge_pages()
    command.run(main, __doc__, FLAGS)

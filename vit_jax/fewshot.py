# SPDX-License-Identifier: Apache-2.0
r"""Evaluates the features of a checkpoint on few examples a class.

  python -m vit_jax.fewshot --checkpoint=runs/quickstart --dataset=bundled:mnist \
    --shots=1,5,10,25 --output=fewshot.json

--method=ridge is the paper's regularised least squares in closed form, to targets of -1
and 1; --method=knn votes of the nearest neighbours by cosine, as for DINO;
--method=probe logistic regression. The last two use all of --train_split unless --shots
says otherwise. Accuracies are of --test_split, mean and half of the 95 % interval over
the seeds. Several --l2 are all reported; the one marked with * was chosen by examples
that were left out of the support sets, never by the test split.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "Workdir of a run (DIR, DIR@STEP, with :ema or :raw), a .npz or .safetensors file, "
    "or a directory of Hugging Face.",
    required=True,
    flag_values=FLAGS,
)
_PRESET = flags.DEFINE_string(
    "preset",
    None,
    "Numerics and preprocessing of a checkpoint that does not tell them, such as "
    "google-vit or dinov2.",
    flag_values=FLAGS,
)
_DATASET = flags.DEFINE_string(
    "dataset", None, "A DATASET.", required=True, flag_values=FLAGS
)
_TRAIN_SPLIT = flags.DEFINE_string(
    "train_split", "train", "Where support sets are taken from.", flag_values=FLAGS
)
_TEST_SPLIT = flags.DEFINE_string(
    "test_split",
    None,
    "What is tested on. Default: test, or where there is none, validation.",
    flag_values=FLAGS,
)
_METHOD = flags.DEFINE_enum(
    "method", "ridge", ["ridge", "knn", "probe"], "The classifier.", flag_values=FLAGS
)
_SHOTS = flags.DEFINE_list(
    "shots",
    None,
    "Numbers of examples a class; 'all' is one of them. Default: 1,5,10,25 for ridge, "
    "else all. A class that has fewer gives all.",
    flag_values=FLAGS,
)
_SEEDS = flags.DEFINE_integer(
    "seeds",
    None,
    "Number of support sets, drawn with seeds 0, 1, ... Default: the convention's.",
    flag_values=FLAGS,
)
_L2 = flags.DEFINE_list(
    "l2",
    None,
    "ridge, probe: regularisers. Default: the convention's for ridge, 1 for probe.",
    flag_values=FLAGS,
)
_K = flags.DEFINE_list(
    "k", None, "knn: numbers of neighbours. Default: 20.", flag_values=FLAGS
)
_FEATURE = flags.DEFINE_string(
    "feature",
    "pre_logits",
    "A named output of the model, such as block11/output; tokens with :cls for the "
    "class token (the default where there is one) or :mean over the patches.",
    flag_values=FLAGS,
)
_CONVENTION = flags.DEFINE_enum(
    "convention",
    "big_vision",
    ["big_vision", "scenic"],
    "big_vision: seeds 0, 1, 2 and l2 of 2^10. scenic: the first examples of each "
    "class, and l2 of 2^-10 ... 2^20.",
    flag_values=FLAGS,
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "JSON file for the results.", flag_values=FLAGS
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size",
    64,
    "Images at a time over all devices; has no influence on the result.",
    lower_bound=1,
    flag_values=FLAGS,
)
_RESOLUTION = flags.DEFINE_integer(
    "resolution",
    None,
    "Side of the images, if not the checkpoint's own.",
    lower_bound=1,
    flag_values=FLAGS,
)
_OPS = flags.DEFINE_string(
    "ops", None, "Preprocessing, if not the checkpoint's own.", flag_values=FLAGS
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "Where prepared TensorFlow Datasets lie.", flag_values=FLAGS
)


def main(argv: Sequence[str]) -> None:
    """Evaluates as the flags say."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; fewshot takes flags only")
    command.start_jax()
    from vit_jax import sharding
    from vit_jax.convert import load_checkpoint
    from vit_jax.data import hide_accelerators
    from vit_jax.evaluators.frozen import freeze
    from vit_jax.evaluators.protocol import make_protocol

    values = _K.value if _METHOD.value == "knn" else _L2.value
    protocol = make_protocol(
        _METHOD.value,
        convention=_CONVENTION.value,
        shots=None if _SHOTS.value is None else [_number(s) for s in _SHOTS.value],
        seeds=_SEEDS.value,
        values=None if values is None else [_number(value) for value in values],
    )
    checkpoint = load_checkpoint(_CHECKPOINT.value, _PRESET.value)
    mesh = sharding.make_mesh()
    frozen = freeze(checkpoint, mesh, resolution=_RESOLUTION.value, ops=_OPS.value)
    hide_accelerators()
    opened = _open(frozen.ops, mesh, protocol)
    report = opened.bind(frozen.subject, None).evaluate(frozen.params)
    _print(report)
    if _OUTPUT.value and _is_first():
        content = {
            "dataset": _DATASET.value,
            "train_split": _TRAIN_SPLIT.value,
            "test_split": opened.feed.source.description.rsplit(" ", 1)[-1],
            "checkpoint": _CHECKPOINT.value,
            "method": protocol.name,
            "convention": _CONVENTION.value,
            "feature": _FEATURE.value,
            "preprocessing": frozen.ops,
            "results": report.results(),
            "summary": report.summary(),
            **report.shortage,
        }
        path = pathlib.Path(_OUTPUT.value)
        path.write_text(json.dumps(content, indent=2) + "\n")


def _open(ops: str, mesh: Any, protocol: Any) -> Any:
    from vit_jax.evaluators.feature_sections import Splits, open_features

    first: UserError | None = None
    for split in [_TEST_SPLIT.value] if _TEST_SPLIT.value else ["test", "validation"]:
        splits = Splits(
            _DATASET.value,
            _TRAIN_SPLIT.value,
            split,
            ops,
            mesh,
            _BATCH_SIZE.value,
            _DATA_DIR.value,
        )
        try:
            return open_features(splits, _FEATURE.value, protocol)
        except UserError as err:
            first = first or err
    raise first or UserError("no test split")


def _number(text: str) -> Any:
    if text == "all":
        return text
    try:
        return int(text) if text.strip().isdecimal() else float(text)
    except ValueError as err:
        raise UserError(f"{text!r} is no number; write such as --shots=1,5,10") from err


def _is_first() -> bool:
    import jax

    return jax.process_index() == 0


def _print(report: Any) -> None:
    parameter = report.protocol.method.parameter
    print(f"{report.examples:,} test examples, {report.protocol.seeds} support set(s)")
    print(f"{'shots':>6}  {parameter:>12}  {'top1 %':>7}")
    for row in report.summary():
        interval = row["top1_ci95"]
        spread = "" if interval is None else f" +- {100 * interval:.2f}"
        chosen = " *" if row["chosen"] and len(report.protocol.values) > 1 else ""
        print(
            f"{row['shots']:>6}  {row[parameter]:>12g}  "
            f"{100 * row['top1_mean']:>7.2f}{spread}{chosen}"
        )
    for name in report.shortage["absent_classes"]:
        print(f"no example of {name} to learn from: its test examples count as wrong")


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

# SPDX-License-Identifier: Apache-2.0
r"""Evaluates a checkpoint exactly on a whole split.

  python -m vit_jax.evaluate --checkpoint=runs/quickstart --dataset=bundled:mnist \
    --split=test --output=metrics.json

Prints a JSON line with accuracy, loss and number of examples (for a regression, the
errors); of a run that kept averaged weights it evaluates both sets of weights and gives
the metrics of the averaged ones an `_ema`, unless the checkpoint says :ema or :raw.
--output adds accuracy by class, confusion matrix and calibration error; for a data set
with several labels an example, mean average precision and F1. Images get the
checkpoint's own preprocessing, and classes are matched by name where it has names.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

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
    "google-vit.",
    flag_values=FLAGS,
)
_DATASET = flags.DEFINE_string(
    "dataset", None, "A DATASET.", required=True, flag_values=FLAGS
)
_SPLIT = flags.DEFINE_string(
    "split", None, "Such as test or validation.", required=True, flag_values=FLAGS
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "JSON file for all metrics.", flag_values=FLAGS
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size",
    64,
    "Images at a time over all devices; has no influence on the result.",
    lower_bound=1,
    flag_values=FLAGS,
)
_FLIP = flags.DEFINE_boolean(
    "flip",
    False,
    "Average the logits of each image and its mirror image.",
    flag_values=FLAGS,
)
_RESTRICT = flags.DEFINE_boolean(
    "restrict_classes",
    False,
    "Let the model choose among the classes that occur in the split only, as "
    "ImageNet-A and -R ask for.",
    flag_values=FLAGS,
)
_SAVE_PREDICTIONS = flags.DEFINE_string(
    "save_predictions",
    None,
    "NPZ file for what the model says of each example: names, labels, logits.",
    flag_values=FLAGS,
)
_SAVE_FEATURES = flags.DEFINE_boolean(
    "save_features",
    False,
    "Add pre_logits to the file of --save_predictions.",
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
_SHOWN = (
    "dataset",
    "split",
    "examples",
    "top1",
    "top5",
    "loss",
    "ece",
    "map",
    "rmse",
    "mae",
    "r2",
)


def main(argv: Sequence[str]) -> None:
    """Evaluates as the flags say."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; evaluate takes flags only")
    if _SAVE_FEATURES.value and not _SAVE_PREDICTIONS.value:
        raise UserError(
            "--save_features adds to the file of --save_predictions; name that as well"
        )
    command.start_jax()
    import jax

    from vit_jax import sharding
    from vit_jax.convert import load_checkpoint
    from vit_jax.data import hide_accelerators
    from vit_jax.evaluators.frozen import freeze

    spec = _CHECKPOINT.value
    checkpoint = load_checkpoint(spec, _PRESET.value)
    sets = {"": checkpoint}
    if checkpoint.averaged and not spec.endswith((":ema", ":raw")):
        raw = load_checkpoint(f"{spec}:raw", _PRESET.value)
        sets = {"": raw, "_ema": checkpoint}
    mesh = sharding.make_mesh()
    frozen = {
        suffix: freeze(each, mesh, resolution=_RESOLUTION.value, ops=_OPS.value)
        for suffix, each in sets.items()
    }
    hide_accelerators()
    feed = _open(checkpoint, frozen[""].ops, mesh)
    result: dict[str, Any] = {
        "dataset": _DATASET.value,
        "split": _SPLIT.value,
        "checkpoint": spec,
        "preprocessing": feed.ops,
        "flip": _FLIP.value,
    }
    arrays: dict[str, Any] = {}
    for suffix, each in frozen.items():
        metrics, found = _evaluate(checkpoint.loss, each, feed)
        arrays |= {f"{name}{suffix}": array for name, array in found.items()}
        result |= {
            name if name == "examples" else f"{name}{suffix}": value
            for name, value in metrics.items()
        }
    if jax.process_index() == 0:
        _write(result, arrays, feed.source)


def _open(checkpoint: Any, ops: str, mesh: Any) -> Any:
    """Opens the split with the classes of the checkpoint."""
    import dataclasses

    from vit_jax.data.feed import eval_feed
    from vit_jax.data.sources import check_source, open_source, present_classes

    num_classes = checkpoint.model["num_classes"]
    if not num_classes:
        raise UserError(
            f"{_CHECKPOINT.value} has no head, so it cannot be evaluated on classes; "
            "evaluate its features with python -m vit_jax.fewshot"
        )
    names = None if checkpoint.loss == "mse" else checkpoint.class_names
    try:
        source = open_source(
            _DATASET.value, _SPLIT.value, class_names=names, data_dir=_DATA_DIR.value
        )
    except UserError as err:
        if names is None or "class" not in str(err):
            raise
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise UserError(
            f"{err}. The training split is that of the checkpoint here, whose "
            f"{len(names)} classes are {shown}"
        ) from err
    if checkpoint.loss == "mse":
        check_source(source)
    else:
        if names is None:
            _check_count(source, num_classes)
        check_source(source, num_classes=num_classes)
    feed = eval_feed(source, ops, mesh, _BATCH_SIZE.value)
    if _RESTRICT.value:
        feed = dataclasses.replace(feed, classes=present_classes(source))
    return feed


def _check_count(source: Any, num_classes: int) -> None:
    """Refuses classes that the outputs of the model can hardly stand for."""
    own = source.num_classes
    if own is not None and own != num_classes:
        raise UserError(
            f"{_CHECKPOINT.value} has {num_classes} outputs without names and "
            f"{source.description} has {own} classes; say which output is which class "
            "with a file of names, a line an output: --dataset=...@names=FILE"
        )
    logging.warning(
        "%s names no classes: its outputs are taken in the order of the data set's",
        _CHECKPOINT.value,
    )


def _evaluate(
    loss_name: str, frozen: Any, feed: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns metrics, and arrays for each example."""
    from vit_jax import losses
    from vit_jax.evaluators import regression
    from vit_jax.evaluators.report import Reporter

    loss = losses.build_loss(loss_name)
    if loss_name == "mse":
        evaluator = regression.Evaluator(
            frozen.subject.predict, loss, feed, _FLIP.value
        )
        found = evaluator.gather(frozen.params)
        return evaluator.summarise(found), found
    keep = ["logits"] if _SAVE_PREDICTIONS.value else []
    if _SAVE_FEATURES.value:
        keep.append("features")
    reporter = Reporter(frozen.subject, loss, loss_name, feed, _FLIP.value, keep)
    found = reporter.gather(frozen.params)
    return reporter.summarise(found), found


def _write(result: dict[str, Any], arrays: dict[str, Any], source: Any) -> None:
    import numpy as np

    shown = {k: v for k, v in result.items() if k.removesuffix("_ema") in _SHOWN}
    print(json.dumps(shown))
    if _OUTPUT.value:
        path = pathlib.Path(_OUTPUT.value)
        path.write_text(json.dumps(result, indent=2) + "\n")
    if _SAVE_PREDICTIONS.value:
        rows = np.arange(len(source))
        # Opened here: savez would add .npz to another name.
        with pathlib.Path(_SAVE_PREDICTIONS.value).open("wb") as file:
            np.savez(
                file,
                name=np.array(source.names(rows)),
                label=source.labels[rows],
                class_names=np.array(source.class_names or ()),
                **arrays,
            )


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

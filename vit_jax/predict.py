# SPDX-License-Identifier: Apache-2.0
"""Names what is in pictures.

  python -m vit_jax.predict --checkpoint=runs/quickstart digit.png [MORE ...]

The checkpoint brings its own preprocessing and class names. JPEG, PNG, GIF, BMP and
WebP are read by their content, turned upright by their EXIF orientation.
"""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import flags

from vit_jax import command
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "DIR, DIR@STEP, DIR:ema or DIR:raw of a run.",
    required=True,
    flag_values=FLAGS,
)
_TOP = flags.DEFINE_integer(
    "top", 5, "How many classes to show.", lower_bound=1, flag_values=FLAGS
)
_JSON = flags.DEFINE_boolean(
    "json", False, "One JSON line a picture instead.", flag_values=FLAGS
)
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size",
    32,
    "Pictures that go through the model together.",
    lower_bound=1,
    flag_values=FLAGS,
)


def main(images: Sequence[str]) -> None:
    """Predicts the classes of every picture named on the command line."""
    if not images:
        raise UserError("no picture given; name one or more image files")
    for image in images:
        if not pathlib.Path(image).is_file():
            raise UserError(f"no picture {image!r}; name an existing file")
    command.start_jax()
    import numpy as np

    from vit_jax.checkpoints import workdir
    from vit_jax.data import pixels

    checkpoint = workdir.load(_CHECKPOINT.value)
    ops = checkpoint.preprocessing
    if ops is None:
        raise UserError(
            f"{_CHECKPOINT.value} does not tell how pictures are prepared, because its "
            "run had no evaluator; train with one"
        )
    inputs = np.stack([_read(image, ops, pixels.preprocess) for image in images])
    probabilities = _probabilities(checkpoint, inputs)
    names = checkpoint.class_names
    for image, row in zip(images, probabilities, strict=True):
        best = np.argsort(-row, kind="stable")[: _TOP.value]
        classes = [(names[k] if names else str(k), float(row[k])) for k in best]
        _show(image, classes)


def _read(image: str, ops: str, preprocess: Any) -> Any:
    try:
        return preprocess(pathlib.Path(image).read_bytes(), ops)
    except UserError as err:
        raise UserError(f"{image}: {err}") from err


def _probabilities(checkpoint: Checkpoint, inputs: Any) -> Any:
    """Returns the probability of each class `(pictures, k)`, computed in batches."""
    import jax
    import numpy as np

    from vit_jax.models import build_model

    model = build_model(**checkpoint.model)
    activation = jax.nn.sigmoid if checkpoint.loss == "sigmoid" else jax.nn.softmax

    @jax.jit
    def predict(params: Any, image: Any) -> Any:
        logits, _ = model.apply({"params": params}, image, train=False)
        return activation(logits.astype("float32"))

    # Batches of one size, so that the model compiles once.
    size = min(_BATCH_SIZE.value, len(inputs))
    padded = math.ceil(len(inputs) / size) * size
    inputs = np.pad(inputs, [(0, padded - len(inputs)), (0, 0), (0, 0), (0, 0)])
    batches = np.split(inputs, padded // size)
    return np.concatenate([predict(checkpoint.params, batch) for batch in batches])


def _show(image: str, classes: Sequence[tuple[str, float]]) -> None:
    if _JSON.value:
        best = [{"class": name, "probability": round(p, 6)} for name, p in classes]
        print(json.dumps({"image": image, "predictions": best}))
        return
    print(image)
    width = max(len(name) for name, _ in classes)
    for name, probability in classes:
        print(f"  {name:<{width}}  {100 * probability:6.2f} %")


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

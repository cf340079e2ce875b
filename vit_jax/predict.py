# SPDX-License-Identifier: Apache-2.0
"""Names what is in pictures.

  python -m vit_jax.predict --checkpoint=runs/quickstart digit.png [MORE ...]
  python -m vit_jax.predict --checkpoint=pets_hf "photos/*.jpg" --top=3 --json

The checkpoint, a run of ours or a file of Google, timm or Hugging Face, brings its own
preprocessing and class names. JPEG, PNG, GIF, BMP and WebP are read by their content,
turned upright by their EXIF orientation. A picture that cannot be read is told of when
all others are done.
"""

import glob
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import flags

from vit_jax import command
from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "CHECKPOINT: a run's workdir, .npz, .safetensors, or a directory.",
    required=True,
    flag_values=FLAGS,
)
_PRESET = flags.DEFINE_string(
    "preset",
    None,
    "Numerics of a file that does not tell its own, such as dinov2.",
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

Broken = list[tuple[str, UserError]]


def main(arguments: Sequence[str]) -> None:
    """Predicts the classes of every picture named on the command line."""
    images = _find(arguments)
    command.start_jax()
    from vit_jax.convert import load_checkpoint

    checkpoint = load_checkpoint(_CHECKPOINT.value, _PRESET.value)
    if checkpoint.preprocessing is None:
        raise UserError(
            f"{_CHECKPOINT.value} does not tell how pictures are prepared; name its "
            "numerics with --preset, or train with an evaluator"
        )
    if not checkpoint.model["num_classes"]:
        raise UserError(
            f"{_CHECKPOINT.value} has no head, so it names no classes; fine-tune it "
            "with vit_jax.finetune, or use vit_jax.fewshot"
        )
    broken: Broken = []
    predict = _predictor(checkpoint)
    size = min(_BATCH_SIZE.value, len(images))
    inputs = _read(images, checkpoint.preprocessing, broken)
    while batch := list(itertools.islice(inputs, size)):
        outputs = predict([pixels for _, pixels in batch], size)
        for (image, _), row in zip(batch, outputs, strict=True):
            _show(image, row, checkpoint)
    if broken:
        first, error = broken[0]
        raise UserError(
            f"{len(broken)} of {len(images)} pictures could not be read: "
            f"{', '.join(image for image, _ in broken)}; {first}: {error}"
        )


def _find(arguments: Sequence[str]) -> list[str]:
    """Returns the files that are named, also by patterns that no shell expanded."""
    images: list[str] = []
    for argument in arguments:
        found = [argument]
        if glob.has_magic(argument) and not pathlib.Path(argument).exists():
            found = sorted(glob.glob(argument, recursive=True))
        if not found or not all(pathlib.Path(image).is_file() for image in found):
            raise UserError(f"no picture {argument!r}; name an existing file")
        images += found
    if not images:
        raise UserError("no picture given; name one or more image files")
    return images


def _read(images: Sequence[str], ops: str, broken: Broken) -> Iterator[tuple[str, Any]]:
    """Yields what the model sees of each picture that can be read."""
    from vit_jax.data import pixels

    for image in images:
        try:
            yield image, pixels.preprocess(pathlib.Path(image).read_bytes(), ops)
        except UserError as err:
            broken.append((image, err))


def _predictor(checkpoint: Checkpoint) -> Callable[[list[Any], int], Any]:
    """Makes the function from inputs to what each output stands for."""
    import jax
    import numpy as np

    from vit_jax.models import build_model

    model = build_model(**checkpoint.model)
    activations = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid}
    activation = activations.get(checkpoint.loss, lambda outputs: outputs)

    @jax.jit
    def predict(params: Any, image: Any) -> Any:
        logits, _ = model.apply({"params": params}, image, train=False)
        return activation(logits.astype("float32"))

    def run(inputs: list[Any], size: int) -> Any:
        # Batches of one size, so that the model compiles once.
        filling = [np.zeros_like(inputs[0])] * (size - len(inputs))
        outputs = predict(checkpoint.params, np.stack(inputs + filling))
        return np.asarray(outputs)[: len(inputs)]

    return run


def _show(image: str, row: Any, checkpoint: Checkpoint) -> None:
    names = checkpoint.class_names
    if checkpoint.loss == "mse":
        values = [round(float(value), 6) for value in row]
        if _JSON.value:
            print(json.dumps({"image": image, "values": values}))
        else:
            print(f"{image}\n  {'  '.join(f'{value:g}' for value in values)}")
        return
    best = (-row).argsort(kind="stable")[: _TOP.value]
    classes = [(names[k] if names else str(k), float(row[k])) for k in best]
    if _JSON.value:
        found = [{"class": name, "probability": round(p, 6)} for name, p in classes]
        print(json.dumps({"image": image, "predictions": found}))
        return
    print(image)
    width = max(len(name) for name, _ in classes)
    for name, probability in classes:
        print(f"  {name:<{width}}  {100 * probability:6.2f} %")


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

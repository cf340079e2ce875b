# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint in another framework's form.

  python -m vit_jax.convert --input=ViT-B_16.npz --output=vit_b16.safetensors --to=timm
  python -m vit_jax.convert --input=runs/pets --output=pets_hf --to=huggingface --verify
  python -m vit_jax.convert --input=runs/a,runs/b --output=soup.safetensors --to=native

Forms: google (.npz), timm and swin (.safetensors), huggingface (a directory), native
(.safetensors with all that is needed to use it), stablehlo, onnx. Several inputs,
separated by commas, are averaged. With --verify both sides are run on three images and
compared layer by layer; the exit status is 1 if they differ.
"""

import pathlib
from collections.abc import Sequence

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
_INPUT = flags.DEFINE_list(
    "input",
    None,
    "CHECKPOINT to read; several are averaged.",
    required=True,
    flag_values=FLAGS,
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "File or directory to write.", required=True, flag_values=FLAGS
)
_TO = flags.DEFINE_string(
    "to",
    None,
    "google, timm, swin, huggingface, native, stablehlo or onnx.",
    required=True,
    flag_values=FLAGS,
)
_PRESET = flags.DEFINE_string(
    "preset",
    None,
    "Numerics of a file that does not tell its own, such as dinov2.",
    flag_values=FLAGS,
)
_VERIFY = flags.DEFINE_boolean(
    "verify", False, "Compare what was written with what was read.", flag_values=FLAGS
)
_IMAGE = flags.DEFINE_string(
    "image", None, "verify: a picture to compare on.", flag_values=FLAGS
)
_TOLERANCE = flags.DEFINE_float(
    "tolerance",
    1e-4,
    "verify: largest difference, relative to the largest value of a layer.",
    lower_bound=0.0,
    flag_values=FLAGS,
)


def main(argv: Sequence[str]) -> int:
    """Reads, writes, and if asked compares."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; all settings are flags")
    picture = None
    if _IMAGE.value is not None:
        if not pathlib.Path(_IMAGE.value).is_file():
            raise UserError(f"no picture {_IMAGE.value!r}; name an existing file")
        picture = pathlib.Path(_IMAGE.value).read_bytes()
    command.start_jax()
    from vit_jax.convert import load_checkpoint, writing

    checkpoints = [load_checkpoint(spec, _PRESET.value) for spec in _INPUT.value]
    checkpoint = checkpoints[0]
    if len(checkpoints) > 1:
        checkpoint = writing.average(checkpoints)
    del checkpoints
    for line in writing.write_checkpoint(checkpoint, _OUTPUT.value, _TO.value):
        print(line)
    print(f"wrote {_OUTPUT.value}")
    if not _VERIFY.value:
        return command.DONE
    from vit_jax.convert import verify

    verdict = verify.verify(
        checkpoint,
        _OUTPUT.value,
        _TO.value,
        picture=picture,
        tolerance=_TOLERANCE.value,
    )
    print(verdict.table())
    return command.DONE if verdict.equal else command.MENDABLE


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

# SPDX-License-Identifier: Apache-2.0
r"""Finds training images that near-duplicate test images, to be left out of training.

  python -m vit_jax.data.prepare.duplicates --split=train \
      --dataset=tar:/data/web/train-*.tar --output=/data/duplicates \
      --against="folder:/data/pets test" --against="tfds:cifar10 test"

The ViT paper removes from its pre-training sets what the test sets of the downstream
tasks hold, after BiT (arXiv:1912.11370), and does not say how it was found. Here two
pictures are near-duplicates when

- their perceptual hashes (pHash, 64 bits) differ in at most --radius=8 bits, and
- their 16 x 16 grey thumbnails, scaled to mean 0 and variance 1, differ by a root mean
  square of at most --threshold=0.4 (unrelated pictures: 1.4).

Measured on 300 ImageNet pictures of 224 pixels, this finds all copies that were shrunk
to a half or a third, packed at JPEG quality 50 or made grey, 97 % of those that lost
2 % at each edge, 15 % of those that lost 5 %, and no mirrored ones; of 1.1 million
pairs of different pictures it takes none.

The output is removed_ids.txt, for --removed of vit_jax.data.prepare on the same data
set and split, and duplicates.json, which says of each what it was matched with. The
hashes stay in the folder, so that another test set costs only its own.
"""

import shlex
from collections.abc import Sequence

from absl import flags

from vit_jax import command
from vit_jax.data.prepare import duplicate_search, jobs as prepare_jobs
from vit_jax.data.sources import open_source
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
flags.DEFINE_string(
    "dataset", None, "The training DATASET.", required=True, flag_values=FLAGS
)
flags.DEFINE_string("split", "train", "Its split.", flag_values=FLAGS)
flags.DEFINE_multi_string(
    "against",
    None,
    "'DATASET SPLIT' of test images; repeatable.",
    required=True,
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "output", None, "Folder of the results.", required=True, flag_values=FLAGS
)
flags.DEFINE_integer(
    "radius",
    duplicate_search.RADIUS,
    "Bits that hashes may differ in.",
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "threshold",
    duplicate_search.THRESHOLD,
    "Largest pixel distance.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "data_dir", None, "Where TensorFlow Datasets lie.", flag_values=FLAGS
)
flags.DEFINE_string(
    "beam", "", "Beam's own flags; by default all cores here.", flag_values=FLAGS
)


def main(argv: Sequence[str]) -> None:
    """Searches as the flags say."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; all settings are flags")

    tests = [split_against(text) for text in FLAGS.against]
    sources = [
        open_source(dataset, split, data_dir=FLAGS.data_dir)
        for dataset, split in [(FLAGS.dataset, FLAGS.split), *tests]
    ]
    output = command.absolute_workdir(FLAGS.output)
    report = duplicate_search.search(
        sources[0],
        sources[1:],
        output=output,
        run_jobs=prepare_jobs.beam_runner(shlex.split(FLAGS.beam)),
        radius=FLAGS.radius,
        threshold=FLAGS.threshold,
    )
    found, examples = len(report["removed"]), report["examples"]
    print(f"{found} of {examples} examples are near-duplicates; see {output}")


def split_against(text: str) -> tuple[str, str]:
    """Takes DATASET and split of a test set apart.

    Raises:
      UserError: There is no split.

    Example:
      >>> split_against("folder:/data/my pets test")
      ('folder:/data/my pets', 'test')
    """
    dataset, _, split = text.rpartition(" ")
    if not dataset or ":" not in dataset:
        raise UserError(f"--against={text!r} names no split; write 'DATASET SPLIT'")
    return dataset, split


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

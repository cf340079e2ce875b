# SPDX-License-Identifier: Apache-2.0
r"""Turns raw archives, folders or lists into shards that training reads.

  python -m vit_jax.data.prepare --input=ilsvrc2012:/raw --split=train \
      --output=/data/imagenet
  python -m vit_jax.data.prepare --input=folder:/data/pets --output=/data/pets_shards \
      --format=tfrecord --removed=/data/duplicates/removed_ids.txt

--input is ilsvrc2012:DIR or imagenet21k:DIR, the archives as ImageNet hands them out,
or any DATASET that lies in files. The output is SPLIT-00000-of-00129.tar and so on,
classes.txt (a class name a line) and SPLIT.json (what was counted). Read it with

  tar:/data/imagenet/train-*.tar@names=classes.txt

Examples lie in the order of a seeded hash, whatever did the work. So the first N of
them are a random subset, and a smaller one is part of a larger: for the 9, 30 and 90
million of the ViT paper write the split train[:9000000] at training, or --take here.

The work is done by Apache Beam, on this machine, or with --beam on a cluster:
--beam="--runner=DataflowRunner --project=... --temp_location=gs://..." and gs:// paths;
there the workers need this package, see Beam's --setup_file. A run that was stopped
goes on where it was.
"""

import shlex
from collections.abc import Sequence

from absl import flags

from vit_jax import command
from vit_jax.data.prepare import (
    jobs as prepare_jobs,
    shards as prepare_shards,
    task as prepare_task,
)
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
flags.DEFINE_string(
    "input", None, "Archives or a DATASET.", required=True, flag_values=FLAGS
)
flags.DEFINE_string("split", "train", "A split of it.", flag_values=FLAGS)
flags.DEFINE_string(
    "output",
    None,
    "Folder of the shards: local or gs://.",
    required=True,
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "format", "tar", prepare_shards.FORMATS, "Form of the shards.", flag_values=FLAGS
)
flags.DEFINE_integer(
    "shards",
    None,
    "Their number; by default 10,000 examples each.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_integer("seed", 0, "Fixes the order.", lower_bound=0, flag_values=FLAGS)
flags.DEFINE_multi_string(
    "removed",
    [],
    "File of ids to leave out (of vit_jax.data.prepare.duplicates).",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "take", None, "Write a random subset of this size.", flag_values=FLAGS
)
flags.DEFINE_boolean(
    "allow_incomplete", False, "Accept less than all of ImageNet.", flag_values=FLAGS
)
flags.DEFINE_string(
    "data_dir", None, "Where TensorFlow Datasets lie.", flag_values=FLAGS
)
flags.DEFINE_string(
    "beam", "", "Beam's own flags; by default all cores here.", flag_values=FLAGS
)


def main(argv: Sequence[str]) -> None:
    """Writes the shards that the flags describe."""
    if argv:
        raise UserError(f"unexpected argument {argv[0]!r}; all settings are flags")

    task = prepare_task.Task(
        data=FLAGS.input,
        split=FLAGS.split,
        output=command.absolute_workdir(FLAGS.output),
        file_format=FLAGS.format,
        num_shards=FLAGS.shards,
        seed=FLAGS.seed,
        removed=tuple(FLAGS.removed),
        take=FLAGS.take,
        allow_incomplete=FLAGS.allow_incomplete,
        data_dir=FLAGS.data_dir,
    )
    run_jobs = prepare_jobs.beam_runner(shlex.split(FLAGS.beam))
    report = prepare_task.prepare(task, run_jobs)
    examples, shards = report["examples"], len(report["shards"])
    print(f"{examples} examples in {shards} shards of {task.output}")


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

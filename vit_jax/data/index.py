# SPDX-License-Identifier: Apache-2.0
"""Goes through the shards of a data set and keeps an index of them.

  python -m vit_jax.data.index "tar:/data/imagenet/{train,val}-*.tar" --workers=16
  python -m vit_jax.data.index tfds:imagenet2012 --data_dir=/data/tfds

Training does so itself where an index is missing, but with one core, on every host, and
while accelerators wait. DATASET is a tar:, tfrecord: or tfds: one. Checksums are
verified. The index lies beside the shards in .vit_jax_index/, or in the user's cache
folder where that cannot be written; what was indexed before and has not changed since
is not gone through again, also if this command was stopped.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence

from absl import flags, logging

from vit_jax import command
from vit_jax.data.buckets import exists
from vit_jax.data.examples import ALL, Request
from vit_jax.data.forms.tar_tfrecord import tfrecord_reader
from vit_jax.data.forms.tfds import find_shards
from vit_jax.data.shards.files import find_files
from vit_jax.data.shards.store import VARIABLE, Reader, Store, index_shards
from vit_jax.data.shards.tars import TarReader
from vit_jax.data.sources import parse_dataset
from vit_jax.errors import UserError

BAR_WIDTH = 30


FLAGS = flags.FlagValues()
flags.DEFINE_integer(
    "workers",
    os.cpu_count(),
    "Processes that go through shards.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "index_dir",
    None,
    f"Folder of the indexes; as the variable {VARIABLE}.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "data_dir", None, "Where TensorFlow Datasets lie.", flag_values=FLAGS
)


def main(argv: Sequence[str]) -> None:
    """Indexes the data set that the command line names."""
    if len(argv) != 1:
        raise UserError(
            "name one data set, in quotes, such as 'tar:/data/imagenet/train-*.tar'"
        )

    if FLAGS.index_dir is not None:
        os.environ[VARIABLE] = command.absolute_workdir(FLAGS.index_dir)
        logging.info("runs find this index with %s=%s", VARIABLE, os.environ[VARIABLE])
    start = time.monotonic()
    paths, reader = find_dataset_shards(argv[0], FLAGS.data_dir)
    index = index_shards(
        paths, reader, workers=FLAGS.workers, report=make_report(sys.stderr.isatty())
    )
    folders = list(dict.fromkeys(map(os.path.dirname, paths)))
    places = [p for folder in folders for p in Store(folder, reader.name).places]
    kept = [os.path.dirname(place) for place in places if exists(place)]
    print(
        f"{len(paths):,} shards, {len(index.offset):,} examples, "
        f"{time.monotonic() - start:.1f} s; index: {', '.join(kept) or 'not kept'}"
    )


def find_dataset_shards(dataset: str, data_dir: str | None) -> tuple[list[str], Reader]:
    """Returns the shards of a data set, and what goes through them.

    Raises:
      UserError: A data set that has no shards to index, or none that exist.
    """
    form, location, options = parse_dataset(dataset)
    request = Request(location, options, [ALL], data_dir=data_dir)
    if form == "tar":
        return find_files(location), TarReader()
    if form == "tfrecord":
        return find_files(location), tfrecord_reader(request)
    if form == "tfds":
        return find_shards(request)
    raise UserError(
        f"{form}: needs no index; give a data set of the form tar:, tfrecord: or tfds:"
    )


def make_report(terminal: bool) -> Callable[[int, int], None]:
    """Returns what is told about the progress: it draws a bar, or writes log lines."""
    start = last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        left = (now - start) / done * (total - done)
        text = f"{done} of {total} shards, {left:.0f} s left"
        if terminal:
            filled = BAR_WIDTH * done // total
            bar = "#" * filled + "." * (BAR_WIDTH - filled)
            sys.stderr.write(f"\r[{bar}] {text} " + "\n" * (done == total))
            sys.stderr.flush()
        elif now - last > 10 or done == total:
            last = now
            logging.info("%s", text)

    return report


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

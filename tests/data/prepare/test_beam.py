# SPDX-License-Identifier: Apache-2.0
"""The same shards through Apache Beam, with processes on all cores."""

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.data.raw_imagenet import write_train
from vit_jax.data.prepare.jobs import Job, beam_runner, run_guarded
from vit_jax.data.prepare.task import Task, prepare
from vit_jax.errors import UserError

pytest.importorskip("apache_beam", reason="needs the extra 'prepare'")
COUNTS = {"n01440764": 7, "n01443537": 11, "n15075141": 6}


def here(job: Job, numbers: Sequence[int]) -> None:
    for number in numbers:
        job(number)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("file_format", ["tar", "tfrecord"])
def test_the_command_writes_what_one_process_writes(tmp_path, file_format):
    write_train(tmp_path / "raw" / "ILSVRC2012_img_train.tar", COUNTS)
    data = f"ilsvrc2012:{tmp_path}/raw"
    expected = Task(
        data, "train", str(tmp_path / "one"), file_format, 5, allow_incomplete=True
    )
    prepare(expected, here)
    flags = [f"--input={data}", f"--output={tmp_path}/two", f"--format={file_format}"]
    flags += ["--shards=5", "--allow_incomplete"]
    done = subprocess.run(
        [sys.executable, "-m", "vit_jax.data.prepare", *flags],
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"24 examples in 5 shards of {tmp_path}/two\n"
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def touch(folder: Path, number: int) -> None:
    (folder / str(number)).touch()


def test_beams_own_flags_choose_how_it_runs(tmp_path):
    run_jobs = beam_runner(["--runner=DirectRunner", "--direct_num_workers=1"])
    run_jobs(functools.partial(touch, tmp_path), range(5))
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3", "4"]


def fail(number: int) -> None:
    if number % 2:
        raise UserError(f"file {number} is broken")


def test_a_mistake_of_the_user_stays_one_line(tmp_path):
    with pytest.raises(UserError, match=r"^file 1 is broken \(and 2 more\)$"):
        run_guarded(beam_runner([]), fail, range(6), str(tmp_path))

# SPDX-License-Identifier: Apache-2.0
"""Does numbered jobs through Apache Beam: on this machine, or on a cluster of many.

A job is known by its number alone, reads its input from files and leaves its result in
a file, so that nothing of size passes through Beam, a job that is repeated does no
harm, and a run that was stopped goes on with the jobs that are not done.

A mistake of the user that a job meets is written to a file beside and raised at the
end, in one line: Beam would try the job again, and bury the line in its own traces.
"""

import dataclasses
import logging as python_logging
import os
from collections.abc import Callable, Sequence

from absl import logging
from etils import epath

from vit_jax.errors import UserError

INSTALL = (
    "it needs Apache Beam, which is not installed; it goes into an environment of its "
    "own, as it asks for older libraries than training does: python -m venv "
    ".venv-prepare && .venv-prepare/bin/pip install '.[prepare]'"
)

Job = Callable[[int], None]
RunJobs = Callable[[Job, Sequence[int]], None]
"""Calls a job for each of these numbers, in any order, anywhere."""


@dataclasses.dataclass(frozen=True)
class Guarded:
    """A job whose `UserError`s go to files.

    Attributes:
      job: The job.
      folder: Where the files go.
    """

    job: Job
    folder: str

    def __call__(self, number: int) -> None:
        """Does the job of that number."""
        try:
            self.job(number)
        except UserError as err:
            (epath.Path(self.folder) / f"error-{number:05}").write_text(str(err))


def run_guarded(
    run_jobs: RunJobs, job: Job, numbers: Sequence[int], folder: str
) -> None:
    """Does jobs and raises what the first of them had to complain about.

    Args:
      run_jobs: Does them, here or elsewhere.
      job: The job.
      numbers: Which ones to do.
      folder: Where errors are kept until then.

    Raises:
      UserError: A job met a mistake of the user.
    """
    root = epath.Path(folder)
    for path in root.glob("error-*"):
        path.unlink()
    if numbers:
        run_jobs(Guarded(job, folder), numbers)
    errors = sorted(root.glob("error-*"), key=os.fspath)
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise UserError(f"{errors[0].read_text()}{more}")


def beam_runner(arguments: Sequence[str]) -> RunJobs:
    """Returns what does jobs through Beam.

    Args:
      arguments: Beam's own flags, such as `--runner=DataflowRunner`; empty for all
        cores of this machine.

    Raises:
      UserError: Beam is not installed.
    """
    try:
        # Beam lives in an environment of its own, where nothing is type-checked.
        import apache_beam as beam  # pyright: ignore[reportMissingImports]
        from apache_beam.options import (  # pyright: ignore[reportMissingImports]
            pipeline_options,
        )
    except ImportError as err:
        raise UserError(f"cannot prepare data: {INSTALL}") from err
    local = [
        "--runner=DirectRunner",
        "--direct_running_mode=multi_processing",
        f"--direct_num_workers={os.cpu_count() or 1}",
        "--default_sdk_harness_log_level=ERROR",
    ]
    # Here its warnings are about itself: flags that it gave its own processes.
    level = python_logging.WARNING if arguments else python_logging.ERROR
    python_logging.getLogger("apache_beam").setLevel(level)

    def run(job: Job, numbers: Sequence[int]) -> None:
        logging.info("%d jobs for Beam", len(numbers))
        # Flags of ours are not Beam's: nothing is read from the command line.
        options = pipeline_options.PipelineOptions(list(arguments) or local)
        with beam.Pipeline(options=options) as pipeline:
            items = pipeline | "Number" >> beam.Create(list(numbers))
            _ = items | "Spread" >> beam.Reshuffle() | "Do" >> beam.Map(job)

    return run

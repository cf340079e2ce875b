# SPDX-License-Identifier: Apache-2.0
"""Writes one HTML page about a run, which needs no network and no other file.

  python -m vit_jax.report runs/quickstart
  python -m vit_jax.report gs://BUCKET/run --output=report.html --examples=2000

The page has the settings, beside those of the paper where it has such a run; learning
curves; what every evaluator measured with both sets of weights; the confusion matrix
and the hardest pictures of the first evaluator of classes; the first training pictures,
augmented; attention, positions and filters; costs; and the commands to repeat it. What
cannot be shown, as data that is gone, is said on the page.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError

FLAGS = flags.FlagValues()
_OUTPUT = flags.DEFINE_string(
    "output",
    None,
    "FILE.html; report.html in the run's directory if not given.",
    flag_values=FLAGS,
)
_EXAMPLES = flags.DEFINE_integer(
    "examples",
    10_000,
    "Test pictures that the model is asked about, at most.",
    lower_bound=1,
    flag_values=FLAGS,
)


def main(arguments: Sequence[str]) -> None:
    """Writes the page of the run that the command line names."""
    if len(arguments) != 1:
        raise UserError(
            f"name one workdir of a run, not {len(arguments)}; such as runs/quickstart"
        )
    (workdir,) = arguments
    from etils import epath

    from vit_jax.report.facts import read_facts

    output = epath.Path(_OUTPUT.value or epath.Path(workdir) / "report.html")
    if output.suffix != ".html":
        raise UserError(f"--output={_OUTPUT.value} must end in .html")
    facts = read_facts(workdir)
    command.start_jax()
    text = _page(facts)
    try:
        output.expanduser().write_text(text)
    except OSError as err:
        raise UserError(f"cannot write {output}: {err}; name another file") from err
    from vit_jax.report import sections

    print(sections.in_words(facts))
    print(f"wrote {output}")


def _page(facts: Any) -> str:
    from vit_jax.report import drawings, page, sections

    training, tested, checkpoint, notes = _look(facts)
    parts = [
        sections.head(facts),
        sections.trained(facts),
        sections.drawn("Curves", drawings.curves(facts.workdir) if facts.lines else []),
        sections.results(facts),
        sections.mistakes(tested) if tested else "",
    ]
    if checkpoint is not None:
        inputs = tested.inputs if tested else None
        found, missing = drawings.inside(checkpoint, inputs)
        parts.append(sections.drawn("Inside", found, missing))
    if training:
        parts.append(sections.shown(training, facts))
    if notes:
        parts.append(page.section("Not on this page", *map(page.note, notes)))
    parts.append(sections.repeat(facts))
    return page.page(f"{facts.model} on {facts.dataset}", filter(None, parts))


def _look(facts: Any) -> tuple[list[Any], Any, Any, list[str]]:
    """Opens weights and data as far as they are there, and notes what is not."""
    from vit_jax import sharding
    from vit_jax.convert import load_checkpoint
    from vit_jax.data import hide_accelerators
    from vit_jax.report import looking

    training, tested, checkpoint, notes = [], None, None, []
    try:
        checkpoint = load_checkpoint(facts.workdir)
    except UserError as err:
        notes.append(f"What its weights say: {err}")
    mesh = sharding.make_mesh()
    hide_accelerators()
    try:
        train = looking.open_training(facts, mesh)
        training = looking.training_pictures(train)
        if checkpoint is not None and looking.evaluator_of_classes(facts):
            tested = looking.test(facts, checkpoint, train, _EXAMPLES.value)
    except UserError as err:
        notes.append(f"Pictures: {err}")
    return training, tested, checkpoint, notes


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

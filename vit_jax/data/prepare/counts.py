# SPDX-License-Identifier: Apache-2.0
"""Counts examples by class, and compares the counts with ImageNet's published ones."""

import numpy as np
from absl import logging

from vit_jax.data.examples import Source
from vit_jax.data.imagenet import wnids
from vit_jax.data.labels import MultiHot
from vit_jax.errors import UserError

EXPECTED = {
    ("ilsvrc2012", "train"): (1_281_167, (1000,)),
    ("ilsvrc2012", "validation"): (50_000, (1000,)),
    ("imagenet21k", "train"): (None, (21_841, 21_843)),
}
"""Examples and classes (with images) that must be there. ImageNet-21k is handed out
with 21,841 classes; Google's list has 21,843."""
FORMS = ("ilsvrc2012", "imagenet21k")
"""Forms of input that hold all of ImageNet, or are broken."""


def class_counts(source: Source) -> dict[str, int]:
    """Returns how many examples each class has, by its name; empty for targets."""
    labels = source.labels
    ids = labels.ids if isinstance(labels, MultiHot) else labels
    if not np.issubdtype(ids.dtype, np.integer):
        return {}
    names = source.class_names or range(int(ids.max(initial=-1)) + 1)
    counts = np.bincount(ids[ids >= 0], minlength=len(names))
    return {str(name): int(n) for name, n in zip(names, counts, strict=True)}


def check_counts(
    data: str, examples: int, counts: dict[str, int], *, allow_incomplete: bool
) -> None:
    """Compares what was found with what ImageNet has.

    Data of another form with the 1,000 classes of ImageNet is compared as well, but a
    difference is only logged.

    Args:
      data: What was read, such as "ilsvrc2012:DIR train".
      examples: Its number of examples.
      counts: Its examples of each class.
      allow_incomplete: Whether a difference is only logged.

    Raises:
      UserError: The numbers differ, and that is not allowed.
    """
    form, split = data.split(":")[0], data.rpartition(" ")[2]
    whole = form in FORMS
    if tuple(counts) == wnids("imagenet1k"):
        form = "ilsvrc2012"  # folders or lists of its classes; they may be a part of it
    if (form, split) not in EXPECTED:
        return
    expected, classes = EXPECTED[form, split]
    found = sum(n > 0 for n in counts.values())
    empty = [name for name, n in counts.items() if n == 0]
    wrong = []
    if expected is not None and examples != expected:
        wrong.append(f"{examples} images instead of {expected}")
    if found not in classes:
        known = " or ".join(map(str, classes))
        wrong.append(f"{found} classes instead of {known} (without {empty[0]})")
    text = f"{data} has {' and '.join(wrong)}"
    if wrong and whole and not allow_incomplete:
        raise UserError(f"{text}; copy the archives again, or write --allow_incomplete")
    if wrong:
        logging.warning("%s", text)

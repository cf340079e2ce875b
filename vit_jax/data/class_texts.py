# SPDX-License-Identifier: Apache-2.0
"""What a label that was written as a text means: a class name or an id.

The labels of the training split decide: when all are whole numbers they are ids,
otherwise names, sorted by their bytes. Where names are given, by `@names=FILE` or a
checkpoint, a label is a name or, if no such name is there, an id.
"""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Int

from vit_jax.data.labels import class_ids, sort_names, unknown_class
from vit_jax.errors import UserError


def is_whole(text: str) -> bool:
    """Whether a class text is a whole number, maybe a negative one."""
    return text.removeprefix("-").isdecimal()


def train_names(texts: Collection[str]) -> tuple[str, ...] | None:
    """Returns the class names, None where the texts of the training split are ids."""
    return None if all(map(is_whole, texts)) else sort_names(set(texts))


def text_ids(
    texts: Sequence[str], class_names: Sequence[str] | None
) -> Int[np.ndarray, " n"]:
    """Returns the class id of each text as int32, -1 for an unknown class.

    Args:
      texts: Class texts.
      class_names: Names that fix the ids, None where texts are ids.
    """
    ids = class_ids(class_names or ())
    limit = len(ids) if class_names is not None else 2**31
    table = np.full(len(texts), -1, np.int32)
    for place, text in enumerate(texts):
        if text in ids:
            table[place] = ids[text]
        elif text.isdecimal() and int(text) < limit:
            table[place] = int(text)
    return table


def unknown_label(
    text: str, where: str, class_names: Sequence[str] | None
) -> UserError:
    """Makes the error for a label whose id is -1 by `text_ids`.

    Args:
      text: The label.
      where: File and line or offset.
      class_names: As for `text_ids`.
    """
    if class_names is None:
        return UserError(
            f"{where} has the label {text!r} where the training split has whole "
            "numbers; give a whole number from 0 on"
        )
    if is_whole(text):
        return UserError(
            f"{where} has the label {text}, which is no class id; the training split "
            f"has {len(class_names)} classes, 0 to {len(class_names) - 1}"
        )
    return unknown_class(text, where, class_ids(class_names))

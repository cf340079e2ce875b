# SPDX-License-Identifier: Apache-2.0
"""Fields of a model from the command line: `--set=FIELD=VALUE`."""

import ast
from collections.abc import Sequence
from typing import Any

from vit_jax.errors import UserError


def parse_fields(assignments: Sequence[str]) -> dict[str, Any]:
    """Reads `FIELD=VALUE` texts; a value is a Python literal, else a text.

    Raises:
      UserError: A text without an equals sign.
    """
    fields: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UserError(f"--set={assignment} must be FIELD=VALUE, as in depth=2")
        try:
            fields[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            fields[name] = text
    return fields

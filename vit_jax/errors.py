# SPDX-License-Identifier: Apache-2.0
"""The one exception for mistakes that a user can mend, and "did you mean" texts.

An entry point (`vit_jax.command`) turns a `UserError` into one line on stderr and
exit status 1. Every other exception that leaves an entry point is a bug of ours and
shows its traceback.
"""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake of the user.

    The message says in one line what was wrong, what is allowed and what to do.
    """


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Returns up to `limit` of the `known` names that resemble `name`, best first."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=0.5)
    return [by_lower[match] for match in matches]


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """Makes the error for a name that is not among the `known` ones.

    Args:
      what: The kind of thing, such as "model" or "config.data field".
      name: The name that was not found.
      known: Every allowed name.

    Returns:
      An error (not raised) whose text names the nearest and then all known names.

    Example:
      >>> str(unknown("op", "decod", ["decode", "resize"]))
      "unknown op 'decod'; did you mean 'decode'? Known: decode, resize"
    """
    known = sorted(set(known))
    close = nearest(name, known)
    hint = f"did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
    return UserError(f"unknown {what} {name!r}; {hint}Known: {', '.join(known)}")

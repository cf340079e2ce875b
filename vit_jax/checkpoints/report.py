# SPDX-License-Identifier: Apache-2.0
"""What became of each array of a checkpoint that was put into a model."""

import collections
import dataclasses
from typing import Literal, get_args

# taken: as it was, but for its dtype. resized: fitted to another grid, window or
# patch. folded: a class token and its row of the position table, joined or parted.
# re-initialised: not from the checkpoint. dropped: in the checkpoint alone.
Action = Literal["taken", "resized", "folded", "re-initialised", "dropped"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """What became of one array.

    Attributes:
      name: Its slash-joined name in the model.
      action: What was done.
      detail: More about it, such as "14x14 -> 24x24, zoom".
    """

    name: str
    action: Action
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of all arrays.

    Attributes:
      entries: One for each.
      unused: Patterns for arrays that shall start anew which matched none.
    """

    entries: tuple[Entry, ...]
    unused: tuple[str, ...] = ()

    def names(self, action: Action) -> list[str]:
        """Returns the arrays with which one thing was done."""
        return [entry.name for entry in self.entries if entry.action == action]

    def summary(self) -> str:
        """Returns counts, then by name every array that was not taken as it was."""
        counts = collections.Counter(entry.action for entry in self.entries)
        lines = [", ".join(f"{counts[a]} {a}" for a in get_args(Action) if counts[a])]
        groups: dict[tuple[Action, str], list[str]] = {}
        for entry in self.entries:
            groups.setdefault((entry.action, entry.detail), []).append(entry.name)
        for (action, detail), names in groups.items():
            about = f"{action} ({detail})" if detail else action
            if action != "taken":
                lines.append(f"  {about}: {', '.join(names)}")
            elif detail:
                lines.append(f"  {about}: {len(names)}, such as {names[0]}")
        if self.unused:
            lines.append(f"  reset matched nothing: {', '.join(self.unused)}")
        return "\n".join(lines)

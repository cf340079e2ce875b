# SPDX-License-Identifier: Apache-2.0
"""How figures look, and how they become files.

The colours are those of Okabe and Ito, which people with any kind of colour vision tell
apart; series differ in their dashes as well. Figures are hardly wider than a phone, so
that text of nine points can be read where they are shrunk to its width.
"""

import html
import io
import re
from typing import Any

import matplotlib as mpl
from etils import epath
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.errors import UserError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
MAP = "viridis"
WIDTH = 4.2
FORMATS = ("png", "svg")

# No grey of a page: it is replaced by the colour of the text around the figure.
INK = "#3b3b3d"
_SETTINGS: Any = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "font.size": 9,
    "grid.alpha": 0.2,
    "grid.color": INK,
    "image.cmap": MAP,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "vit_jax",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def settings() -> Any:
    """Returns the context in which figures are drawn."""
    return mpl.rc_context(_SETTINGS)


def new_figure(
    rows: int = 1, columns: int = 1, *, height: float = 3.2, width: float = WIDTH
) -> tuple[Figure, list[Axes]]:
    """Returns a figure and its axes, row by row; to be called within `settings`.

    Args:
      rows: Rows of axes.
      columns: Axes in a row.
      height: Of the figure, in inches.
      width: Of the figure, in inches.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def save(figure: Figure, path: str) -> None:
    """Writes a figure as PNG or SVG, as the end of the path says.

    Raises:
      UserError: Another ending, or a file that cannot be written.
    """
    check_path(path)
    buffer = io.BytesIO()
    with settings():
        kind = path.rsplit(".", 1)[-1].lower()
        # A date would make two equal figures differ.
        metadata: Any = {"Date": None} if kind == "svg" else {}
        figure.savefig(
            buffer, format=kind, dpi=200, facecolor="white", metadata=metadata
        )
    try:
        epath.Path(path).write_bytes(buffer.getvalue())
    except OSError as err:
        raise UserError(f"cannot write {path}: {err}; name another file") from err


def check_path(path: str) -> None:
    """Checks that a path ends as a figure can be written.

    Raises:
      UserError: It does not.
    """
    if not path.lower().endswith(tuple(f".{kind}" for kind in FORMATS)):
        raise UserError(f"the figure {path!r} must end in .png or .svg")


def inline_svg(figure: Figure, name: str, title: str) -> str:
    """Returns a figure as an element of an HTML page, in the colour of its text.

    The page may set `--series`, the colour of first lines, to a lighter one.

    Args:
      figure: The figure.
      name: Differs from that of the other figures of the page.
      title: Said by screen readers.
    """
    buffer = io.StringIO()
    with settings():
        figure.savefig(
            buffer, format="svg", dpi=150, transparent=True, metadata={"Date": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Figures of one page would else share the names of their parts.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = text.replace(INK, "currentColor")
    text = text.replace(COLOURS[0], f"var(--series, {COLOURS[0]})")
    text = re.sub(r'\b(width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(title)}"', 1)

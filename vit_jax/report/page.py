# SPDX-License-Identifier: Apache-2.0
"""The frame of the page: its style, and the few shapes that its parts have."""

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image

_SMALL = 96
"""Pictures up to this side are shown with their pixels, and kept without loss."""

# Greys and one accent; dark where the reader's system is. No font, script or picture
# comes from elsewhere.
_STYLE = """
:root { color-scheme: light dark; --back: #fbfbfa; --card: #fff; --ink: #1d1d1f;
  --soft: #63636b; --line: #e1e1e3; --accent: #0b6bb0; --bad: #b3470a;
  --series: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --back: #141416; --card: #1c1c1f;
  --ink: #e9e9ec; --soft: #a0a0a8; --line: #323237; --accent: #5bb0ec;
  --bad: #f09a5f; --series: #4aa3e0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main { max-width: 1240px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.2rem; margin: 44px 0 12px; }
h3 { font-size: 1rem; margin: 0 0 4px; }
p { margin: 4px 0 12px; max-width: 75ch; }
.soft, figcaption, th { color: var(--soft); }
.soft { font-size: 0.9rem; }
.numbers { display: grid; gap: 12px; margin: 24px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.numbers div, .card { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; padding: 14px 16px; }
.numbers b { display: block; font-size: 1.35rem; font-weight: 600; line-height: 1.3; }
.cards { display: grid; gap: 16px; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(340px, 100%), 1fr)); }
.card > svg { display: block; width: 100%; max-width: 560px; height: auto;
  margin: 8px auto 0; }
svg text { font-family: inherit !important; }
.wide { overflow-x: auto; width: fit-content; max-width: 100%; }
.wide td { white-space: nowrap; }
.cards > .wide { width: auto; }
.cards > .wide td { white-space: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: 0.93rem; }
th, td { text-align: left; padding: 5px 18px 5px 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 500; overflow-wrap: normal; }
.matrix { margin: 0; font-size: 0.85rem; }
.matrix th, .matrix td { padding: 0 2px; min-width: 2.6em; height: 2.2em; border: 0;
  white-space: nowrap; text-align: center; vertical-align: middle; }
.matrix td { border: 1px solid var(--card); border-radius: 5px; }
.matrix tbody th { text-align: right; padding-right: 8px; }
.pictures { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); }
.pictures.plain { grid-template-columns: repeat(auto-fill, minmax(92px, 1fr)); }
figure { margin: 0; }
.pictures figure { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; overflow: hidden; }
.pictures img { display: block; width: 100%; height: auto; }
img.pixels { image-rendering: pixelated; }
figcaption { padding: 7px 10px 9px; font-size: 0.82rem; line-height: 1.4; }
figcaption b { color: var(--ink); font-weight: 600; }
.said { display: flex; justify-content: space-between; gap: 8px; margin-top: 3px;
  background: linear-gradient(var(--accent), var(--accent)) left bottom / var(--p) 2px
    no-repeat; padding-bottom: 3px; }
.said span:last-child { white-space: nowrap; }
.said.false { background-image: linear-gradient(var(--bad), var(--bad)); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 16px; margin: 4px 0 14px; white-space: pre-wrap;
  font: 0.85rem/1.5 ui-monospace, monospace; }
summary { cursor: pointer; color: var(--accent); }
"""


class Drawing(NamedTuple):
    """A figure of the page.

    Attributes:
      svg: The element.
      title: Its heading.
      text: What it shows.
    """

    svg: str
    title: str
    text: str


def page(title: str, parts: Iterable[str]) -> str:
    """Returns the whole page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Browsers ask for an icon of every page unless it brings one.
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<main>\n{chr(10).join(parts)}\n</main>\n</body>\n</html>\n"
    )


def escape(text: object) -> str:
    """Returns text as it is written in HTML."""
    return html.escape(str(text))


def section(title: str, *parts: str) -> str:
    """Returns a part of the page with its heading; nothing if it is empty."""
    content = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def note(text: str) -> str:
    """Returns a paragraph in soft ink; nothing for no text."""
    return f'<p class="soft">{escape(text)}</p>' if text else ""


def numbers(values: Mapping[str, str]) -> str:
    """Returns large numbers with their names."""
    cells = [
        f'<div><b>{escape(value)}</b><span class="soft">{escape(name)}</span></div>'
        for name, value in values.items()
    ]
    return f'<div class="numbers">{"".join(cells)}</div>'


def cards(drawings: Iterable[Drawing]) -> str:
    """Returns figures side by side where there is room."""
    cells = [
        f'<div class="card"><h3>{escape(d.title)}</h3>{note(d.text)}{d.svg}</div>'
        for d in drawings
    ]
    return f'<div class="cards">{"".join(cells)}</div>' if cells else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns a table whose first column names the rows; None leaves a cell empty."""
    lines = []
    for first, *rest in rows:
        cells = [f"<td>{'' if each is None else escape(each)}</td>" for each in rest]
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{"".join(cells)}</tr>')
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    top = f"<thead><tr>{names}</tr></thead>" if any(head) else ""
    body = f"<tbody>{''.join(lines)}</tbody>"
    return f'<div class="wide card"><table>{top}{body}</table></div>'


def image(pixels: UInt8[np.ndarray, "h w c"], text: str) -> str:
    """Returns a picture that the page holds itself."""
    small = max(pixels.shape[:2]) <= _SMALL
    mode, buffer = Image.fromarray(pixels.squeeze()), io.BytesIO()
    if small:
        mode.save(buffer, format="PNG", optimize=True)
    else:
        mode.save(buffer, format="JPEG", quality=88)
    data = base64.b64encode(buffer.getvalue()).decode()
    height, width = pixels.shape[:2]
    kind = "png" if small else "jpeg"
    style = ' class="pixels"' if small else ""
    return (
        f'<img{style} width="{width}" height="{height}" alt="{escape(text)}" '
        f'src="data:image/{kind};base64,{data}">'
    )

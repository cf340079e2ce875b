# SPDX-License-Identifier: Apache-2.0
"""Draws series: learning curves, few-shot accuracy, throughput, scaling."""

import collections
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from vit_jax.plots import style
from vit_jax.plots.series import Panel, Series, nice, short

_COLOURS = len(style.COLOURS)
_MARKERS = "os^Dv"
_MOST_TICKS = 8


def draw_panels(panels: Sequence[Panel]) -> Figure:
    """Draws panels one below the other."""
    with style.settings():
        figure, axes = style.new_figure(len(panels), height=2.6 * len(panels))
        last = max(x for panel in panels for series in panel.series for x in series.x)
        for panel, each in zip(panels, axes, strict=True):
            _draw(each, panel)
            if not (panel.log_x or panel.x_names):
                each.set_xlim(0, 1.03 * last)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    used: collections.Counter[int] = collections.Counter()
    for number, series in enumerate(panel.series):
        colour = number if series.colour is None else series.colour
        # Series of one colour differ in their dashes, all others in both.
        dash = number if series.colour is None else used[colour]
        used[colour] += 1
        axes.errorbar(
            series.x,
            series.y,
            yerr=series.spread,
            label=series.label,
            color=style.INK if colour < 0 else style.COLOURS[colour % _COLOURS],
            linestyle=style.DASHES[dash % len(style.DASHES)] if series.joined else "",
            marker=_marker(series),
            markersize=4,
            capsize=3,
            zorder=2 if colour < 0 else 3,
        )
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    _label_places(axes, panel)
    if "(%)" in panel.y_label:
        axes.set_ylim(top=min(axes.get_ylim()[1], 101))
    if len(panel.series) > 1:
        axes.legend()
    else:
        axes.set_title("".join(series.label for series in panel.series), loc="left")


def _marker(series: Series) -> str | None:
    if series.colour is None:
        return "o" if len(series.x) < 15 else None
    return None if series.colour < 0 else _MARKERS[series.colour % len(_MARKERS)]


def _label_places(axes: Axes, panel: Panel) -> None:
    if panel.x_names:
        axes.set_xticks(range(len(panel.x_names)), panel.x_names)
        return
    thousands = FuncFormatter(
        lambda value, _: nice(value) if value % 1 else f"{value:,.0f}"
    )
    axes.xaxis.set_major_formatter(thousands)
    axes.locator_params(axis="x", nbins=5)
    if panel.log_x:
        places = sorted({x for series in panel.series for x in series.x})
        axes.set_xscale("log")
        if len(places) > _MOST_TICKS or not all(s.joined for s in panel.series):
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: short(x)))
        else:
            axes.set_xticks(places, [short(place) for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())

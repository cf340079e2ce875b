# SPDX-License-Identifier: Apache-2.0
"""Draws series: learning curves, few-shot accuracy, throughput."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from vit_jax.plots import style
from vit_jax.plots.series import Panel, nice


def draw_panels(panels: Sequence[Panel]) -> Figure:
    """Draws panels one below the other."""
    with style.settings():
        figure, axes = style.new_figure(len(panels), height=2.6 * len(panels))
        last = max(x for panel in panels for series in panel.series for x in series.x)
        for panel, each in zip(panels, axes, strict=True):
            _draw(each, panel)
            if not panel.log_x:
                each.set_xlim(0, 1.03 * last)
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    for number, series in enumerate(panel.series):
        few = len(series.x) < 15
        axes.errorbar(
            series.x,
            series.y,
            yerr=series.spread,
            label=series.label,
            color=style.COLOURS[number % len(style.COLOURS)],
            linestyle=style.DASHES[number % len(style.DASHES)],
            marker="o" if few else None,
            markersize=4,
            capsize=3,
        )
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    thousands = FuncFormatter(
        lambda value, _: nice(value) if value % 1 else f"{value:,.0f}"
    )
    axes.xaxis.set_major_formatter(thousands)
    axes.locator_params(axis="x", nbins=5)
    if panel.log_x:
        places = sorted({x for series in panel.series for x in series.x})
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())
    if "(%)" in panel.y_label:
        axes.set_ylim(top=min(axes.get_ylim()[1], 101))
    if len(panel.series) > 1:
        axes.legend()
    else:
        axes.set_title("".join(series.label for series in panel.series), loc="left")

# SPDX-License-Identifier: Apache-2.0
"""Draws attention, positions and filters: Figures 6 and 7 of arXiv:2010.11929."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from vit_jax.plots import style

_SHOWN_POSITIONS = 14
"""Positions shown along an axis of the grid of grids; of more, some are left out."""


def draw_overlays(
    pictures: UInt8[np.ndarray, "b h w c"],
    maps: Float[np.ndarray, "b m i j"],
    titles: Sequence[str],
) -> Figure:
    """Draws pictures, and maps laid over them, a row a picture.

    Args:
      pictures: The pictures as the model sees them.
      maps: Weights of patches, summing to 1, several for each picture.
      titles: Of the maps.
    """
    each = 1 + maps.shape[1]
    # Two pictures with a map each share a row; more maps of one take several.
    columns = each * min(2, len(pictures)) if each == 2 else min(each, 4)
    padded = math.ceil(each / columns) * columns if each > 2 else each
    rows = math.ceil(len(pictures) * padded / columns)
    side = style.WIDTH / columns * pictures.shape[1] / pictures.shape[2]
    with style.settings():
        figure, axes = style.new_figure(rows, columns, height=(side + 0.2) * rows + 0.6)
        _bare(axes)
        # A few patches without content may draw most attention (arXiv:2309.16588);
        # the scale ends below them, so that the others can be seen.
        scale = 100 * float(np.quantile(maps, 0.995))
        shown = None
        for number, picture in enumerate(pictures):
            mine = axes[number * padded : (number + 1) * padded]
            first = number * padded < columns or each > 2
            mine[0].imshow(_rgb(picture))
            mine[0].set_title("picture" if first else "")
            for place, title, weights in zip(
                mine[1:], titles, maps[number], strict=False
            ):
                shown = _overlay(place, picture, 100 * weights, scale)
                place.set_title(title if first else "")
        if shown is not None:
            bar = figure.colorbar(
                shown,
                ax=axes,
                location="bottom",
                aspect=40,
                pad=0.02,
                extend="max" if 100 * maps.max() > 1.2 * scale else "neither",
            )
            bar.set_label("share of a patch (%)")
            if bar.solids is not None:
                bar.solids.set_alpha(1.0)
    return figure


def _overlay(
    axes: Axes, picture: np.ndarray, weights: np.ndarray, scale: float
) -> AxesImage:
    height, width = picture.shape[:2]
    grey = _rgb(picture).mean(axis=-1)
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255)
    return axes.imshow(
        weights,
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        alpha=0.65,
        vmin=0,
        vmax=scale,
        interpolation="bilinear",
    )


def draw_distances(
    distances: Sequence[Float[np.ndarray, " m"]], uniform: Sequence[float]
) -> Figure:
    """Draws the mean attention distance of every head by depth.

    Args:
      distances: Of the heads of each layer, in pixels.
      uniform: What attention that is uniform over the map would have in each layer.
    """
    depth = np.arange(1, 1 + len(distances))
    with style.settings():
        figure, (axes,) = style.new_figure()
        for number, heads in zip(depth, distances, strict=True):
            axes.scatter(
                np.full(len(heads), number),
                heads,
                s=18,
                color=style.COLOURS[0],
                alpha=0.6,
                linewidths=0,
                label="head" if number == 1 else None,
            )
        means = [heads.mean() for heads in distances]
        axes.plot(depth, means, color=style.COLOURS[1], label="mean")
        axes.plot(
            depth,
            uniform,
            color=style.COLOURS[2],
            linestyle=style.DASHES[1],
            label="uniform",
        )
        axes.set_xlabel("layer")
        axes.set_ylabel("mean attention distance (pixels)")
        axes.set_xlim(0.5, len(distances) + 0.5)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        figure.legend(loc="outside upper left", ncols=3)
    return figure


def draw_positions(cosines: Float[np.ndarray, "h w h w"]) -> Figure:
    """Draws the similarity of positions as a grid of grids.

    Args:
      cosines: See `embeddings.similarity`.
    """
    h, w = cosines.shape[:2]
    rows, columns = (
        np.unique(np.linspace(0, side - 1, min(side, _SHOWN_POSITIONS)).round())
        for side in (h, w)
    )
    tiles = cosines[rows.astype(int)][:, columns.astype(int)]
    gap = 1 if max(h, w) < 30 else 2
    canvas = np.full(
        (len(rows) * (h + gap) - gap, len(columns) * (w + gap) - gap), np.nan
    )
    for i, j in np.ndindex(len(rows), len(columns)):
        top, left = i * (h + gap), j * (w + gap)
        canvas[top : top + h, left : left + w] = tiles[i, j]
    with style.settings():
        height = (style.WIDTH - 1.6) * canvas.shape[0] / canvas.shape[1] + 0.5
        figure, (axes,) = style.new_figure(height=height)
        shown = axes.imshow(canvas, vmin=-1, vmax=1, interpolation="nearest")
        axes.grid(False)
        axes.set_xlabel("column of the patch")
        axes.set_ylabel("row of the patch")
        every = [max(1, math.ceil(len(places) / 8)) for places in (rows, columns)]
        axes.set_yticks(
            (np.arange(len(rows)) * (h + gap) + h / 2 - 0.5)[:: every[0]],
            [f"{row + 1:.0f}" for row in rows[:: every[0]]],
        )
        axes.set_xticks(
            (np.arange(len(columns)) * (w + gap) + w / 2 - 0.5)[:: every[1]],
            [f"{column + 1:.0f}" for column in columns[:: every[1]]],
        )
        figure.colorbar(shown, ax=axes, label="cosine similarity", fraction=0.05)
    return figure


def draw_filters(
    components: Float[np.ndarray, "k p q c"], explained: Float[np.ndarray, " k"]
) -> Figure:
    """Draws principal components of filters, each scaled to its own largest value.

    Args:
      components: The components, as patches.
      explained: The share of the variance that each explains.
    """
    columns = min(7, len(components))
    rows = math.ceil(len(components) / columns)
    with style.settings():
        height = rows * (style.WIDTH / columns + 0.15) + 0.2
        figure, axes = style.new_figure(rows, columns, height=height)
        _bare(axes)
        for place, patch, share in zip(axes, components, explained, strict=False):
            largest = max(float(np.abs(patch).max()), 1e-12)
            levels = np.clip(np.rint(127.5 + 127.5 * patch / largest), 0, 255)
            place.imshow(_rgb(levels.astype(np.uint8)))
            place.set_title(f"{100 * share:.2g} %", pad=2)
        figure.supxlabel("share of the variance of the filters", fontsize=9)
    return figure


def _bare(axes: Sequence[Axes]) -> None:
    for each in axes:
        each.axis("off")


def _rgb(picture: np.ndarray) -> np.ndarray:
    return np.repeat(picture, 3, axis=-1) if picture.shape[-1] == 1 else picture

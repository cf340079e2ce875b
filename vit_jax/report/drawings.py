# SPDX-License-Identifier: Apache-2.0
"""The figures of the report: curves of the run, and what its model has learned."""

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float

from vit_jax.checkpoints.checkpoint import Checkpoint
from vit_jax.errors import UserError
from vit_jax.plots import embeddings, figures, first_layer, line_figures, series, style
from vit_jax.plots.opened import Opened, open_checkpoint
from vit_jax.plots.pixels import visible
from vit_jax.report.page import Drawing

_CURVES = ("loss", "top1", "map", "rmse", "lr", "images_per_second")


def curves(workdir: str) -> list[Drawing]:
    """Draws the metrics of a run, a figure for each kind.

    Raises:
      UserError: It has none.
    """
    known = series.metric_names(workdir)
    panels = [
        panel
        for kind in _CURVES
        if kind in known
        for panel in series.learning_curves([workdir], [kind])
        if any(len(each.x) > 1 for each in panel.series)
    ]
    return [
        Drawing(
            style.inline_svg(
                line_figures.draw_panels([panel]), f"curve{number}", panel.y_label
            ),
            panel.y_label[0].upper() + panel.y_label[1:],
            "",
        )
        for number, panel in enumerate(panels)
    ]


def inside(
    checkpoint: Checkpoint, inputs: Float[np.ndarray, "n h w c"] | None
) -> tuple[list[Drawing], list[str]]:
    """Draws what a model has learned, as far as its family allows.

    Args:
      checkpoint: Its weights.
      inputs: Some inputs; None where there are no pictures to look at.

    Returns:
      The figures, and what could not be drawn and why.
    """
    opened = open_checkpoint(checkpoint)
    drawings, notes = [], []
    for draw in _kinds(opened, inputs):
        try:
            drawings.append(draw())
        except UserError as err:
            notes.append(str(err))
    return drawings, list(dict.fromkeys(notes))


def _kinds(
    opened: Opened, inputs: Float[np.ndarray, "n h w c"] | None
) -> Iterator[Callable[[], Drawing]]:
    if inputs is not None:
        yield lambda: _rollout(opened, inputs)
        yield lambda: _distances(opened, inputs)
    yield lambda: _positions(opened)
    yield lambda: _filters(opened)


def _rollout(opened: Opened, inputs: np.ndarray) -> Drawing:
    some = inputs[:: max(len(inputs) // 4, 1)][:4]
    pictures = visible(some, opened.ops or "")
    if opened.layers[0].windows is None:
        maps, title = opened.rollout(some)[:, None], "rollout"
        text = (
            "How much of each patch reaches the head: attention of all layers, "
            "averaged over heads and multiplied, the identity mixed in half and half "
            "(Appendix D.8 of the ViT paper)."
        )
    else:
        maps, title = opened.maps(some).mean(axis=1, keepdims=True), "last layer"
        text = (
            "How much of the attention within the windows of the last layer goes to "
            "each token, averaged over heads."
        )
    figure = figures.draw_overlays(pictures, maps, [title])
    return Drawing(
        style.inline_svg(figure, "rollout", "Attention laid over pictures"),
        "Where the model looks",
        text,
    )


def _distances(opened: Opened, inputs: np.ndarray) -> Drawing:
    distances = opened.distances(inputs)
    uniform = [layer.uniform_distance() for layer in opened.layers]
    figure = figures.draw_distances(distances, uniform)
    return Drawing(
        style.inline_svg(figure, "distances", "Mean attention distance by depth"),
        "How far heads look",
        f"Mean distance between a patch and what it attends to, over {len(inputs)} "
        "pictures; a point for each head (Figure 7, right).",
    )


def _positions(opened: Opened) -> Drawing:
    table, grid = first_layer.positions(opened)
    cosines = embeddings.similarity(table, grid)
    return Drawing(
        style.inline_svg(
            figures.draw_positions(cosines), "positions", "Similarity of positions"
        ),
        "What it knows of places",
        "Each tile compares the embedding of one position with those of all others "
        "(Figure 7, centre).",
    )


def _filters(opened: Opened) -> Drawing:
    kernel = first_layer.filters(opened)
    components, explained = embeddings.filter_components(kernel, 28)
    figure = figures.draw_filters(components, explained)
    return Drawing(
        style.inline_svg(figure, "filters", "Principal components of the filters"),
        "What its first filters look for",
        f"The first principal components of the {kernel.shape[-1]} filters (Figure 7, "
        "left).",
    )

# SPDX-License-Identifier: Apache-2.0
"""Draws what a checkpoint has learned, or how runs went.

  python -m vit_jax.plots rollout --checkpoint=runs/pets cat.jpg --output=cat.png
  python -m vit_jax.plots attention --checkpoint=runs/pets cat.jpg --layer=0 \
    --output=cat.svg
  python -m vit_jax.plots curves runs/a runs/b --output=curves.svg

Of a checkpoint, a run of ours or a file of Google, timm or Hugging Face:
  attention   where the heads of a layer look, laid over pictures
  rollout     what the whole model sees of pictures (Figure 6 of the ViT paper)
  distances   mean attention distance of every head by depth (Figure 7, right)
  positions   similarity of the position embeddings, a grid of grids (Figure 7, centre)
  filters     principal components of the patch filters (Figure 7, left)
Of files, named instead of pictures:
  curves      metrics of one or several runs over their steps
  fewshot     accuracy by examples a class, of outputs of vit_jax.fewshot
  throughput  images/s of runs, or of lines of vit_jax.benchmark step
"""

import glob
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError, unknown

FLAGS = flags.FlagValues()
_CHECKPOINT = flags.DEFINE_string(
    "checkpoint",
    None,
    "CHECKPOINT: a run's workdir, .npz, .safetensors, or a directory.",
    flag_values=FLAGS,
)
_PRESET = flags.DEFINE_string(
    "preset",
    None,
    "Numerics of a file that does not tell its own, such as dinov2.",
    flag_values=FLAGS,
)
_OUTPUT = flags.DEFINE_string(
    "output", None, "FILE.png or FILE.svg.", required=True, flag_values=FLAGS
)
_RESOLUTION = flags.DEFINE_integer(
    "resolution",
    None,
    "Side of the pictures, if not the checkpoint's own.",
    lower_bound=1,
    flag_values=FLAGS,
)
_LAYER = flags.DEFINE_integer(
    "layer",
    None,
    "attention: layer from 0, -1 is the last and the default; positions: which table.",
    flag_values=FLAGS,
)
_HEAD = flags.DEFINE_integer(
    "head",
    None,
    "attention: head from 0; all and their mean if not given.",
    lower_bound=0,
    flag_values=FLAGS,
)
_QUERY = flags.DEFINE_list(
    "query",
    None,
    "attention: ROW,COLUMN from 0 of the patch that looks, instead of the class token "
    "or the mean over the patches.",
    flag_values=FLAGS,
)
_RESIDUAL = flags.DEFINE_boolean(
    "residual",
    True,
    "rollout: mix the identity in, half and half, as tokens are added to what they "
    "attend to.",
    flag_values=FLAGS,
)
_COMPONENTS = flags.DEFINE_integer(
    "components", 28, "filters: how many.", lower_bound=1, flag_values=FLAGS
)
_METRICS = flags.DEFINE_list(
    "metrics",
    None,
    "curves: such as train/loss, or loss,top1 for all of these names.",
    flag_values=FLAGS,
)


def main(arguments: Sequence[str]) -> None:
    """Draws what the command line asks for."""
    kinds: Mapping[str, Callable[[list[str]], Any]] = {
        "attention": _attention,
        "rollout": _rollout,
        "distances": _distances,
        "positions": _positions,
        "filters": _filters,
        "curves": _curves,
        "fewshot": _fewshot,
        "throughput": _throughput,
    }
    if not arguments:
        raise UserError(f"name what to draw first: {', '.join(kinds)}")
    kind, *rest = arguments
    if kind not in kinds:
        raise unknown("kind of plot", kind, kinds)
    from vit_jax.plots import style

    style.check_path(_OUTPUT.value)
    figure = kinds[kind](_found(rest))
    style.save(figure, _OUTPUT.value)
    print(f"wrote {_OUTPUT.value}")


def _attention(images: list[str]) -> Any:
    from vit_jax.plots import figures

    opened = _open()
    inputs, pictures = _inputs(opened, images)
    layer = -1 if _LAYER.value is None else _LAYER.value
    maps = opened.maps(inputs, layer, _query())
    heads = maps.shape[1]
    if _HEAD.value is not None:
        if _HEAD.value >= heads:
            raise UserError(
                f"no head {_HEAD.value}: the layer has {heads}, from 0 to {heads - 1}"
            )
        maps, titles = maps[:, [_HEAD.value]], [f"head {_HEAD.value}"]
    else:
        maps = _with_mean(maps)
        titles = ["mean of the heads", *(f"head {head}" for head in range(heads))]
    return figures.draw_overlays(pictures, maps, titles)


def _with_mean(maps: Any) -> Any:
    import numpy as np

    return np.concatenate([maps.mean(axis=1, keepdims=True), maps], axis=1)


def _query() -> tuple[int, int] | None:
    if _QUERY.value is None:
        return None
    try:
        row, column = map(int, _QUERY.value)
    except ValueError as err:
        raise UserError(
            f"--query={','.join(_QUERY.value)} is not ROW,COLUMN; write such as "
            "--query=0,3"
        ) from err
    return row, column


def _rollout(images: list[str]) -> Any:
    from vit_jax.plots import figures

    opened = _open()
    inputs, pictures = _inputs(opened, images)
    maps = opened.rollout(inputs, residual=_RESIDUAL.value)
    return figures.draw_overlays(pictures, maps[:, None], ["rollout"])


def _distances(images: list[str]) -> Any:
    from vit_jax.plots import figures

    opened = _open()
    inputs, _ = _inputs(opened, images)
    distances = opened.distances(inputs)
    print(f"mean attention distance in pixels over {len(inputs)} picture(s)")
    for layer, heads in zip(opened.layers, distances, strict=True):
        print(
            f"  {layer.name}  {heads.mean():7.2f}  heads from {heads.min():.2f} to "
            f"{heads.max():.2f}"
        )
    uniform = [layer.uniform_distance() for layer in opened.layers]
    return figures.draw_distances(distances, uniform)


def _positions(images: list[str]) -> Any:
    from vit_jax.plots import embeddings, figures, first_layer

    _none(images)
    table, grid = first_layer.positions(_open(), _LAYER.value or 0)
    cosines = embeddings.similarity(table, grid)
    share = embeddings.nearest_are_neighbours(cosines)
    print(
        f"{100 * share:.1f} % of {len(table)} positions are most similar to one next "
        "to them"
    )
    return figures.draw_positions(cosines)


def _filters(images: list[str]) -> Any:
    from vit_jax.plots import embeddings, figures, first_layer

    _none(images)
    kernel = first_layer.filters(_open())
    components, explained = embeddings.filter_components(kernel, _COMPONENTS.value)
    print(
        f"{len(components)} components explain {100 * explained.sum():.1f} % of the "
        f"variance of {kernel.shape[-1]} filters"
    )
    return figures.draw_filters(components, explained)


def _curves(runs: list[str]) -> Any:
    from vit_jax.plots import line_figures, series

    panels = series.learning_curves(_files(runs, "run"), _METRICS.value)
    return line_figures.draw_panels(panels)


def _fewshot(files: list[str]) -> Any:
    from vit_jax.plots import line_figures, series

    panel = series.few_shot(_files(files, "output of vit_jax.fewshot"))
    return line_figures.draw_panels([panel])


def _throughput(files: list[str]) -> Any:
    from vit_jax.plots import line_figures, series

    panel = series.throughput(_files(files, "run or file of benchmark lines"))
    return line_figures.draw_panels([panel])


def _found(arguments: Sequence[str]) -> list[str]:
    """Returns the paths that are named, also by patterns that no shell expanded."""
    found: list[str] = []
    for argument in arguments:
        if glob.has_magic(argument) and not pathlib.Path(argument).exists():
            found += sorted(glob.glob(argument, recursive=True)) or [argument]
        else:
            found.append(argument)
    return found


def _files(paths: list[str], what: str) -> list[str]:
    paths = paths or [each for each in [_CHECKPOINT.value] if each]
    if not paths:
        raise UserError(f"name at least one {what}")
    return paths


def _none(images: list[str]) -> None:
    if images:
        raise UserError(f"unexpected {images[0]!r}; this kind takes no pictures")


def _open() -> Any:
    if not _CHECKPOINT.value:
        raise UserError("name the weights to look into with --checkpoint=CHECKPOINT")
    command.start_jax()
    from vit_jax.convert import load_checkpoint
    from vit_jax.plots.opened import open_checkpoint

    checkpoint = load_checkpoint(_CHECKPOINT.value, _PRESET.value)
    return open_checkpoint(checkpoint, _RESOLUTION.value)


def _inputs(opened: Any, images: list[str]) -> tuple[Any, Any]:
    """Returns inputs of the model, and the pictures that they show."""
    import numpy as np

    from vit_jax.data.pixels import preprocess
    from vit_jax.plots.pixels import visible

    if not images:
        raise UserError("no picture given; name one or more image files")
    if opened.ops is None:
        raise UserError(
            f"{_CHECKPOINT.value} does not tell how pictures are prepared; name its "
            "numerics with --preset"
        )
    inputs = []
    for image in images:
        if not pathlib.Path(image).is_file():
            raise UserError(f"no picture {image!r}; name an existing file")
        inputs.append(preprocess(pathlib.Path(image).read_bytes(), opened.ops))
    stacked = np.stack(inputs).astype(np.float32)
    return stacked, visible(stacked, opened.ops)


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

# SPDX-License-Identifier: Apache-2.0
"""Prints the zoo: what each model costs, and what others publish about it.

  python -m vit_jax.models
  python -m vit_jax.models ViT-B Swin --resolution=384
  python -m vit_jax.models --exaflops

Words choose the models whose name has one of them in it. Parameters are those of 1000
classes at the resolution that a model is made for. A multiply-add is two operations:
halve the GFLOPs to compare them with tables that count it as one. Accuracies are quoted
from where they were published; nothing here was measured with this package.
"""

from collections.abc import Collection, Iterable, Sequence

from absl import flags

from vit_jax import command
from vit_jax.errors import UserError, unknown
from vit_jax.models import build_model, catalog, flops, list_models, published

FLAGS = flags.FlagValues()
_RESOLUTION = flags.DEFINE_integer(
    "resolution",
    None,
    "Side of the images in pixels that GFLOPs are for, instead of each model's own.",
    lower_bound=1,
    flag_values=FLAGS,
)
_EXAFLOPS = flags.DEFINE_boolean(
    "exaflops",
    False,
    "Instead of the zoo, the costs of Table 6 of the ViT paper and our count of them.",
    flag_values=FLAGS,
)


def main(words: Sequence[str]) -> None:
    """Prints the rows that the command line asks for."""
    names = [
        name
        for name in list_models()
        if not words or any(word.lower() in name.lower() for word in words)
    ]
    if not names:
        raise unknown("model", " ".join(words), list_models())
    if _EXAFLOPS.value:
        _print(_costs(names), words=(0,))
    else:
        _print(_zoo(names), words=(0, 4, 6, 7))


def _zoo(names: Iterable[str]) -> list[Sequence[str]]:
    head = ("model", "parameters", "GFLOPs", "pixels", "preset", "top-1 %")
    rows: list[Sequence[str]] = [(*head, "top-1 from", "parameters from")]
    for name in names:
        variant = catalog.find(name)
        side = _RESOLUTION.value or variant.resolution
        accuracy = published.ACCURACIES.get(name)
        rows.append(
            (
                name,
                f"{variant.parameters:,}",
                _gigaflops(name, side),
                str(side),
                variant.preset,
                f"{accuracy.top1:.2f}" if accuracy else "-",
                accuracy.source if accuracy else "-",
                variant.source,
            )
        )
    return rows


def _gigaflops(name: str, side: int) -> str:
    try:
        count = flops.multiply_adds(build_model(name, num_classes=1000), side)
    except UserError:  # the image does not divide into patches or windows
        return "-"
    return f"{2 * count / 1e9:.1f}"


def _costs(names: Iterable[str]) -> list[Sequence[str]]:
    head = ("model", "epochs", "paper", "ours", "differs", "stride on 1x1", "differs")
    rows: list[Sequence[str]] = [head]
    for name, epochs, paper in published.JFT_COSTS:
        if name not in names:
            continue
        # 18k classes, Section 4.1 of the paper.
        model = build_model(name, num_classes=18_000)
        images = epochs * flops.JFT_IMAGES
        ours = flops.exaflops(model, images)
        row = [name, str(epochs), f"{paper:.0f}", f"{ours:.1f}", _percent(ours, paper)]
        if name.startswith("BiT"):
            other = flops.exaflops(model, images, resnet_stride="1x1")
            row += [f"{other:.1f}", _percent(other, paper)]
        rows.append(row)
    if len(rows) == 1:
        raise UserError(
            "Table 6 has none of these models; leave the words out to see all its rows"
        )
    return rows


def _percent(ours: float, paper: float) -> str:
    return f"{100 * (ours / paper - 1):+.1f} %"


def _print(rows: Sequence[Sequence[str]], words: Collection[int]) -> None:
    """Prints columns: those of words to the left, numbers to the right."""
    width = max(map(len, rows))
    cells = [[*row, *[""] * (width - len(row))] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = [
            cell.ljust(size) if i in words else cell.rjust(size)
            for i, (cell, size) in enumerate(zip(row, sizes, strict=True))
        ]
        print("  ".join(aligned).rstrip())


if __name__ == "__main__":
    command.run(main, __doc__, FLAGS)

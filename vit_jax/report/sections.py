# SPDX-License-Identifier: Apache-2.0
"""The parts of the page, each from what is known about the run."""

import json
from collections.abc import Sequence

import numpy as np

from vit_jax.plots.series import nice
from vit_jax.report import page
from vit_jax.report.facts import Facts, show
from vit_jax.report.looking import Picture, Tested

_MATRIX_CLASSES = 20
"""Above so many classes the page lists the most frequent mistakes only."""
_MISTAKES = 10


def head(facts: Facts) -> str:
    """Returns the title and the numbers that people look for first."""
    found = {}
    for evaluator, metric, value, averaged, _ in facts.evaluations():
        if metric.rsplit("/", 1)[-1] in ("top1", "map", "rmse") and len(found) < 2:
            name = f"{evaluator} {metric}" + (", averaged weights" if averaged else "")
            found[name] = str(averaged or value)
    costs = facts.costs()
    found["steps"] = f"{facts.step:,}"
    for name in ("parameters", "speed", "time in updates"):
        if name in costs:
            found[name] = costs[name]
    return (
        f"<header><h1>{page.escape(facts.model)} on {page.escape(facts.dataset)}</h1>"
        f"{page.note(facts.origin())}{page.numbers(found)}</header>"
    )


def trained(facts: Facts) -> str:
    """Returns what was trained, and how, beside the paper's settings."""
    settings = facts.settings()
    beside = any(theirs for _, theirs in settings.values())
    rows = [
        (name, own, theirs) if beside else (name, own)
        for name, (own, theirs) in settings.items()
    ]
    fields = [
        (name.replace("_", " "), v) for name, v in (facts.config["model"]).items()
    ]
    text = json.dumps(facts.config, indent=2)
    return page.section(
        "What was trained",
        '<div class="cards">',
        page.table(("", "this run", "the paper") if beside else (), rows),
        page.table((), [*facts.costs().items(), *fields]),
        "</div>",
        ""
        if beside
        else page.note("Table 3 of the ViT paper has no row for this model and data."),
        f"<details><summary>the whole config</summary><pre>{page.escape(text)}</pre>"
        "</details>",
    )


def results(facts: Facts) -> str:
    """Returns what every evaluator measured, with both sets of weights."""
    rows = facts.evaluations()
    if not rows:
        return page.section("Results", page.note("No evaluator has run."))
    both = any(row[3] for row in rows)
    shown = [
        (name, metric, value, *((averaged,) if both else ()), f"{step:,}")
        for name, metric, value, averaged, step in rows
    ]
    middle = ("weights", "averaged weights") if both else ("value",)
    examples = [
        f"{name}: {int(last[0]):,} examples"
        for name in facts.config.get("evaluators") or {}
        if (last := facts.last(f"{name}/examples"))
    ]
    return page.section(
        "Results",
        page.table(("evaluator", "metric", *middle, "at step"), shown),
        page.note("; ".join(examples)),
    )


def mistakes(tested: Tested) -> str:
    """Returns the confusion matrix, and the pictures that were hardest."""
    seen = f"{tested.examples:,} pictures of {tested.split}"
    if tested.examples < tested.of:
        seen += f", evenly spread over its {tested.of:,}"
    parts = [page.note(f"Asked again for this page: {seen}.")]
    if tested.confusion is not None:
        parts += _confusion(*tested.confusion)
    if tested.wrong:
        parts += [
            "<h3>Wrong, and surest of it</h3>",
            _pictures(tested.wrong),
        ]
    else:
        parts.append(page.note("No answer was wrong."))
    if tested.right:
        parts += [
            '<h3 style="margin-top:20px">Right, and least sure of it</h3>',
            _pictures(tested.right),
        ]
    return page.section("Answers", *parts)


def _confusion(classes: Sequence[str], counts: np.ndarray) -> list[str]:
    totals = counts.sum(axis=1)
    parts = []
    if len(classes) <= _MATRIX_CLASSES:
        shares = counts / np.maximum(totals, 1)[:, None]
        rows = []
        for name, row, share in zip(classes, counts, shares, strict=True):
            cells = [
                f'<td style="background:color-mix(in srgb, var(--accent) '
                f'{_tint(part):.0f}%, transparent)">{count or ""}</td>'
                for count, part in zip(row.tolist(), share, strict=True)
            ]
            rows.append(
                f'<tr><th scope="row">{page.escape(name)}</th>{"".join(cells)}</tr>'
            )
        top = "".join(f'<th scope="col">{page.escape(name)}</th>' for name in classes)
        parts += [
            "<h3>Classes (rows) and answers (columns)</h3>",
            f'<div class="wide card"><table class="matrix"><thead><tr><th></th>{top}'
            f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>",
        ]
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MISTAKES]
    pairs = [divmod(int(place), len(classes)) for place in order]
    lines = [
        (classes[i], classes[j], f"{wrong[i, j]:,} of {totals[i]:,}")
        for i, j in pairs
        if wrong[i, j]
    ]
    if lines:
        parts += [
            '<h3 style="margin-top:20px">Most frequent mistakes</h3>',
            page.table(("class", "taken for", "how often"), lines),
        ]
    return [*parts, '<div style="height:20px"></div>']


def _tint(share: float) -> float:
    # A root, as mistakes are few and still to be seen; less than all, for the digits.
    return 60 * float(np.sqrt(share))


def _pictures(pictures: Sequence[Picture]) -> str:
    cells = []
    for picture in pictures:
        said = "".join(
            f'<div class="said{"" if name == picture.truth else " false"}" '
            f'style="--p:{100 * p:.0f}%"><span>{page.escape(name)}</span>'
            f"<span>{_percent(p)}</span></div>"
            for name, p in picture.said
        )
        cells.append(
            f'<figure title="{page.escape(picture.name)}">'
            f"{page.image(picture.pixels, picture.truth)}"
            f"<figcaption><b>{page.escape(picture.truth)}</b>{said}</figcaption>"
            "</figure>"
        )
    return f'<div class="pictures">{"".join(cells)}</div>'


def _percent(probability: float) -> str:
    return f"{100 * probability:.1f} %" if probability >= 5e-4 else "< 0.1 %"


def shown(pictures: Sequence[Picture], facts: Facts) -> str:
    """Returns the first pictures that the model was trained on."""
    cells = [
        f"<figure>{page.image(each.pixels, each.truth)}"
        f"<figcaption><b>{page.escape(each.truth)}</b></figcaption></figure>"
        for each in pictures
    ]
    data = facts.config.get("data") or {}
    mixed = any(data.get(name) for name in ("mixup", "cutmix"))
    text = "The first of the run, as they reached the model"
    return page.section(
        "Training pictures",
        page.note(text + (", before they were mixed." if mixed else ".")),
        f'<div class="pictures plain">{"".join(cells)}</div>',
    )


def drawn(
    title: str, drawings: Sequence[page.Drawing], notes: Sequence[str] = ()
) -> str:
    """Returns figures, and what could not be drawn."""
    if not drawings and not notes:
        return ""
    return page.section(title, page.cards(drawings), *map(page.note, notes))


def repeat(facts: Facts) -> str:
    """Returns the commands."""
    parts = [
        f"{page.note(what)}<pre>{page.escape(line)}</pre>"
        for what, line in facts.commands()
    ]
    return page.section("Commands", *parts)


def in_words(facts: Facts) -> str:
    """Returns one line for the terminal."""
    found = [
        f"{name}/{metric} {averaged or value}"
        for name, metric, value, averaged, _ in facts.evaluations()
        if metric == "top1"
    ]
    loss = facts.last("train/loss")
    if loss:
        found.insert(0, f"train/loss {show('loss', loss[0])}")
    speed = facts.speed()
    if speed:
        found.append(f"{nice(speed)} images/s")
    return f"step {facts.step:,}  " + "  ".join(found)
